"""HTTP/1.1 over the Unix socket, as much of it as skipd speaks: one connection a request."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from ._errors import Disconnected, ProtocolError, SkipdError, Unreachable

#: Longest line or head of an answer.
_MAX_LINE = 1 << 20
#: Largest answer that is not a stream.
_MAX_BODY = 32 << 20


def silent(seconds: float, kind: type[SkipdError] = Unreachable) -> SkipdError:
    """The daemon said nothing."""
    return kind(f"skipd did not answer within {seconds:.3g} s")


class Exchange:
    """One request and its answer. Closing it, or cancelling whoever waits for it, hangs up."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._path = path
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        #: When something came, and the look at a daemon from which nothing does.
        self._heard = self._loop.time()
        self._looking: asyncio.Task[None] | None = None
        #: What a broken connection means, where this side has given up.
        self._late: SkipdError | None = None
        self._closed = False
        self._chunked = False
        self._left = 0
        self.status = 0

    @classmethod
    async def open(cls, path: str) -> Exchange:
        """Connects."""
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_LINE)
        except OSError as error:
            raise Unreachable(f"no skipd answers at {path}: {error.strerror or error}") from error
        return cls(path, reader, writer)

    def within(self, seconds: float | None, late: type[SkipdError] = Unreachable) -> asyncio.TimerHandle | None:
        """Gives the exchange up with a `late` after so many seconds, unless the timer is cancelled or the exchange closed before."""
        if seconds is None:
            return None
        timer = self._loop.call_later(seconds, self._give_up, silent(seconds, late))
        self._timers.append(timer)
        return timer

    def watch(self, seconds: float | None) -> None:
        """For what takes as long as it takes: after so many seconds of silence the daemon is asked for something else, and given up where that
        is not answered in time either."""
        if seconds is not None:
            self._heard = self._loop.time()
            self._look_after(seconds, seconds)

    def _look_after(self, wait: float, seconds: float) -> None:
        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > self._loop.time()]
        self._timers.append(self._loop.call_later(wait, self._look, seconds))

    def _look(self, seconds: float) -> None:
        left = self._heard + seconds - self._loop.time()
        if self._writer.transport.is_closing():
            # Whoever reads will see it.
            return
        if left > 0:
            self._look_after(left, seconds)
        else:
            self._looking = self._loop.create_task(self._ask(seconds))

    async def _ask(self, seconds: float) -> None:
        answered = await answers(self._path, seconds)
        self._looking = None
        if answered:
            self._look_after(seconds, seconds)
        else:
            self._give_up(silent(seconds))

    async def send(self, method: str, route: str, body: bytes) -> None:
        """Sends the request and waits for the head of its answer."""
        head = f"{method} {route} HTTP/1.1\r\nhost: skipd\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        try:
            await self._writer.drain()
        except OSError:
            # A refusal may come before everything is sent: it is read below.
            pass
        await self._read_head()

    def close(self) -> None:
        """Hangs up at once. Only on the loop's thread."""
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        self._writer.transport.abort()

    def drop(self) -> None:
        """Hangs up as soon as the loop runs on. From any thread, also where the loop has ended."""
        if not self._closed:
            try:
                self._loop.call_soon_threadsafe(self.close)
            except RuntimeError:
                # The loop is closed, and the transport with it only when it is told.
                with contextlib.suppress(RuntimeError):
                    self.close()

    def _give_up(self, late: SkipdError) -> None:
        self._late = self._late or late
        self.close()

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def _read_head(self) -> None:
        head = await self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ProtocolError("the answer is not HTTP")
        self.status = int(rest[:3])
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip().lower() == "transfer-encoding":
                self._chunked = "chunked" in value
            elif name.strip().lower() == "content-length":
                self._left = _size(value, 10)

    async def piece(self) -> bytes:
        """More of the body, as it comes; empty at its end."""
        if self._chunked:
            size = _size((await self._until(b"\r\n")).split(b";")[0].decode("latin-1"), 16)
            return (await self._exactly(size + 2))[:-2]
        left, self._left = self._left, 0
        return await self._exactly(left)

    async def body(self) -> bytes:
        """The whole body."""
        whole = bytearray()
        while piece := await self.piece():
            whole += piece
            if len(whole) > _MAX_BODY:
                raise ProtocolError(f"the answer is longer than {_MAX_BODY} bytes")
        return bytes(whole)

    async def _until(self, end: bytes) -> bytes:
        try:
            found = await self._reader.readuntil(end)
        except asyncio.LimitOverrunError as error:
            raise ProtocolError(f"a line of the answer is longer than {_MAX_LINE} bytes") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self._late or Disconnected("the daemon closed the connection") from error
        self._heard = self._loop.time()
        return found

    async def _exactly(self, size: int) -> bytes:
        try:
            found = await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self._late or Disconnected("the daemon closed the connection") from error
        self._heard = self._loop.time()
        return found


async def answers(path: str, seconds: float) -> bool:
    """Whether the daemon answers anything in time. Silence alone is a no: whoever finds no room is refused, and where it has ended the
    connections that it had say so."""
    try:
        async with await Exchange.open(path) as exchange:
            exchange.within(seconds, _Silent)
            await exchange.send("GET", "/ready", b"")
    except _Silent:
        return False
    except SkipdError:
        pass
    return True


class _Silent(Disconnected):
    """Nothing came in time."""


def _size(digits: str, base: int) -> int:
    try:
        size = int(digits, base)
    except ValueError as error:
        raise ProtocolError("the answer is not HTTP") from error
    if not 0 <= size <= _MAX_BODY:
        raise ProtocolError(f"a piece is longer than {_MAX_BODY} bytes")
    return size
