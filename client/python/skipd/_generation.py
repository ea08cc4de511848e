"""A request under asyncio: lazily sent, iterated, awaited, and cancelled by whatever stops reading it."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, AsyncIterator, Generator

from ._errors import Cancelled, Disconnected, of_object, of_status
from ._events import Answer, Collected, Event, EventParser, Finished, Text
from ._http import Exchange


class Generation:
    """One request. It is sent when it is first read: by `await` (the whole answer), by `async for` (events), by `text()`, or by `async with`.

    Iteration ends after exactly one `Finished`, or raises. Cancelling the reading task hangs up; so does `aclose`, and the end of an
    `async with`, which is how to leave a loop early.
    """

    def __init__(self, path: str, route: str, body: dict[str, Any]) -> None:
        self._path = path
        self._route = route
        self._body = body
        self._exchange: Exchange | None = None
        self._events: AsyncIterator[Event] | None = None
        self._ended = False

    async def start(self) -> None:
        """Sends the request, if it was not sent. An error here means that nothing was started."""
        if self._exchange is not None or self._ended:
            return
        # Set first: a request is sent once, whatever becomes of it.
        self._ended = True
        exchange = await Exchange.start(self._path, "POST", self._route, json.dumps(self._body).encode())
        if exchange.status != 200:
            async with exchange:
                raise refusal(exchange.status, await exchange.body())
        self._exchange, self._ended = exchange, False
        self._events = self._read(exchange)

    async def _read(self, exchange: Exchange) -> AsyncIterator[Event]:
        parser = EventParser()
        async for piece in exchange.pieces():
            for event in parser.feed(piece):
                yield event
        if not parser.finished:
            raise Disconnected("the stream broke off before its terminal event")

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Event:
        await self.start()
        if self._ended or self._events is None:
            raise StopAsyncIteration
        try:
            event = await self._events.__anext__()
        except Disconnected as error:
            if self._ended:
                raise Cancelled("the request was cancelled by its client") from error
            self._close()
            raise
        except BaseException:
            # Also where this task is cancelled: the daemon sees the connection close and ends the request.
            self._close()
            raise
        if isinstance(event, Finished):
            self._close()
        return event

    async def text(self) -> AsyncIterator[str]:
        """The pieces of text; an early end of the answer raises its error."""
        async with self:
            async for event in self:
                if isinstance(event, Text):
                    yield event.text
                elif isinstance(event, Finished) and event.error is not None:
                    raise event.error

    async def answer(self) -> Answer:
        """The whole answer; an early end raises its error."""
        collected = Collected()
        async with self:
            async for event in self:
                if (answer := collected.add(event)) is not None:
                    return answer
        raise Disconnected("the request has ended")

    def __await__(self) -> Generator[Any, None, Answer]:
        return self.answer().__await__()

    async def aclose(self) -> None:
        """Cancels the request, if it still runs."""
        self._close()

    def _close(self) -> None:
        self._ended = True
        if self._exchange is not None:
            self._exchange.close()

    async def __aenter__(self) -> Generation:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()


def refusal(status: int, body: bytes) -> Exception:
    """The error in a body, or what the status alone says."""
    try:
        return of_object(json.loads(body)["error"], status)
    except (ValueError, KeyError, TypeError):
        return of_status(status)
