"""The package against a daemon made of canned bytes:  python -m unittest discover client/python/tests"""

import asyncio
import contextlib
import gc
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from fake import HELLO, Fake, answer, sse

import skipd


@contextlib.contextmanager
def by_references_alone(test):
    """Without the collector, and where no finalizer may fail."""
    failed, hook = [], sys.unraisablehook
    sys.unraisablehook = lambda what: failed.append(str(what.exc_value))
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
        sys.unraisablehook = hook
    test.assertEqual(failed, [])


class Streams(unittest.IsolatedAsyncioTestCase):
    async def test_a_chat_streams_text_and_then_one_terminal_event(self):
        async with Fake(sse(HELLO)) as fake:
            events = [event async for event in skipd.AsyncClient(fake.path).chat("hi", max_tokens=64, deadline=2.5, logprobs=2)]
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        self.assertEqual(events, [skipd.Text("Hel"), skipd.Text("lö"), skipd.Finished("stop", usage)])
        self.assertEqual(fake.requests, [("POST /v1/chat/completions HTTP/1.1", {
            "messages": [{"role": "user", "content": "hi"}], "model": "default", "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": 64, "logprobs": True, "top_logprobs": 2, "skipd": {"deadline_ms": 2500}})])

    async def test_awaiting_gives_the_whole_answer_wherever_reads_split(self):
        whole = b"".join(sse(HELLO))
        for step in (5, 64, len(whole)):
            async with Fake([whole[i:i + step] for i in range(0, len(whole), step)]) as fake:
                got = await skipd.AsyncClient(fake.path).complete([1, 2, 3])
                self.assertEqual((got.text, got.reason, got.usage["total_tokens"]), ("Hellö", "stop", 5))
                self.assertEqual(fake.requests[0][1]["prompt"], [1, 2, 3])

    async def test_calls_of_functions_are_put_together(self):
        def piece(call):
            return json.dumps({"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": None}]})
        events = [piece({"index": 0, "id": "c1", "function": {"name": "drive", "arguments": ""}}),
                  piece({"index": 0, "function": {"arguments": '{"speed":'}}), piece({"index": 0, "function": {"arguments": "3}"}}),
                  '{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}', "[DONE]"]
        async with Fake(sse(events)) as fake:
            got = await skipd.AsyncClient(fake.path).chat("go")
        self.assertEqual(got.tool_calls, [{"id": "c1", "type": "function", "function": {"name": "drive", "arguments": '{"speed":3}'}}])

    async def test_a_stream_that_breaks_off_raises_once(self):
        async with Fake(sse(HELLO)[:3]) as fake:
            events = skipd.AsyncClient(fake.path).chat("hi")
            self.assertEqual(await anext(events), skipd.Text("Hel"))
            with self.assertRaises(skipd.Disconnected):
                await anext(events)
            with self.assertRaises(StopAsyncIteration):
                await anext(events)

    async def test_an_early_end_is_an_event_with_its_error_and_raises_from_an_answer(self):
        error = {"message": "40 ms passed", "code": "deadline_exceeded", "details": {"usage": {"total_tokens": 4}}}
        async with Fake(sse(HELLO[:2] + [json.dumps({"error": error})])) as fake:
            client = skipd.AsyncClient(fake.path)
            *_, last = [event async for event in client.chat("hi")]
            self.assertEqual((last.reason, last.usage), ("deadline", {"total_tokens": 4}))
            self.assertIsInstance(last.error, skipd.Deadline)
            with self.assertRaises(skipd.Deadline) as caught:
                await client.chat("hi")
            self.assertEqual(caught.exception.details, {"usage": {"total_tokens": 4}, "text": "Hel"})

    async def test_a_request_is_read_once(self):
        async with Fake(sse(HELLO)) as fake:
            client = skipd.AsyncClient(fake.path)
            read = client.chat("hi")
            self.assertEqual((await read).text, "Hellö")
            begun = client.chat("hi")
            await anext(begun)
            for again in (read.answer, read.start, lambda: anext(read.text()), begun.answer):
                with self.assertRaisesRegex(skipd.InvalidRequest, "one call of chat.. or complete.. is one request"):
                    await again()
            with self.assertRaises(skipd.InvalidRequest):
                aiter(read)
            with self.assertRaises(StopAsyncIteration):
                await anext(read)
            both = await asyncio.gather(*(anext(begun) for _ in range(2)), return_exceptions=True)
            self.assertEqual((both[0], str(both[1])), (skipd.Text("lö"), "another task reads this request"))

    async def test_what_is_not_the_protocol_is_an_error(self):
        for pieces in ([b"SSH-2.0-OpenSSH\r\n\r\n"], sse(["[DONE]"]), sse(["{"]), sse(["[]"])):
            async with Fake(pieces) as fake:
                with self.assertRaises(skipd.ProtocolError):
                    await skipd.AsyncClient(fake.path).chat("hi")


class Errors(unittest.IsolatedAsyncioTestCase):
    async def test_a_refusal_is_its_class_with_field_and_numbers(self):
        body = {"error": {"message": "9 tokens", "param": "messages", "code": "context_length_exceeded", "details": {"prompt": 9}}}
        async with Fake(answer(400, json.dumps(body)), answer(503, ""), answer(400, '{"error": {"message": "x", "code": "new"}}')) as fake:
            client = skipd.AsyncClient(fake.path)
            with self.assertRaises(skipd.ContextOverflow) as caught:
                await client.chat("hi")
            self.assertEqual((caught.exception.param, caught.exception.details, str(caught.exception)),
                             ("messages", {"prompt": 9}, "messages: 9 tokens"))
            with self.assertRaises(skipd.NotReady):
                await client.status()
            with self.assertRaises(skipd.InvalidRequest) as caught:
                await client.status()
            self.assertEqual(caught.exception.code, "new")

    async def test_an_absent_daemon_is_unreachable_and_its_path_named(self):
        with self.assertRaisesRegex(skipd.Unreachable, "/nonexistent/s"):
            await skipd.AsyncClient("/nonexistent/s").status()

    async def test_a_misspelt_option_is_a_type_error(self):
        with self.assertRaisesRegex(TypeError, "max_tokns"):
            skipd.AsyncClient("/nonexistent/s").chat("hi", max_tokns=3)

    def test_a_value_that_is_none_is_an_error_that_names_the_option(self):
        client = skipd.AsyncClient("/nonexistent/s")
        for options, param in [
            ({"temperature": float("nan")}, "temperature"), ({"top_p": float("inf")}, "top_p"), ({"stop": ["\ud83d"]}, "stop"),
            ({"response_format": {1, 2}}, "response_format"), ({"tables": {"prefill": [[1, float("nan")]]}}, "tables"),
            ({"deadline": "5s"}, "deadline"), ({"deadline": float("nan")}, "deadline"), ({"deadline": float("inf")}, "deadline"),
            ({"deadline": 0}, "deadline"), ({"deadline": -1.5}, "deadline"), ({"deadline": True}, "deadline"),
            ({"extra": {"stream": False}}, "extra"), ({"extra": {"x": float("nan")}}, "extra"), ({"extra": 3}, "extra"),
            ({"extra": {"skipd": 3}}, "extra.skipd"),
        ]:
            with self.subTest(options), self.assertRaisesRegex(skipd.InvalidRequest, param) as caught:
                client.chat("hi", **options)
            self.assertEqual(caught.exception.param, param)
        for work, param in [(lambda: client.chat("\udc80"), "messages"), (lambda: client.complete("\udc80"), "prompt"),
                            (lambda: skipd.AsyncClient("s", timeout=0), "timeout")]:
            with self.assertRaises(skipd.InvalidRequest) as caught:
                work()
            self.assertEqual(caught.exception.param, param)

    async def test_options_that_are_none_are_left_out_and_logprobs_may_be_a_bool(self):
        async with Fake(sse(HELLO)) as fake:
            client = skipd.AsyncClient(fake.path)
            await client.chat("hi", deadline=None, temperature=None, priority=None, logprobs=None, extra={"skipd": None})
            await client.chat("hi", logprobs=False)
            await client.chat("hi", logprobs=True)
            await client.complete("hi", logprobs=True)
            bare, off, on, plain = [body for _, body in fake.requests]
        self.assertEqual(bare.keys(), {"messages", "model", "stream", "stream_options"})
        self.assertNotIn("logprobs", off)
        self.assertEqual((on["logprobs"], on["top_logprobs"], plain["logprobs"]), (True, 0, 0))

    async def test_what_goes_into_a_path_or_a_body_is_checked_first(self):
        async with Fake(answer(200, "{}")) as fake:
            client = skipd.AsyncClient(fake.path)
            for work, param in [(client.set_table("decode HTTP/1.1\r\nx: ", "50%"), "phase"), (client.tokenize("\udc80"), "text"),
                                (client.set_table("decode", "50%", confirm_within=float("nan")), "confirm_within")]:
                with self.assertRaises(skipd.InvalidRequest) as caught:
                    await work
                self.assertEqual(caught.exception.param, param)
            self.assertEqual(fake.requests, [])

    def test_codes_are_those_of_the_protocol(self):
        source = (pathlib.Path(__file__).parents[2] / "src/protocol/error.rs").read_text()
        codes = {line.split('"')[5] for line in source.splitlines() if "=> m(" in line and line.count('"') == 6}
        codes |= {line.split('"')[3] for line in source.splitlines() if "=> m(" in line and line.count('"') == 4}
        self.assertEqual({kind.code for kind in skipd.SkipdError.__subclasses__()}, codes)


class Cancelling(unittest.IsolatedAsyncioTestCase):
    async def test_cancelling_the_reading_task_hangs_up(self):
        for pieces in (3, 1, 0):
            async with Fake(sse(HELLO)[:pieces], hold=True) as fake:
                task = asyncio.ensure_future(skipd.AsyncClient(fake.path).chat("hi").answer())
                await asyncio.sleep(0.05)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await asyncio.wait_for(fake.gone.wait(), 5)

    async def test_leaving_an_async_with_hangs_up(self):
        async with Fake(sse(HELLO)[:3], hold=True) as fake:
            async with skipd.AsyncClient(fake.path).chat("hi") as events:
                async for _ in events:
                    break
            await asyncio.wait_for(fake.gone.wait(), 5)

    async def test_a_timeout_hangs_up(self):
        async with Fake(sse(HELLO)[:2], hold=True) as fake:
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(skipd.AsyncClient(fake.path).chat("hi").answer(), 0.05)
            await asyncio.wait_for(fake.gone.wait(), 5)


    async def test_a_loop_left_early_hangs_up_at_once(self):
        async def events(client):
            async for _ in client.chat("hi"):
                break

        async def text(client):
            async for _ in client.chat("hi").text():
                break

        for leave in (events, text):
            async with Fake(sse(HELLO)[:3], hold=True) as fake:
                with by_references_alone(self):
                    await leave(skipd.AsyncClient(fake.path))
                    await asyncio.wait_for(fake.gone.wait(), 5)

    async def test_closing_while_the_daemon_has_not_answered_hangs_up(self):
        async with Fake([], hold=True) as fake:
            running = skipd.AsyncClient(fake.path).chat("hi")
            reading = asyncio.ensure_future(running.answer())
            await asyncio.sleep(0.05)
            await running.aclose()
            with self.assertRaises(skipd.Cancelled):
                await reading
            await asyncio.wait_for(fake.gone.wait(), 5)


class Limits(unittest.IsolatedAsyncioTestCase):
    async def test_a_silent_daemon_is_not_waited_for(self):
        async with Fake([], hold=True) as fake:
            begun = time.monotonic()
            with self.assertRaisesRegex(skipd.Unreachable, "within 0.1 s"):
                await skipd.AsyncClient(fake.path, timeout=0.1).status()
            with self.assertRaises(skipd.Unreachable):
                await skipd.AsyncClient(fake.path).wait_ready(0.1)
            self.assertLess(time.monotonic() - begun, 5)

    async def test_a_daemon_that_starts_later_is_waited_for(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, XDG_RUNTIME_DIR=folder, SKIPD_SOCKET=""):
            client = skipd.AsyncClient()
            with self.assertRaises(skipd.Unreachable):
                await client.wait_ready(0.1)
            waiting = asyncio.ensure_future(client.wait_ready(10))
            await asyncio.sleep(0.1)
            self.assertFalse(waiting.done())
            loading = answer(503, '{"state": "loading", "progress": 0.5, "reason": ""}')
            async with Fake(loading, answer(200, '{"state": "ready"}')) as fake:
                os.symlink(fake.path, os.path.join(folder, "skipd.sock"))
                await waiting
                self.assertEqual(len(fake.requests), 2)

    async def test_a_deadline_holds_where_the_daemon_is_silent(self):
        for pieces, details in ((2, {"text": "Hel"}), (0, {})):
            async with Fake(sse(HELLO[1:])[:pieces], hold=True) as fake:
                with mock.patch("skipd._client._GRACE", 0.1), self.assertRaises(skipd.Deadline) as caught:
                    await skipd.AsyncClient(fake.path).chat("hi", deadline=0.05)
                self.assertEqual(caught.exception.details, details)
                await asyncio.wait_for(fake.gone.wait(), 5)


class Blocking(unittest.IsolatedAsyncioTestCase):
    async def test_it_answers_iterates_and_raises(self):
        def work(path):
            with skipd.Client(path) as client:
                self.assertEqual(client.chat("hi").answer().text, "Hellö")
                self.assertEqual(list(client.chat("hi").text()), ["Hel", "lö"])
                events = list(client.chat("hi"))
                self.assertEqual((len(events), events[-1].reason), (3, "stop"))
                with self.assertRaises(skipd.Busy):
                    client.chat("hi").answer()
        async with Fake(sse(HELLO), sse(HELLO), sse(HELLO), answer(429, "")) as fake:
            await asyncio.to_thread(work, fake.path)

    async def test_another_thread_cancels(self):
        def work(path):
            with skipd.Client(path) as client:
                running = client.chat("hi")
                next(running)
                threading.Timer(0.05, running.close).start()
                with self.assertRaises(skipd.Cancelled):
                    next(running)
                with self.assertRaises(StopIteration):
                    next(running)
        async with Fake(sse(HELLO)[:3], hold=True) as fake:
            await asyncio.to_thread(work, fake.path)
            await asyncio.wait_for(fake.gone.wait(), 5)

    async def test_closing_the_client_cancels_what_runs(self):
        async with Fake(sse(HELLO)[:3], hold=True) as fake:
            client = skipd.Client(fake.path)
            waiting = asyncio.ensure_future(asyncio.to_thread(lambda: list(client.chat("hi"))))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(client.close)
            with self.assertRaisesRegex(skipd.Cancelled, "client was closed"):
                await waiting
            await asyncio.wait_for(fake.gone.wait(), 5)

    async def test_closing_the_client_cancels_what_nobody_reads_and_later_calls_say_so(self):
        async with Fake(sse(HELLO)[:3], hold=True) as fake:
            with by_references_alone(self):
                client = skipd.Client(fake.path)
                idle = client.chat("hi")
                await asyncio.to_thread(next, idle)
                await asyncio.to_thread(client.close)
                await asyncio.wait_for(fake.gone.wait(), 5)
                for work in (lambda: next(idle), client.status, client.chat("hi").answer):
                    with self.assertRaisesRegex(skipd.Cancelled, "client is closed"):
                        work()
                idle.close()
                client.close()
                del idle

    async def test_a_loop_left_early_hangs_up_at_once(self):
        def events(client):
            for _ in client.chat("hi"):
                break

        def text(client):
            for _ in client.chat("hi").text():
                break

        for leave in (events, text):
            async with Fake(sse(HELLO)[:3], hold=True) as fake:
                client = skipd.Client(fake.path)
                with by_references_alone(self):
                    await asyncio.to_thread(leave, client)
                    await asyncio.wait_for(fake.gone.wait(), 5)
                await asyncio.to_thread(client.close)


if __name__ == "__main__":
    unittest.main()
