"""A daemon made of canned bytes."""

import asyncio
import contextlib
import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

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

    def __init__(self, *scripts, hold=False, folder=None, pause=0.001):
        self.scripts, self.hold, self.folder, self.pause = scripts, hold, folder, pause
        self.requests, self.gone, self.tasks = [], asyncio.Event(), []

    async def __aenter__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder or self.temporary.name, "s")
        self.server = await asyncio.start_unix_server(self.serve, self.path)
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await asyncio.wait_for(asyncio.gather(*self.tasks), 5)
        self.temporary.cleanup()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    async def serve(self, reader, writer):
        self.tasks.append(asyncio.current_task())
        try:
            await self.talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def talk(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length) or b"null"
        with contextlib.suppress(ValueError):
            body = json.loads(body)
        self.requests.append((head.split(b"\r\n")[0].decode(), body))
        for piece in self.scripts[min(len(self.requests), len(self.scripts)) - 1]:
            writer.write(piece)
            await asyncio.sleep(self.pause)
        if self.hold:
            try:
                await reader.read(1)
            except ConnectionError:
                pass
            self.gone.set()
