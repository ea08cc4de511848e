"""Daemons that say nothing, and that are started again under a client that stays the same."""

import asyncio
import tempfile
import time
import unittest

from fake import HELLO, Fake, answer, sse

import skipd

READY = answer(200, '{"state": "ready"}')


class Silence(unittest.IsolatedAsyncioTestCase):
    async def test_no_call_waits_for_a_silent_daemon(self):
        async with Fake([], hold=True) as fake:
            client = skipd.AsyncClient(fake.path, timeout=0.05)
            begun = time.monotonic()
            for work in (client.status(), client.tables(), client.prefixes(), client.jobs(), client.tokenize("a"), client.pin_prefix("a"),
                         client.drain(), client.wait_ready(0.05), client.chat("hi").answer(), client.chat("hi", deadline=60).answer()):
                with self.assertRaisesRegex(skipd.Unreachable, "within 0.05 s") as caught:
                    await work
                self.assertTrue(caught.exception.away)
            self.assertLess(time.monotonic() - begun, 10)

    async def test_nor_does_a_thread_and_none_is_for_ever(self):
        def work(path):
            with skipd.Client(path, timeout=0.05) as client:
                for call in (client.status, client.prefixes, client.chat("hi").answer, client.chat("hi").__enter__):
                    with self.assertRaises(skipd.Unreachable):
                        call()
        async with Fake([], hold=True) as fake:
            await asyncio.to_thread(work, fake.path)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(skipd.AsyncClient(fake.path, timeout=None).status(), 0.3)

    async def test_a_stream_that_falls_silent_ends_once_nothing_else_is_answered_either(self):
        async with Held(sse(HELLO)[:3], READY, READY, []) as fake:
            events = skipd.AsyncClient(fake.path, timeout=0.4).chat("hi")
            self.assertEqual(await anext(events), skipd.Text("Hel"))
            begun = time.monotonic()
            with self.assertRaisesRegex(skipd.Unreachable, "within 0.4 s"):
                await anext(events)
            # Two looks were answered, the third was not.
            self.assertTrue(1.6 <= time.monotonic() - begun + 0.05 < 20)
            self.assertEqual([line for line, _ in fake.requests[1:]], ["GET /ready HTTP/1.1"] * 3)
            with self.assertRaises(StopAsyncIteration):
                await anext(events)

    async def test_a_pin_may_take_longer_than_an_answer(self):
        [whole] = answer(200, '{"name": "a", "tokens": 128}')
        # The head in pieces, a moment apart.
        async with Fake([whole[i:i + 1] for i in range(len(whole))], READY, pause=0.015) as fake:
            self.assertEqual((await skipd.AsyncClient(fake.path, timeout=0.4).pin_prefix("a"))["tokens"], 128)
            self.assertGreater(len(fake.requests), 1, "it took longer than the limit")


class Held(Fake):
    """Holds what is not READY."""

    async def talk(self, reader, writer):
        self.hold = self.scripts[min(len(self.requests) + 1, len(self.scripts)) - 1] is not READY
        await super().talk(reader, writer)


class Restarts(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_client_serves_again_after_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            async with Fake(sse(HELLO), sse(HELLO)[:3], folder=folder) as fake:
                client = skipd.AsyncClient(fake.path)
                self.assertEqual((await client.chat("hi")).text, "Hellö")
                with self.assertRaises(skipd.Disconnected) as cut:
                    await client.chat("hi")
                self.assertTrue(cut.exception.away)
            for work in (client.status(), client.wait_ready(0.1)):
                with self.assertRaises(skipd.Unreachable):
                    await work
            waiting = asyncio.ensure_future(client.wait_ready(10))
            await asyncio.sleep(0.1)
            self.assertFalse(waiting.done())
            full = answer(429, '{"error": {"message": "no room", "code": "busy"}}')
            states = [answer(503, f'{{"state": "{state}", "progress": 0.5}}') for state in ("draining", "loading")]
            async with Fake(states[0], full, states[1], READY, sse(HELLO), folder=folder) as again:
                await waiting
                self.assertEqual((await client.chat("hi")).text, "Hellö")
                self.assertEqual(len(again.requests), 5)

    async def test_a_blocking_client_does_so_too(self):
        with tempfile.TemporaryDirectory() as folder:
            async with Fake(sse(HELLO), folder=folder) as fake:
                client = skipd.Client(fake.path)
                self.assertEqual((await asyncio.to_thread(client.chat("hi").answer)).text, "Hellö")
            waiting = asyncio.ensure_future(asyncio.to_thread(client.wait_ready, 10))
            await asyncio.sleep(0.1)
            async with Fake(READY, sse(HELLO), folder=folder):
                await waiting
                self.assertEqual((await asyncio.to_thread(client.chat("hi").answer)).text, "Hellö")
            await asyncio.to_thread(client.close)

    async def test_a_daemon_that_only_drains_is_told_of_and_a_failed_one_at_once(self):
        async with Fake(answer(503, '{"state": "draining"}')) as fake:
            with self.assertRaises(skipd.Draining):
                await skipd.AsyncClient(fake.path).wait_ready(0.5)
        async with Fake(answer(503, '{"state": "failed", "reason": "no such file"}')) as fake:
            with self.assertRaisesRegex(skipd.NotReady, "no such file"):
                await skipd.AsyncClient(fake.path).wait_ready(60)


if __name__ == "__main__":
    unittest.main()
