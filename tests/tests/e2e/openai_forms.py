"""Schemas and functions by the openai package, unmodified, over skipd's Unix socket:  openai_forms.py SOCKET"""
import enum
import json
import sys

import openai
import pydantic

try:
    import httpx2 as httpx  # what openai 3 is built on
except ImportError:
    import httpx

client = openai.OpenAI(api_key="none", base_url="http://localhost/v1", max_retries=0,
                       http_client=httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1]), timeout=120))
question = [{"role": "user", "content": "Drive to the dock, slowly."}]


class Gear(enum.Enum):
    forward = "forward"
    reverse = "reverse"


class Order(pydantic.BaseModel):
    gear: Gear
    speed: int = pydantic.Field(ge=0, le=50)
    careful: bool


for seed in range(3):
    answer = client.chat.completions.parse(model="default", messages=question, response_format=Order, max_tokens=120, temperature=1, seed=seed)
    order = answer.choices[0].message.parsed
    assert isinstance(order, Order) and 0 <= order.speed <= 50, answer

pieces = []
with client.chat.completions.stream(model="default", messages=question, response_format=Order, max_tokens=120, temperature=0) as stream:
    for event in stream:
        if event.type == "content.delta":
            pieces.append(event.delta)
    final = stream.get_final_completion()
assert isinstance(final.choices[0].message.parsed, Order) and Order.model_validate_json("".join(pieces)), pieces

drive = openai.pydantic_function_tool(Order, name="drive", description="Drives.")
called = client.chat.completions.parse(model="default", messages=question, tools=[drive], tool_choice="required", parallel_tool_calls=False,
                                       max_tokens=120, temperature=0)
call = called.choices[0].message.tool_calls[0]
assert called.choices[0].finish_reason == "tool_calls" and isinstance(call.function.parsed_arguments, Order), called

name, arguments = "", ""
for chunk in client.chat.completions.create(model="default", messages=question, tools=[drive], tool_choice={"type": "function", "function": {"name": "drive"}},
                                            max_tokens=120, temperature=0, stream=True):
    for delta in chunk.choices[0].delta.tool_calls or []:
        name += delta.function.name or ""
        arguments += delta.function.arguments or ""
assert name == "drive" and Order.model_validate(json.loads(arguments)), (name, arguments)

history = [*question, called.choices[0].message.model_dump(mode="json", exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "done"}]
said = client.chat.completions.create(model="default", messages=history, tools=[drive], tool_choice="none", max_tokens=16)
assert said.usage.completion_tokens > 0

fruit = client.chat.completions.create(model="default", messages=question, max_tokens=8, extra_body={"structured_outputs": {"choice": ["apple", "pear"]}})
assert fruit.choices[0].message.content in ("apple", "pear"), fruit

try:
    client.chat.completions.create(model="default", messages=question, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}})
    raise AssertionError("a schema that cannot be kept to was accepted")
except openai.BadRequestError as error:
    assert error.param == "response_format.json_schema.schema" and "uniqueItems" in error.message, error
print("all checks passed")
