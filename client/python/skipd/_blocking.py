"""The same client without asyncio: a thread runs the loop, callers wait."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Coroutine, Iterator, Mapping, Sequence, TypeVar

from ._body import Options
from ._client import AsyncClient, Message, Phase, Selector
from ._errors import Cancelled
from ._events import Answer, Event, Finished, Text
from ._generation import Generation

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Client:
    """skipd over its socket, for programs without an event loop. May be used by several threads. `close` it, or use `with`.

    `timeout` is that of `AsyncClient`.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, timeout: float | None = 30.0) -> None:
        self._client = AsyncClient(socket, timeout=timeout)
        self._loop = asyncio.new_event_loop()
        self._generations: weakref.WeakSet[Generation] = weakref.WeakSet()
        # Held where work is given to the loop. Reentrant, for the collector may close a forgotten generation in the midst of it.
        self._lock = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="skipd", daemon=True)
        self._thread.start()

    @property
    def socket(self) -> str:
        """The socket's path."""
        return self._client.socket

    def close(self) -> None:
        """Ends the client's thread; what still runs is cancelled, and later calls raise `Cancelled`. Once is enough, more do no harm."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            ended = asyncio.run_coroutine_threadsafe(self._end(list(self._generations)), self._loop)
        ended.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self, generations: list[Generation]) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, *(generation.aclose() for generation in generations), return_exceptions=True)
        # Connections close in the turn after they are told to.
        await asyncio.sleep(0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._closed:
                work.close()
                raise Cancelled("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise Cancelled("the client was closed") from error
        except BaseException:
            # Ctrl-C while waiting: what was waited for ends too.
            future.cancel()
            raise

    def _own(self, generation: Generation) -> BlockingGeneration:
        with self._lock:
            self._generations.add(generation)
        return BlockingGeneration(self, generation)

    def _cancel(self, generation: Generation) -> None:
        # Not waited for: the collector may do this, on any thread.
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(generation._close)

    def chat(self, messages: str | Sequence[Message], **options: Unpack[Options]) -> BlockingGeneration:
        """A conversation: its messages, or what the user says. Nothing is sent before the result is read."""
        return self._own(self._client.chat(messages, **options))

    def complete(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> BlockingGeneration:
        """A text, or token ids, to be continued. Nothing is sent before the result is read."""
        return self._own(self._client.complete(prompt, **options))

    def status(self) -> dict[str, Any]:
        """What the daemon is and does."""
        return self._wait(self._client.status())

    def models(self) -> list[dict[str, Any]]:
        """The loaded model, as OpenAI lists it."""
        return self._wait(self._client.models())

    def ready(self) -> dict[str, Any]:
        """`state`, `progress` and `reason`."""
        return self._wait(self._client.ready())

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Waits until the daemon serves: also for one that is not there, hangs, or drains because it is about to be started again."""
        self._wait(self._client.wait_ready(timeout))

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, as it is."""
        return self._wait(self._client.tokenize(text))

    def tables(self) -> dict[str, Any]:
        """The tables in force, and why, for each phase."""
        return self._wait(self._client.tables())

    def tiers(self) -> dict[str, Any]:
        """The checkpoint's ladders."""
        return self._wait(self._client.tiers())

    def set_table(self, phase: Phase, selector: Selector, *, persist: bool = False, confirm_within: float | None = None,
                  force: bool = False) -> dict[str, Any]:
        """Puts a table in force for new requests."""
        return self._wait(self._client.set_table(phase, selector, persist=persist, confirm_within=confirm_within, force=force))

    def confirm(self) -> dict[str, Any]:
        """Keeps tables on trial."""
        return self._wait(self._client.confirm())

    def revert(self) -> dict[str, Any]:
        """Goes back to the tables before those on trial."""
        return self._wait(self._client.revert())

    def reload(self) -> dict[str, Any]:
        """Reads all table files again."""
        return self._wait(self._client.reload())

    def prefixes(self) -> dict[str, Any]:
        """The pinned prefixes, in `prefixes`, and the pages that they may take together, `limit_pages`."""
        return self._wait(self._client.prefixes())

    def pin_prefix(self, prompt: str | Sequence[int] | None = None, *, messages: Sequence[Message] | None = None,
                   tools: Sequence[Mapping[str, Any]] | None = None, name: str | None = None) -> dict[str, Any]:
        """Pins what prompts begin with, a text or ids, or conversations, `messages`; answers with the prefix when it is computed."""
        return self._wait(self._client.pin_prefix(prompt, messages=messages, tools=tools, name=name))

    def drop_prefix(self, name: str) -> dict[str, Any]:
        """Drops a pinned prefix, and gives what it was."""
        return self._wait(self._client.drop_prefix(name))

    def activity(self) -> dict[str, Any]:
        """The requests under way: the caller's own, for an administrator all."""
        return self._wait(self._client.activity())

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs that the daemon remembers."""
        return self._wait(self._client.jobs())

    def job(self, job: str) -> dict[str, Any]:
        """How far the job of this id is."""
        return self._wait(self._client.job(job))

    def start_job(self, kind: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Starts long work beside serving; the answer has its `id`."""
        return self._wait(self._client.start_job(kind, options))

    def cancel_job(self, job: str) -> dict[str, Any]:
        """Ends the job of this id at the next chance."""
        return self._wait(self._client.cancel_job(job))

    def update(self) -> dict[str, Any]:
        """What updates of tables over the air brought: the one in force, the one before, the one on trial."""
        return self._wait(self._client.update())

    def apply_update(self, bundle: str | os.PathLike[str] | bytes, *, relax_expiry: bool = False) -> dict[str, Any]:
        """Has a bundle verified and put on trial, and answers when the trial begins: an archive's bytes, or a path that the daemon can read."""
        return self._wait(self._client.apply_update(bundle, relax_expiry=relax_expiry))

    def roll_back_update(self) -> dict[str, Any]:
        """Ends the trial of an update, or goes back to the update before, or to none."""
        return self._wait(self._client.roll_back_update())

    def drain(self) -> None:
        """Lets running requests finish and takes no new ones; answers when nothing runs."""
        self._wait(self._client.drain())


class BlockingGeneration:
    """One request, read once by one thread: an iterator of events, `text()`, or `answer()`. `close` cancels it, from any thread.

    So does dropping it, which in CPython a loop left early does at once.
    """

    def __init__(self, client: Client, generation: Generation) -> None:
        self._client = client
        self._generation = generation

    def __iter__(self) -> Iterator[Event]:
        aiter(self._generation)
        return self

    def __next__(self) -> Event:
        # A StopAsyncIteration may not leave a coroutine, so that the end is told by None.
        event = self._client._wait(_next_or_none(self._generation))
        if event is None:
            raise StopIteration
        return event

    def text(self) -> Iterator[str]:
        """The pieces of text; an early end of the answer raises its error."""
        with self:
            for event in self:
                if isinstance(event, Text):
                    yield event.text
                elif isinstance(event, Finished) and event.error is not None:
                    raise event.error

    def answer(self) -> Answer:
        """The whole answer. An early end raises its error, with the `text` so far and the `usage`, as far as known, in its `details`."""
        return self._client._wait(self._generation.answer())

    def close(self) -> None:
        """Cancels the request, if it still runs."""
        self._client._cancel(self._generation)

    def __enter__(self) -> BlockingGeneration:
        self._client._wait(self._generation.start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


async def _next_or_none(generation: Generation) -> Event | None:
    try:
        return await generation.__anext__()
    except StopAsyncIteration:
        return None
