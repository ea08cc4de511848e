"""The skipd package against the real daemon:  python_client.py SOCKET"""
import asyncio
import os
import pathlib
import signal
import socket
import struct
import sys
import threading
import time

import skipd

QUESTION = "What is the capital of France?"


async def until(what, probe):
    for _ in range(1000):
        if await probe():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within ten seconds: {what}")


async def running(client):
    return (await client.status())["queue"]["running"]


async def begun_and_ended(client, work, begun=True):
    """Waits until the daemon runs a request, lets `work` go away, and waits until the daemon has ended it: long before its 4000 tokens."""
    if begun:
        await until("it runs", lambda: _is(running(client), 1))
    await work()
    await until("the daemon has ended it", lambda: _is(running(client), 0))
    cache = (await client.status())["cache"]
    assert cache["free"] == cache["pages"], cache


async def asynchronous(path):
    client = skipd.AsyncClient(path)
    await client.wait_ready(60)
    status = await client.status()
    assert status["state"] == "ready" and status["model"]["layers"] == 30, status
    assert (await client.models())[0]["id"] == "smollm2"

    whole = await client.chat(QUESTION, max_tokens=24, temperature=0.0)
    assert "Paris" in whole.text and whole.usage["skipd"]["prefill"]["votes"] == 0, whole
    pieces = [piece async for piece in client.chat([{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0.0).text()]
    assert len(pieces) > 3 and "".join(pieces) == whole.text, pieces

    ids = await client.tokenize("The capital of France is")
    by_ids, by_text = await asyncio.gather(client.complete(ids, max_tokens=6, temperature=0.0),
                                           client.complete("The capital of France is", max_tokens=6, temperature=0.0))
    assert by_ids.text == by_text.text and by_ids.usage["prompt_tokens"] == len(ids)
    logged = await client.chat(QUESTION, max_tokens=2, temperature=0.0, logprobs=2)
    assert len(logged.logprobs) >= 1, logged

    for work, kind, param in [
        (client.complete(ids, max_tokens=9000), skipd.ContextOverflow, None),
        (client.chat(QUESTION, temperature=-1.0), skipd.InvalidRequest, "temperature"),
        (client.chat(QUESTION, model="gpt-9"), skipd.ModelNotFound, "model"),
        (client.chat([]), skipd.InvalidRequest, "messages"),
        (client.set_table("prefill", "99%"), skipd.TableRefused, "selector"),
        (client.confirm(), skipd.NothingPending, None),
    ]:
        try:
            await work
            raise AssertionError(f"no {kind.__name__}")
        except kind as error:
            assert param is None or error.param == param, (error, error.param)
            assert kind is not skipd.ContextOverflow or error.details["context_length"] == 8192, error.details

    # A task that is cancelled, a task that times out, a loop that is left: the daemon ends each request.
    long = {"max_tokens": 4000, "ignore_eos": True}
    task = asyncio.create_task(client.complete("Once upon a time", **long).answer())

    async def cancel():
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
    await begun_and_ended(client, cancel)

    timed = asyncio.create_task(asyncio.wait_for(client.complete("Once upon a time", **long).answer(), 1.5))

    async def time_out():
        assert isinstance((await asyncio.gather(timed, return_exceptions=True))[0], asyncio.TimeoutError)
    await begun_and_ended(client, time_out)

    events = client.complete("Once upon a time", **long)

    async def leave():
        async with events:
            async for event in events:
                assert isinstance(event, skipd.Text), event
                break
    await events.start()
    await begun_and_ended(client, leave)

    for leave_early in (leave_events, leave_text):
        await leave_early(client, long)
        await begun_and_ended(client, lambda: asyncio.sleep(0), begun=False)

    *_, last = [event async for event in client.complete("Once upon a time", deadline=0.2, **long)]
    assert last.reason == "deadline" and isinstance(last.error, skipd.Deadline) and last.usage["prompt_tokens"] > 0, last
    try:
        await client.complete("Once upon a time", deadline=1.0, **long)
        raise AssertionError("no deadline")
    except skipd.Deadline as error:
        assert error.details["text"] and error.details["usage"]["completion_tokens"] > 0, error.details
    assert (await client.chat(QUESTION, max_tokens=2, logprobs=True)).logprobs
    assert (await client.complete("Once", max_tokens=2, logprobs=True)).logprobs
    await hung(path)

    table = await client.set_table("prefill", [[64, 50]], confirm_within=60)
    assert table["rows"] == [[64, 50.0]] and table["pending"], table
    skipping = await client.complete("The arm moved. " * 150, max_tokens=2)
    prefill = skipping.usage["skipd"]["prefill"]
    assert 0 < prefill["skipped"] < prefill["votes"], prefill
    await client.revert()
    assert (await client.tables())["prefill"]["rows"] is None
    assert "50%" in str(await client.tiers())

    shown = await client.update()
    assert shown["active"] is None and shown["floor"] == 0, shown
    for bundle, check in (("/nonexistent/bundle.tar", "io"), (b"no archive", "archive")):
        try:
            await client.apply_update(bundle)
            raise AssertionError("taken")
        except (skipd.TableRefused, skipd.Internal) as error:
            assert error.details["check"] == check, error.details
    try:
        await client.roll_back_update()
        raise AssertionError("there was nothing to leave")
    except skipd.NothingPending:
        pass


async def leave_events(client, options):
    async for _ in client.complete("Once upon a time", **options):
        break


async def leave_text(client, options):
    async for _ in client.complete("Once upon a time", **options).text():
        break


async def stopped(daemon):
    states = [stat.read_text().rsplit(")", 1)[1].split()[0] for stat in pathlib.Path(f"/proc/{daemon}/task").glob("*/stat")]
    return set(states) == {"T"}


async def hung(path):
    """A daemon that hangs is given up in time, and serves again when it goes on."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
        daemon, *_ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    os.kill(daemon, signal.SIGSTOP)
    began = time.monotonic()
    try:
        await until("all its threads have stopped", lambda: stopped(daemon))
        for work in (lambda: skipd.AsyncClient(path).wait_ready(0.3), skipd.AsyncClient(path, timeout=0.3).tables):
            try:
                await work()
                raise AssertionError("a stopped process has answered")
            except skipd.Unreachable:
                pass
        assert time.monotonic() - began < 5
    finally:
        os.kill(daemon, signal.SIGCONT)
    await skipd.AsyncClient(path).wait_ready(10)


async def _is(value, expected):
    return await value == expected


def synchronous(path):
    with skipd.Client(path) as client:
        client.wait_ready()
        assert "Paris" in client.chat(QUESTION, max_tokens=24, temperature=0.0).answer().text
        assert len(list(client.chat(QUESTION, max_tokens=8, temperature=0.0).text())) > 3
        try:
            client.confirm()
            raise AssertionError("nothing was pending")
        except skipd.NothingPending:
            pass
        long = client.complete("Once upon a time", max_tokens=4000, ignore_eos=True)
        next(long)
        threading.Timer(0.1, long.close).start()
        try:
            for _ in long:
                pass
            raise AssertionError("a closed request went on")
        except skipd.Cancelled:
            pass

        # A loop that is left, and a client that is closed while nobody reads: the daemon ends both requests.
        for _ in client.complete("Once upon a time", max_tokens=4000, ignore_eos=True):
            break
        asyncio.run(begun_and_ended(skipd.AsyncClient(path), lambda: asyncio.sleep(0), begun=False))
        idle = client.complete("Once upon a time", max_tokens=4000, ignore_eos=True)
        next(idle)
    asyncio.run(begun_and_ended(skipd.AsyncClient(path), lambda: asyncio.sleep(0), begun=False))
    for call in (lambda: next(idle), client.status):
        try:
            call()
            raise AssertionError("a closed client has answered")
        except skipd.Cancelled:
            pass


asyncio.run(asynchronous(sys.argv[1]))
synchronous(sys.argv[1])
print("all checks passed")
