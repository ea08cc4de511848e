"""The asyncio client: requests, tables, status."""

from __future__ import annotations

import asyncio
import json
import os
import socket as sockets
from typing import TYPE_CHECKING, Any, Literal, Mapping, Sequence, Union

from ._body import Options, encode, positive, request
from ._errors import Busy, Disconnected, Draining, InvalidRequest, NotReady, ProtocolError, Unreachable
from ._generation import Generation, refusal
from ._http import Exchange

if TYPE_CHECKING:
    from typing_extensions import Unpack

Message = Mapping[str, Any]
Phase = Literal["prefill", "decode"]
#: A tier ("50%"), "none", or a table: rows `[[first_length, S], …]` or an object.
Selector = Union[str, Sequence[Sequence[float]], Mapping[str, Any]]


#: What a generation with a deadline waits beyond it, in seconds, for a daemon that says nothing.
_GRACE = 5.0


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
    """skipd over its socket, for asyncio. It holds no connection: each request opens its own.

    `timeout` is how many seconds a call waits for its answer before it is `Unreachable`, `None` for ever. A generation is as long as it is:
    its `deadline` limits it, and 5 s later this side gives up too, with `Deadline`.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, timeout: float | None = 30.0) -> None:
        self._found = os.fspath(socket) if socket is not None else None
        self._timeout = None if timeout is None else positive(timeout, "timeout")

    @property
    def socket(self) -> str:
        """The socket's path: as given, or found when first needed, for the daemon may start later."""
        if self._found is None:
            self._found = find_socket()
        return self._found

    def chat(self, messages: str | Sequence[Message], **options: Unpack[Options]) -> Generation:
        """A conversation: its messages, or what the user says. Nothing is sent before the result is awaited or iterated."""
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        return self._generation("/v1/chat/completions", {"messages": said}, options)

    def complete(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Generation:
        """A text, or token ids, to be continued. Nothing is sent before the result is awaited or iterated."""
        return self._generation("/v1/completions", {"prompt": prompt if isinstance(prompt, str) else list(prompt)}, options)

    def _generation(self, route: str, said: dict[str, Any], options: Options) -> Generation:
        body = request(said, options)
        deadline = options.get("deadline")
        return Generation(lambda: self.socket, route, body, None if deadline is None else float(deadline) + _GRACE)

    async def status(self) -> dict[str, Any]:
        """What the daemon is and does."""
        return await self._call("GET", "/skipd/v1/status")

    async def models(self) -> list[dict[str, Any]]:
        """The loaded model, as OpenAI lists it."""
        return list((await self._call("GET", "/v1/models")).get("data", []))

    async def ready(self) -> dict[str, Any]:
        """`state`, `progress` and `reason`."""
        return await self._ready(self._timeout)

    async def _ready(self, limit: float | None) -> dict[str, Any]:
        status, answer = await self._raw("GET", "/ready", None, limit)
        ready = _json(answer)
        if "state" not in ready:
            raise refusal(status, answer)
        return ready

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Waits until the daemon serves, also for one that is not there yet or hangs.

        Raises `NotReady`, or what the last try ran into (`Unreachable`), after `timeout` seconds, and `NotReady` or `Draining` at once where
        the daemon has failed or is about to end.
        """
        now = asyncio.get_running_loop().time
        end = now() + positive(timeout, "timeout")
        while True:
            try:
                ready = await self._ready(max(end - now(), 0.001))
            except (Busy, Disconnected, Unreachable):
                if now() >= end:
                    raise
            else:
                if ready["state"] == "ready":
                    return
                if ready["state"] == "failed":
                    raise NotReady(f"the daemon has failed: {ready.get('reason', '')}")
                if ready["state"] == "draining":
                    raise Draining("the daemon is draining")
                if now() >= end:
                    raise NotReady(f"still {ready['state']} after {timeout} s")
            await asyncio.sleep(min(0.05, max(end - now(), 0.0)))

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
        if phase not in ("prefill", "decode"):
            raise InvalidRequest(f"must be 'prefill' or 'decode', not {phase!r}", param="phase")
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

    async def _raw(self, method: str, route: str, body: dict[str, Any] | None, limit: float | None) -> tuple[int, bytes]:
        data = b"" if body is None else encode(body, body)
        async with await Exchange.open(self.socket, limit) as exchange:
            await exchange.send(method, route, data)
            return exchange.status, await exchange.body()

    async def _call(self, method: str, route: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        status, answer = await self._raw(method, route, body, self._timeout)
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
