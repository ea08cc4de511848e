"""A request under asyncio: lazily sent, iterated, awaited, and cancelled by whatever stops reading it."""

from __future__ import annotations

import contextlib
import json
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Generator, Iterator, Literal

from ._errors import Cancelled, Deadline, Disconnected, InvalidRequest, SkipdError, of_object, of_status
from ._events import Answer, Collected, Event, EventParser, Finished, Text
from ._http import Exchange


class Generation:
    """One request. It is sent when it is first read: by `await` (the whole answer), by `async for` (events), by `text()`, or by `async with`.

    It is read once. Iteration ends after exactly one `Finished`, or raises. Cancelling the reading task hangs up; so do `aclose`, the end
    of an `async with`, and dropping it, which in CPython a loop left early does at once.
    """

    #: Nothing here may refer back to the generation: it is dropped, and hangs up, with the last reference to it.
    _exchange: Exchange | None = None

    def __init__(self, socket: Callable[[], str], route: str, body: bytes, limit: float | None, timeout: float | None) -> None:
        self._socket = socket
        self._route = route
        self._body = body
        self._limit = limit
        self._timeout = timeout
        self._parser = EventParser()
        self._events: Iterator[Event] = iter(())
        self._state: Literal["new", "busy", "open", "ended"] = "new"
        self._begun = False
        #: The reader knows of the end.
        self._told = False

    def __del__(self) -> None:
        if self._exchange is not None:
            self._exchange.drop()

    async def start(self) -> None:
        """Sends the request, if it was not sent. An error here means that nothing was started."""
        if self._state == "open":
            return
        self._once(self._state == "new")
        self._state = "busy"
        with self._hanging_up():
            exchange = self._exchange = await Exchange.open(self._socket())
            exchange.within(self._limit, Deadline)
            taken = exchange.within(self._timeout)
            if self._has_ended():
                exchange.close()
            await exchange.send("POST", self._route, self._body)
            if exchange.status != 200:
                raise refusal(exchange.status, await exchange.body())
            if taken is not None:
                taken.cancel()
            exchange.watch(self._timeout)
        self._state = "open"

    def __aiter__(self) -> Generation:
        self._once(self._state in ("new", "open"))
        return self

    async def __anext__(self) -> Event:
        if self._state == "ended":
            if self._told:
                raise StopAsyncIteration
            self._told = True
            raise Cancelled("the request was cancelled by its client")
        await self.start()
        assert self._exchange is not None, "an open request has its exchange"
        self._state, self._begun = "busy", True
        with self._hanging_up():
            while (event := next(self._events, None)) is None:
                if not (piece := await self._exchange.piece()):
                    raise Disconnected("the stream broke off before its terminal event")
                self._events = self._parser.feed(piece)
        self._state = "open"
        if isinstance(event, Finished):
            self._told = True
            self._close()
        return event

    def _once(self, fresh: bool) -> None:
        if not fresh:
            raise InvalidRequest("another task reads this request" if self._state == "busy" else
                                 "this request has been read or closed: one call of chat() or complete() is one request")

    def _has_ended(self) -> bool:
        return self._state == "ended"

    @contextlib.contextmanager
    def _hanging_up(self) -> Iterator[None]:
        """Whatever goes wrong ends the request, also where this task is cancelled: the daemon sees the connection close."""
        cancelled = Cancelled("the request was cancelled by its client")
        try:
            yield
        except BaseException as error:
            self._told = True
            if self._has_ended() and isinstance(error, Disconnected):
                raise cancelled from error
            self._close()
            raise
        if self._has_ended():
            self._told = True
            raise cancelled

    async def text(self) -> AsyncIterator[str]:
        """The pieces of text; an early end of the answer raises its error."""
        async with self:
            async for event in self:
                if isinstance(event, Text):
                    yield event.text
                elif isinstance(event, Finished) and event.error is not None:
                    raise event.error

    async def answer(self) -> Answer:
        """The whole answer. An early end raises its error, with the `text` so far and the `usage`, as far as known, in its `details`."""
        self._once(not self._begun)
        collected = Collected()
        async with self:
            try:
                async for event in self:
                    if (answer := collected.add(event)) is not None:
                        return answer
            except SkipdError as error:
                error.details["text"] = collected.text()
                raise
        raise Disconnected("the request has ended")

    def __await__(self) -> Generator[Any, None, Answer]:
        return self.answer().__await__()

    async def aclose(self) -> None:
        """Cancels the request, if it still runs."""
        self._close()

    def _close(self) -> None:
        self._state = "ended"
        if self._exchange is not None:
            self._exchange.close()

    async def __aenter__(self) -> Generation:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()


def refusal(status: int, body: bytes) -> SkipdError:
    """The error in a body, or what the status alone says."""
    try:
        return of_object(json.loads(body)["error"], status)
    except (ValueError, KeyError, TypeError):
        return of_status(status)
