"""HTTP/1.1 over the Unix socket, as much of it as skipd speaks: one connection a request."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import AsyncIterator

from ._errors import Disconnected, ProtocolError, Unreachable

#: Longest line or head of an answer.
_MAX_LINE = 1 << 20
#: Largest answer that is not a stream.
_MAX_BODY = 32 << 20


class Exchange:
    """One request and its answer. Closing it, or cancelling whoever waits for it, hangs up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._headers: dict[str, str] = {}
        self.status = 0

    @classmethod
    async def start(cls, path: str, method: str, route: str, body: bytes) -> Exchange:
        """Sends a request and waits for the head of its answer."""
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=_MAX_LINE)
        except OSError as error:
            raise Unreachable(f"no skipd answers at {path}: {error.strerror or error}") from error
        exchange = cls(reader, writer)
        try:
            head = f"{method} {route} HTTP/1.1\r\nhost: skipd\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            await exchange._send(head.encode() + body)
            await exchange._read_head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    def close(self) -> None:
        """Hangs up at once."""
        self._writer.transport.abort()

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            # A refusal may come before everything is sent: it is read below.
            pass

    async def _read_head(self) -> None:
        head = await self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ProtocolError("the answer is not HTTP")
        self.status = int(rest[:3])
        for line in lines:
            name, _, value = line.partition(":")
            self._headers[name.strip().lower()] = value.strip()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if "chunked" in self._headers.get("transfer-encoding", ""):
            while size := await self._chunk_size():
                yield (await self._exactly(size + 2))[:-2]
        elif left := int(self._headers.get("content-length", "0")):
            yield await self._exactly(left)

    async def body(self) -> bytes:
        """The whole body."""
        whole = bytearray()
        async for piece in self.pieces():
            whole += piece
            if len(whole) > _MAX_BODY:
                raise ProtocolError(f"the answer is longer than {_MAX_BODY} bytes")
        return bytes(whole)

    async def _chunk_size(self) -> int:
        line = await self._until(b"\r\n")
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError as error:
            raise ProtocolError("the answer is not HTTP") from error
        if size > _MAX_BODY:
            raise ProtocolError(f"a piece is longer than {_MAX_BODY} bytes")
        return size

    async def _until(self, end: bytes) -> bytes:
        try:
            return await self._reader.readuntil(end)
        except asyncio.LimitOverrunError as error:
            raise ProtocolError(f"a line of the answer is longer than {_MAX_LINE} bytes") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Disconnected("the daemon closed the connection") from error

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Disconnected("the daemon closed the connection") from error
