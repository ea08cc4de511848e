"""The openai package, unmodified, over skipd's Unix socket:  openai_client.py SOCKET"""
import sys

import openai

try:
    import httpx2 as httpx  # what openai 3 is built on
except ImportError:
    import httpx

client = openai.OpenAI(api_key="none", base_url="http://localhost/v1", max_retries=0,
                       http_client=httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1]), timeout=60))
question = [{"role": "user", "content": "What is the capital of France?"}]

models = [model.id for model in client.models.list()]
assert "smollm2" in models, models

whole = client.chat.completions.create(model="default", messages=question, max_tokens=24, temperature=0)
assert "Paris" in whole.choices[0].message.content, whole
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert whole.usage.model_extra["skipd"]["prefill"]["votes"] == 0, whole.usage

pieces, reasons, usage = [], [], None
for chunk in client.chat.completions.create(model=models[0], messages=question, max_tokens=24, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        reasons += [choice.finish_reason] if choice.finish_reason else []
    usage = chunk.usage or usage
assert "".join(pieces) == whole.choices[0].message.content
assert len(reasons) == 1 and usage.completion_tokens == whole.usage.completion_tokens

text = client.completions.create(model="default", prompt="One, two, three,", max_tokens=6, temperature=0, logprobs=2, stop=["ten"])
assert text.choices[0].text and len(text.choices[0].logprobs.tokens) == text.usage.completion_tokens

logprobs = client.chat.completions.create(model="default", messages=question, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2)
assert all(len(entry.top_logprobs) == 2 for entry in logprobs.choices[0].logprobs.content)

try:
    client.completions.create(model="default", prompt=[504] * 8190, max_tokens=100)
    raise AssertionError("a context overflow was accepted")
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded", error
try:
    client.chat.completions.create(model="gpt-9", messages=question)
    raise AssertionError("an unknown model was accepted")
except openai.NotFoundError as error:
    assert "gpt-9" in error.message, error
    assert (error.code, error.param) == ("model_not_found", "model"), error
try:
    client.chat.completions.create(model="default", messages=question, max_tokens="many")
    raise AssertionError("a wrong type was accepted")
except openai.BadRequestError as error:
    assert error.param == "max_tokens", error

with client.chat.completions.create(model="default", messages=question, max_tokens=500, stream=True, extra_body={"ignore_eos": True}) as stream:
    next(iter(stream))  # hang up after the first piece
again = client.chat.completions.create(model="default", messages=question, max_tokens=24, temperature=0)
assert again.choices[0].message.content == whole.choices[0].message.content
print("all checks passed")
