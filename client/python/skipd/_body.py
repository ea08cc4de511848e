"""The body of a request: options as keywords, checked as far as the daemon could not name what is wrong."""

from __future__ import annotations

import json
import math
from numbers import Real
from typing import Any, Mapping, TypedDict

from ._errors import InvalidRequest


class Options(TypedDict, total=False):
    """How to generate; what is left out, or None, takes the model's default. docs/interfaces.md has the limits."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | list[str]
    frequency_penalty: float
    presence_penalty: float
    logit_bias: dict[str, float]
    response_format: dict[str, Any]
    structured_outputs: dict[str, Any]
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    #: This many most likely tokens beside the drawn one; True is none beside it.
    logprobs: int | bool
    ignore_eos: bool
    skip_special_tokens: bool
    model: str
    #: Scheduling class: "background", "interactive" or "control".
    priority: str
    #: Give up after this many seconds.
    deadline: float | None
    prefix_reuse: bool
    #: Tables of this request alone, for those who may set tables: {"prefill": …, "decode": …}.
    tables: dict[str, Any]
    #: Further fields of the body, as they are.
    extra: dict[str, Any]


#: Fields of skipd, in an object of their own.
_OWN = ("priority", "prefix_reuse", "tables")


def request(said: dict[str, Any], options: Options) -> bytes:
    """A request's body. A misspelt option is a TypeError: the daemon would take it for a field it may ignore."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; `extra` takes further fields")
    given: dict[str, Any] = said | {name: value for name, value in options.items() if value is not None}
    fields = dict(given)
    own = {name: fields.pop(name) for name in _OWN if name in fields}
    if "deadline" in fields:
        own["deadline_ms"] = max(1, round(positive(fields.pop("deadline"), "deadline") * 1000))
    fields |= _logprobs(fields.pop("logprobs", False), "messages" in said)
    extra = _object(fields.pop("extra", {}), "extra")
    if extra.keys() & {"stream", "stream_options"}:
        raise InvalidRequest("a generation is a stream: `stream` and `stream_options` are not for `extra`", param="extra")
    if (further := extra.pop("skipd", None)) is not None:
        own |= _object(further, "extra.skipd")
    body = {"model": "default", "stream": True, "stream_options": {"include_usage": True}} | fields | extra
    return encode(body | ({"skipd": own} if own else {}), given)


def _logprobs(count: int | bool, chat: bool) -> dict[str, Any]:
    if count is False:
        return {}
    return {"logprobs": True, "top_logprobs": int(0 if count is True else count)} if chat else {"logprobs": 0 if count is True else count}


def encode(body: Mapping[str, Any], given: Mapping[str, Any]) -> bytes:
    """JSON; a value that is none (NaN, half a surrogate pair, an object) is an error that names it among those given."""
    try:
        return _json(body)
    except (TypeError, ValueError):
        for name, value in given.items():
            try:
                _json(value)
            except (TypeError, ValueError) as error:
                raise InvalidRequest(f"cannot be sent: {error}", param=name) from error
        raise


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def positive(seconds: Any, name: str) -> float:
    """A number of seconds."""
    if not isinstance(seconds, Real) or isinstance(seconds, bool) or not (0 < float(seconds) < math.inf):
        raise InvalidRequest(f"must be a number of seconds above 0, not {seconds!r}", param=name)
    return float(seconds)


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest("must be an object", param=name)
    return dict(value)
