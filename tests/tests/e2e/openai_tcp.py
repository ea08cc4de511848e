"""The openai package, unmodified, over TCP with a key:  openai_tcp.py URL KEY"""
import sys

import openai

client = openai.OpenAI(api_key=sys.argv[2], base_url=sys.argv[1], max_retries=0, timeout=120)
question = [{"role": "user", "content": "What is the capital of France?"}]
assert "smollm2" in [model.id for model in client.models.list()]
whole = client.chat.completions.create(model="default", messages=question, max_tokens=24, temperature=0)
assert "Paris" in whole.choices[0].message.content, whole
stream = client.chat.completions.create(model="default", messages=question, max_tokens=24, temperature=0, stream=True)
pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
assert len(pieces) > 3 and "".join(pieces) == whole.choices[0].message.content, pieces
try:
    openai.OpenAI(api_key="a-wrong-key-0123456", base_url=sys.argv[1], max_retries=0).models.list()
    raise AssertionError("a wrong key was accepted")
except openai.AuthenticationError as error:
    assert error.code == "invalid_api_key", error
print("all checks passed")
