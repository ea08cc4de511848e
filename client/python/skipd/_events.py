"""Events of a running request, and the parser that cuts them out of a stream of server-sent events."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Iterator, TypedDict, Union

from ._errors import ProtocolError, SkipdError, of_object

#: One event is no longer than this.
_MAX_EVENT = 4 << 20
#: Errors that are ends of a request, and the reason each stands for; any other is `error`.
_REASONS = {"cancelled": "cancelled", "deadline_exceeded": "deadline", "slow_reader": "slow_reader", "shutdown": "shutdown",
            "device_fault": "device_fault"}


class Usage(TypedDict, total=False):
    """True counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    #: What attention skipped in each phase, tokens reused, and milliseconds of each phase.
    skipd: dict[str, Any]


@dataclass(frozen=True)
class Text:
    """New text, always whole characters."""

    text: str
    #: Of the tokens drawn since the last event, where asked for; as OpenAI's API gives them.
    logprobs: Any = None


@dataclass(frozen=True)
class ToolCall:
    """More of a call of a function, as OpenAI's API streams it: `index`, `id`, `function.name`, `function.arguments`."""

    call: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """The end; nothing follows."""

    #: `stop`, `length`, `tool_calls`, or why it could not be finished.
    reason: str
    usage: Usage
    #: Where the answer is not whole as asked.
    error: SkipdError | None = None


Event = Union[Text, ToolCall, Finished]


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    text: str
    #: `stop`, `length` or `tool_calls`.
    reason: str
    usage: Usage
    #: Calls of functions, in order, as OpenAI's API gives them.
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    #: What came with the pieces of text, where asked for.
    logprobs: list[Any] = field(default_factory=list)


class Collected:
    """An answer on its way."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._logprobs: list[Any] = []
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, event: Event) -> Answer | None:
        """Adds an event; the terminal one gives the answer, or raises what an early end is."""
        if isinstance(event, Text):
            self._text.append(event.text)
            if event.logprobs is not None:
                self._logprobs.append(event.logprobs)
        elif isinstance(event, ToolCall):
            self._add_call(event.call)
        elif event.error is not None:
            raise event.error
        else:
            calls = [call for _, call in sorted(self._calls.items())]
            return Answer(self.text(), event.reason, event.usage, calls, self._logprobs)
        return None

    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def _add_call(self, piece: dict[str, Any]) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(piece.get("index", 0), empty)
        call["id"] += piece.get("id") or ""
        for name in ("name", "arguments"):
            call["function"][name] += (piece.get("function") or {}).get(name) or ""


class EventParser:
    """Takes bytes as they come and gives events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._reason: str | None = None
        self._usage: Usage = {}
        #: The terminal event has been given.
        self.finished = False

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that end within `data`."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_EVENT:
            raise ProtocolError(f"an event is longer than {_MAX_EVENT} bytes")
        for line in lines:
            yield from self._line(line.removesuffix(b"\r"))

    def _line(self, line: bytes) -> Iterator[Event]:
        if self.finished:
            return
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                try:
                    self._data.append(value.removeprefix(b" ").decode())
                except UnicodeDecodeError as error:
                    raise ProtocolError("the stream is not UTF-8") from error
        elif self._data:
            data = "\n".join(self._data)
            self._data.clear()
            yield from self._event(data)

    def _event(self, data: str) -> Iterator[Event]:
        if data == "[DONE]":
            if self._reason is None:
                raise ProtocolError("the stream ended without a finish reason")
            self.finished = True
            yield Finished(self._reason, self._usage)
            return
        try:
            chunk = json.loads(data)
            choices = chunk.get("choices") or []
        except (ValueError, AttributeError) as error:
            raise ProtocolError(f"a chunk is not understood: {error}") from error
        if "error" in chunk:
            self.finished = True
            yield _early_end(of_object(chunk["error"]))
            return
        self._usage = chunk.get("usage") or self._usage
        for choice in choices:
            delta = choice.get("delta") or {}
            text, logprobs = choice.get("text") or delta.get("content") or "", choice.get("logprobs")
            if text or logprobs:
                yield Text(text, logprobs)
            for call in delta.get("tool_calls") or []:
                yield ToolCall(call)
            self._reason = choice.get("finish_reason") or self._reason


def _early_end(error: SkipdError) -> Finished:
    """An error that carries the counts ends a request; without them it is the error alone."""
    usage = error.details.get("usage")
    if usage is None:
        raise error
    return Finished(_REASONS.get(error.code, "error"), usage, error)
