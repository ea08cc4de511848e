"""Prefixes and jobs of the skipd package, and a daemon that is killed and started again under its clients:  python_restart.py SOCKET

It says "asked", and waits for a line while somebody kills the daemon, says "cut", and waits for another daemon."""
import asyncio
import sys

import skipd

RULES = "".join(f"Rule {i}: stop before the line. " for i in range(60))


async def control(client):
    pinned = await client.pin_prefix(RULES, name="rules")
    assert pinned["name"] == "rules" and pinned["tokens"] >= 128 and pinned["pages"] == pinned["held"], pinned
    messages = [{"role": "system", "content": RULES}]
    talk, first = await asyncio.gather(client.pin_prefix(messages=messages), client.complete(RULES + "The first rule", max_tokens=2))
    assert first.usage["skipd"]["reused_tokens"] == pinned["tokens"], first.usage
    asked = await client.chat([*messages, {"role": "user", "content": "Which rule is the last?"}], max_tokens=2)
    assert asked.usage["skipd"]["reused_tokens"] == talk["tokens"], (asked.usage, talk)
    listed = await client.prefixes()
    assert {prefix["name"]: prefix["hits"] for prefix in listed["prefixes"]} == {"rules": 1, talk["name"]: 1}, listed
    await asyncio.gather(client.drop_prefix("rules"), client.drop_prefix(talk["name"]))
    assert (await client.prefixes())["prefixes"] == []
    await refused(client.drop_prefix("rules"), skipd.NotFound, "name")
    await refused(client.pin_prefix("short"), skipd.InvalidRequest, "prompt")

    # There is no device whose kernels could be tried: the job says so.
    job = await client.start_job("qualify")
    while job["state"] == "running":
        await asyncio.sleep(0.01)
        job = await client.job(job["id"])
    assert job["state"] == "failed" and job["error"] and await client.jobs() == [job], job
    assert (await client.cancel_job(job["id"]))["state"] == "failed"
    await refused(client.start_job("nonsense"), skipd.InvalidRequest, "kind")
    assert (await client.activity())["requests"] == []


async def refused(work, kind, param):
    try:
        await work
    except kind as error:
        assert error.param == param, (error, error.param)
    else:
        raise AssertionError(f"no {kind.__name__}")


async def over_a_restart(client, blocking):
    events = client.complete("Once upon a time", max_tokens=4000, ignore_eos=True)
    assert isinstance(await anext(events), skipd.Text)
    print("asked", flush=True)
    sys.stdin.readline()
    try:
        async for _ in events:
            pass
        raise AssertionError("a daemon that was killed went on")
    except skipd.Disconnected as error:
        assert error.away
    try:
        await client.status()
        raise AssertionError("nobody is there")
    except skipd.Unreachable as error:
        assert error.away
    print("cut", flush=True)
    await asyncio.gather(client.wait_ready(60), asyncio.to_thread(blocking.wait_ready, 60))
    assert (await client.complete("One, two,", max_tokens=4)).usage["completion_tokens"] == 4
    assert (await asyncio.to_thread(blocking.complete("One, two,", max_tokens=4).answer)).usage["completion_tokens"] == 4


async def main(path):
    client = skipd.AsyncClient(path)
    await client.wait_ready(60)
    await control(client)
    with skipd.Client(path) as blocking:
        blocking.status()
        await over_a_restart(client, blocking)

asyncio.run(main(sys.argv[1]))
print("all checks passed")
