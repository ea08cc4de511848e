"""The asyncio client: requests, tables, status."""

from __future__ import annotations

import asyncio
import json
import os
import socket as sockets
from typing import TYPE_CHECKING, Any, Literal, Mapping, Sequence, TypedDict, Union

from ._errors import Draining, NotReady, ProtocolError, Unreachable
from ._generation import Generation, refusal
from ._http import Exchange

if TYPE_CHECKING:
    from typing_extensions import Unpack

Message = Mapping[str, Any]
Phase = Literal["prefill", "decode"]
#: A tier ("50%"), "none", or a table: rows `[[first_length, S], …]` or an object.
Selector = Union[str, Sequence[Sequence[float]], Mapping[str, Any]]


class Options(TypedDict, total=False):
    """How to generate; what is left out takes the model's default. docs/interfaces.md has the limits."""

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
    #: This many most likely tokens beside the drawn one.
    logprobs: int
    ignore_eos: bool
    skip_special_tokens: bool
    model: str
    #: Scheduling class: "background", "interactive" or "control".
    priority: str
    #: Give up after this many seconds.
    deadline: float
    prefix_reuse: bool
    #: Tables of this request alone, for those who may set tables: {"prefill": …, "decode": …}.
    tables: dict[str, Any]
    #: Further fields of the body, as they are.
    extra: dict[str, Any]


_OWN = ("priority", "prefix_reuse", "tables")


def find_socket() -> str:
    """The socket: `SKIPD_SOCKET`, else `/run/skipd/skipd.sock`, else `$XDG_RUNTIME_DIR/skipd.sock`.

    Raises `Unreachable`, which names every path tried.
    """
    if named := os.environ.get("SKIPD_SOCKET"):
        return named
    tried = []
    user = os.environ.get("XDG_RUNTIME_DIR")
    for path in ["/run/skipd/skipd.sock"] + ([os.path.join(user, "skipd.sock")] if user else []):
        with sockets.socket(sockets.AF_UNIX) as probe:
            try:
                probe.connect(path)
                return path
            except OSError as error:
                tried.append(f"{path} ({error.strerror or error})")
    raise Unreachable(f"no skipd answers; tried {', '.join(tried)}")


class AsyncClient:
    """skipd over its socket, for asyncio. It holds no connection: each request opens its own."""

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        #: The socket's path.
        self.socket = os.fspath(socket) if socket is not None else find_socket()

    def chat(self, messages: str | Sequence[Message], **options: Unpack[Options]) -> Generation:
        """A conversation: its messages, or what the user says. Nothing is sent before the result is awaited or iterated."""
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        body = _body({"messages": said}, options)
        if "logprobs" in body:
            body["logprobs"], body["top_logprobs"] = True, body["logprobs"]
        return Generation(self.socket, "/v1/chat/completions", body)

    def complete(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Generation:
        """A text, or token ids, to be continued. Nothing is sent before the result is awaited or iterated."""
        return Generation(self.socket, "/v1/completions", _body({"prompt": prompt if isinstance(prompt, str) else list(prompt)}, options))

    async def status(self) -> dict[str, Any]:
        """What the daemon is and does."""
        return await self._call("GET", "/skipd/v1/status")

    async def models(self) -> list[dict[str, Any]]:
        """The loaded model, as OpenAI lists it."""
        return list((await self._call("GET", "/v1/models")).get("data", []))

    async def ready(self) -> dict[str, Any]:
        """`state`, `progress` and `reason`."""
        return _json((await self._raw("GET", "/ready"))[1])

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Waits until the daemon serves; raises `NotReady` after `timeout` seconds, or at once where it failed."""
        end = asyncio.get_running_loop().time() + timeout
        while (ready := await self.ready())["state"] != "ready":
            if ready["state"] == "failed":
                raise NotReady(f"the daemon has failed: {ready.get('reason', '')}")
            if ready["state"] == "draining":
                raise Draining("the daemon is draining")
            if asyncio.get_running_loop().time() >= end:
                raise NotReady(f"still {ready['state']} after {timeout} s")
            await asyncio.sleep(0.05)

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, as it is."""
        return list((await self._call("POST", "/skipd/v1/tokenize", {"text": text})).get("tokens", []))

    async def tables(self) -> dict[str, Any]:
        """The tables in force, and why, for each phase."""
        return await self._call("GET", "/skipd/v1/tables")

    async def tiers(self) -> dict[str, Any]:
        """The checkpoint's ladders."""
        return await self._call("GET", "/skipd/v1/tiers")

    async def set_table(self, phase: Phase, selector: Selector, *, persist: bool = False, confirm_within: float | None = None,
                        force: bool = False) -> dict[str, Any]:
        """Puts a table in force for new requests; `confirm_within` seconds it goes back by itself unless confirmed."""
        body: dict[str, Any] = {"selector": selector, "persist": persist, "force": force}
        if confirm_within is not None:
            body["confirm_within"] = confirm_within
        return await self._call("PUT", f"/skipd/v1/tables/{phase}", body)

    async def confirm(self) -> dict[str, Any]:
        """Keeps tables on trial."""
        return await self._call("POST", "/skipd/v1/tables/confirm")

    async def revert(self) -> dict[str, Any]:
        """Goes back to the tables before those on trial."""
        return await self._call("POST", "/skipd/v1/tables/revert")

    async def reload(self) -> dict[str, Any]:
        """Reads all table files again."""
        return await self._call("POST", "/skipd/v1/tables/reload")

    async def _raw(self, method: str, route: str, body: Any = None) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        async with await Exchange.start(self.socket, method, route, data) as exchange:
            return exchange.status, await exchange.body()

    async def _call(self, method: str, route: str, body: Any = None) -> dict[str, Any]:
        status, answer = await self._raw(method, route, body)
        if not 200 <= status < 300:
            raise refusal(status, answer)
        return _json(answer)


def _json(answer: bytes) -> dict[str, Any]:
    try:
        value = json.loads(answer)
    except ValueError as error:
        raise ProtocolError(f"the answer is not understood: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError("the answer is no object")
    return value


def _body(body: dict[str, Any], options: Options) -> dict[str, Any]:
    """A request's body. A misspelt option is a TypeError: the daemon would take it for a field it may ignore."""
    given: dict[str, Any] = {**options}
    unknown = given.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; `extra` takes further fields")
    own = {name: given.pop(name) for name in _OWN if name in given}
    if "deadline" in given:
        own["deadline_ms"] = max(1, round(given.pop("deadline") * 1000))
    extra = given.pop("extra", {})
    body |= {"model": "default", "stream": True, "stream_options": {"include_usage": True}} | given | extra
    if own:
        body["skipd"] = own | body.get("skipd", {})
    return body
