#!/usr/bin/env python3
"""A robot that asks about its sensor log, and changes its mind when something new happens.

    PYTHONPATH=client/python examples/robot/robot.py [--socket PATH] [--lines N] [--deadline SECONDS]

It asks why it stopped, with the whole log as the prompt. A new event cancels the answer (the daemon ends the request at its next step) and
asks again. Whatever is not said before its deadline is not waited for: the robot then acts by a rule of its own.
"""

import argparse
import asyncio

import skipd

SYSTEM = "You are the diagnostics of a warehouse robot. Answer in one short sentence."


def sensor_log(lines: int) -> str:
    """A log of a drive: odometry, range finders, currents."""
    rows = []
    for i in range(lines):
        stop = i == lines - 1
        rows.append(f"t={i * 0.1:.1f}s x={i * 0.05:.2f} front={2.4 - i % 23 / 10:.2f}m left_motor={1.2 + i % 7 / 10:.1f}A"
                    + (" bumper=PRESSED" if stop else ""))
    return "\n".join(rows)


async def explain(client: skipd.AsyncClient, log: str, event: str, speaking: asyncio.Event, deadline: float) -> skipd.Finished:
    """Says what it makes of the event, as it comes; gives the terminal event."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{log}\n\nEvent: {event}. What should the robot do?"}]
    async with client.chat(messages, max_tokens=48, temperature=0.0, deadline=deadline, priority="interactive") as events:
        async for piece in events:
            if isinstance(piece, skipd.Text):
                speaking.set()
                print(piece.text, end="", flush=True)
            elif isinstance(piece, skipd.Finished):
                print(flush=True)
                return piece
    raise RuntimeError("a stream ends with a terminal event")


async def drive(client: skipd.AsyncClient, log: str, deadline: float) -> None:
    """Answers events until none is newer than the answer."""
    speaking: asyncio.Event = asyncio.Event()
    events: asyncio.Queue[str] = asyncio.Queue()
    await events.put("front bumper pressed")

    async def surprise() -> None:
        # What another node would publish: here, in the middle of the first answer.
        await speaking.wait()
        await events.put("battery at 4 percent")

    surprising = asyncio.create_task(surprise())
    event = await events.get()
    while True:
        print(f"[event] {event}")
        answering = asyncio.create_task(explain(client, log, event, speaking, deadline))
        newer = asyncio.create_task(events.get())
        await asyncio.wait({answering, newer}, return_when=asyncio.FIRST_COMPLETED)
        if newer.done() and not answering.done():
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            print("\n[robot] something new: the answer is cancelled")
            event = newer.result()
            continue
        newer.cancel()
        report(await answering)
        await surprising
        return


def report(end: skipd.Finished) -> None:
    """How the answer ended and what attention left out."""
    if end.error is not None:
        print(f"[robot] no answer in time ({end.reason}): stopping by rule")
        return
    prefill, timings = end.usage["skipd"]["prefill"], end.usage["skipd"]["timings_ms"]
    share = prefill["skipped"] / prefill["votes"] if prefill["votes"] else 0.0
    print(f"[robot] {end.reason}: {end.usage['prompt_tokens']} prompt tokens, first token after "
          f"{timings['queue'] + timings['prefill']:.0f} ms, {share:.0%} of tiles skipped")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--socket", help="the daemon's socket (default: found as skipctl finds it)")
    parser.add_argument("--lines", type=int, default=100, help="lines of the log, about 29 tokens each")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds an answer may take")
    options = parser.parse_args()

    client = skipd.AsyncClient(options.socket)
    await client.wait_ready()
    log = sensor_log(options.lines)
    try:
        await drive(client, log, options.deadline)
    except skipd.ContextOverflow as error:
        print(f"[robot] the log is too long for the model ({error}): fewer --lines")
        return

    # A control loop cannot wait: a deadline that no model keeps.
    print("[event] obstacle ahead")
    report(await explain(client, log, "obstacle ahead", asyncio.Event(), 0.02))


asyncio.run(main())
