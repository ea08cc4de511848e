"""The package against a daemon made of canned bytes:  python -m unittest discover client/python/tests"""

import asyncio
import json
import os
import pathlib
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import skipd

HELLO = [
    '{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
    '{"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}',
    '{"choices":[{"index":0,"delta":{"content":"lö"},"finish_reason":null}]}',
    '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}',
    "[DONE]",
]


def sse(events):
    """Pieces of a stream, one chunk an event."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    data = [f"data: {event}\n\n".encode() for event in events]
    return [head] + [f"{len(d):x}\r\n".encode() + d + b"\r\n" for d in data] + [b"0\r\n\r\n"]


def answer(status, body):
    return [f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()]


class Fake:
    """Answers the n-th request with the n-th script (the last one again and again), and tells when a client has gone."""

    def __init__(self, *scripts, hold=False):
        self.scripts, self.hold = scripts, hold
        self.requests, self.gone, self.tasks = [], asyncio.Event(), []

    async def __aenter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "s")
        self.server = await asyncio.start_unix_server(self.serve, self.path)
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await asyncio.wait_for(asyncio.gather(*self.tasks), 5)
        self.folder.cleanup()

    async def serve(self, reader, writer):
        self.tasks.append(asyncio.current_task())
        try:
            await self.talk(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def talk(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        self.requests.append((head.split(b"\r\n")[0].decode(), json.loads(await reader.readexactly(length) or b"null")))
        for piece in self.scripts[min(len(self.requests), len(self.scripts)) - 1]:
            writer.write(piece)
            await asyncio.sleep(0.001)
        if self.hold:
            try:
                await reader.read(1)
            except ConnectionError:
                pass
            self.gone.set()


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
            with self.assertRaises(skipd.Deadline):
                await client.chat("hi")

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
                self.assertEqual(list(running), [])
        async with Fake(sse(HELLO)[:3], hold=True) as fake:
            await asyncio.to_thread(work, fake.path)
            await asyncio.wait_for(fake.gone.wait(), 5)

    async def test_closing_the_client_cancels_what_runs(self):
        async with Fake(sse(HELLO)[:3], hold=True) as fake:
            client = skipd.Client(fake.path)
            waiting = asyncio.ensure_future(asyncio.to_thread(lambda: list(client.chat("hi"))))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(client.close)
            with self.assertRaises(BaseException):
                await waiting
            await asyncio.wait_for(fake.gone.wait(), 5)


if __name__ == "__main__":
    unittest.main()
