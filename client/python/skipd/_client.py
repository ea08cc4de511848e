"""The asyncio client: requests, tables, status."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket as sockets
from typing import TYPE_CHECKING, Any, Literal, Mapping, Sequence, Union

from ._body import Options, encode, positive, request
from ._errors import Busy, Draining, InvalidRequest, NotFound, NotReady, ProtocolError, SkipdError, Unreachable
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
#: Between two looks at a daemon that is not ready, in seconds.
_POLL = 0.05


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
    """skipd over its socket, for asyncio. It holds no connection: each request opens its own, so that it stays good when the daemon is started
    again. Whoever caught an error that is `away` waits in `wait_ready` and sends again.

    `timeout` is how many seconds a call waits for its answer, and a generation for being taken, before it is `Unreachable`; `None` is for ever.
    What takes as long as it takes (a generation's events, a pin, a drain) is waited for as long as the daemon lives: after each `timeout` of
    silence it is asked for something else, and given up where that is not answered in time either. A generation's `deadline` limits it too, and
    5 s later this side gives up, with `Deadline`.
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
        return Generation(lambda: self.socket, route, body, None if deadline is None else float(deadline) + _GRACE, self._timeout)

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
        """Waits until the daemon serves: also for one that is not there, hangs, or drains because it is about to be started again.

        Raises what stood in the way after `timeout` seconds (`NotReady`, `Draining`, `Unreachable`, …), and `NotReady` at once where the
        daemon has failed.
        """
        now = asyncio.get_running_loop().time
        end = now() + positive(timeout, "timeout")
        while True:
            in_the_way: SkipdError
            try:
                # A daemon that is ready has a moment to say so, however short the timeout.
                ready = await self._ready(max(end - now(), _POLL))
            except SkipdError as error:
                if not (error.away or isinstance(error, Busy)):
                    raise
                in_the_way = error
            else:
                if ready["state"] == "ready":
                    return
                if ready["state"] == "failed":
                    raise NotReady(f"the daemon has failed: {ready.get('reason', '')}")
                drains = ready["state"] == "draining"
                in_the_way = (Draining if drains else NotReady)(f"still {ready['state']} after {timeout} s")
            if now() >= end:
                raise in_the_way
            await asyncio.sleep(min(_POLL, max(end - now(), 0.0)))

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

    async def prefixes(self) -> dict[str, Any]:
        """The pinned prefixes, in `prefixes`, and the pages that they may take together, `limit_pages`."""
        return await self._call("GET", "/skipd/v1/prefixes")

    async def pin_prefix(self, prompt: str | Sequence[int] | None = None, *, messages: Sequence[Message] | None = None,
                         tools: Sequence[Mapping[str, Any]] | None = None, name: str | None = None) -> dict[str, Any]:
        """Pins what prompts begin with, a text or ids, or conversations, `messages`; answers with the prefix when it is computed."""
        body: dict[str, Any] = {}
        if prompt is not None:
            body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        if messages is not None:
            body["messages"] = list(messages)
        if tools is not None:
            body["tools"] = list(tools)
        if name is not None:
            body["name"] = name
        return await self._call("POST", "/skipd/v1/prefixes", body, long=True)

    async def drop_prefix(self, name: str) -> dict[str, Any]:
        """Drops a pinned prefix, and gives what it was."""
        return await self._call("DELETE", f"/skipd/v1/prefixes/{_segment(name, 'name')}")

    async def activity(self) -> dict[str, Any]:
        """The requests under way: the caller's own, for an administrator all."""
        return await self._call("GET", "/skipd/v1/requests")

    async def jobs(self) -> list[dict[str, Any]]:
        """All jobs that the daemon remembers."""
        return list((await self._call("GET", "/skipd/v1/jobs")).get("jobs", []))

    async def job(self, job: str) -> dict[str, Any]:
        """How far the job of this id is."""
        return await self._call("GET", f"/skipd/v1/jobs/{_segment(job, 'id')}")

    async def start_job(self, kind: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Starts long work beside serving; the answer has its `id`."""
        return await self._call("POST", "/skipd/v1/jobs", {"kind": kind} | ({"options": dict(options)} if options else {}))

    async def cancel_job(self, job: str) -> dict[str, Any]:
        """Ends the job of this id at the next chance."""
        return await self._call("POST", f"/skipd/v1/jobs/{_segment(job, 'id')}/cancel")

    async def update(self) -> dict[str, Any]:
        """What updates of tables over the air brought: the one in force, the one before, the one on trial."""
        return await self._call("GET", "/skipd/v1/update")

    async def apply_update(self, bundle: str | os.PathLike[str] | bytes, *, relax_expiry: bool = False) -> dict[str, Any]:
        """Has a bundle verified and put on trial, and answers when the trial begins: an archive's bytes, or a path that the daemon can read.

        Of a path `relax_expiry` has expiry judged by a clock that may be behind. Raises `TableRefused`, whose `details` name the failed `check`.
        """
        if isinstance(bundle, bytes):
            if relax_expiry:
                raise InvalidRequest("goes with a path alone", param="relax_expiry")
            return await self._call("POST", "/skipd/v1/update/apply", bundle, long=True)
        body = {"path": os.fspath(bundle)} | ({"relax_expiry": True} if relax_expiry else {})
        return await self._call("POST", "/skipd/v1/update/apply", body, long=True)

    async def roll_back_update(self) -> dict[str, Any]:
        """Ends the trial of an update, or goes back to the update before, or to none."""
        return await self._call("POST", "/skipd/v1/update/rollback", long=True)

    async def drain(self) -> None:
        """Lets running requests finish and takes no new ones; answers when nothing runs."""
        status, answer = await self._raw("POST", "/skipd/v1/drain", None, self._timeout, long=True)
        if not 200 <= status < 300:
            raise refusal(status, answer)

    async def _raw(self, method: str, route: str, body: dict[str, Any] | bytes | None, limit: float | None,
                   long: bool = False) -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else b"" if body is None else encode(body, body)
        async with await Exchange.open(self.socket) as exchange:
            if long:
                exchange.watch(limit)
            else:
                exchange.within(limit)
            await exchange.send(method, route, data)
            return exchange.status, await exchange.body()

    async def _call(self, method: str, route: str, body: dict[str, Any] | bytes | None = None, *, long: bool = False) -> dict[str, Any]:
        status, answer = await self._raw(method, route, body, self._timeout, long)
        if not 200 <= status < 300:
            raise refusal(status, answer)
        return _json(answer)


def _segment(name: str, param: str) -> str:
    """A name as part of a route: another one, with a slash or a question mark, would be another route."""
    if not re.fullmatch("[A-Za-z0-9._-]+", name) or not name.strip("."):
        raise NotFound(f"there is no {name!r}", param=param)
    return name


def _json(answer: bytes) -> dict[str, Any]:
    try:
        value = json.loads(answer)
    except ValueError as error:
        raise ProtocolError(f"the answer is not understood: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError("the answer is no object")
    return value
