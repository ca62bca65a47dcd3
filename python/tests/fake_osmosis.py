"""Stands in for `osmosis serve --attach`: the seam of SERVE_PROTOCOL.md, without an engine.

Run as a program. `POST /rollout` runs and grades one rollout at the attached worker and answers
with what came of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from osmosis_ai.worker.frames import (
    Cancel,
    Grade,
    GradeDone,
    Hello,
    Load,
    Loaded,
    Refused,
    Run,
    RunDone,
    Started,
    Welcome,
    decode_body,
    encode,
)


def note(text: str) -> None:
    """Tells a test what happened here."""
    log = os.environ.get("FAKE_OSMOSIS_LOG")
    if log:
        with Path(log).open("a") as file:
            file.write(text + "\n")


class Fake:
    def __init__(self) -> None:
        self.token = os.environ.pop("OSMOSIS_SERVE_TOKEN")
        self.numbers = itertools.count(1)
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self.running: dict[str, int] = {}
        self.loaded: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self.stop = asyncio.Event()
        self.busy = 0

    async def worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await self.frame(reader)
        assert isinstance(hello, Hello)
        if hello.token != self.token or os.environ.get("FAKE_OSMOSIS_REFUSE"):
            writer.write(encode(Refused("the token is not known")))
            return
        assert hello.features == ["attached"]
        self.send = lambda frame: writer.write(encode(frame))
        self.send(Welcome(1))
        self.send(Load("", "", "{}", "{}"))
        while True:
            frame = await self.frame(reader)
            if isinstance(frame, Loaded):
                self.loaded.set_result(frame)
            elif not isinstance(frame, Started):
                self.answers.pop(frame.task).set_result(frame)

    @staticmethod
    async def frame(reader: asyncio.StreamReader) -> Any:
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        return decode_body(await reader.readexactly(length))

    async def ask(self, kind: Any, **fields: Any) -> Any:
        number = next(self.numbers)
        self.running[fields["rollout_id"]] = number
        self.answers[number] = asyncio.get_running_loop().create_future()
        answer = self.answers[number]
        self.send(kind(task=number, **fields))
        return await answer

    async def rollout(self, asked: dict[str, Any]) -> dict[str, Any]:
        rollout_id = asked["rollout_id"]
        metadata = asked.get("metadata")
        metadata = None if metadata is None else json.dumps(metadata)
        ran = await self.ask(
            Run,
            rollout_id=rollout_id,
            prompt=json.dumps(asked["initial_messages"]),
            metadata=metadata,
            chat_completions_url=asked["chat_completions_url"],
            api_key="rollout-key",
            artifacts_dir=asked.get("artifacts_dir"),
        )
        if not isinstance(ran, RunDone):
            return {"run": _shown(ran)}
        if asked.get("ungraded"):
            self.send(Cancel(ran.task))
            return {"run": _shown(ran)}
        graded = await self.ask(
            Grade,
            rollout_id=rollout_id,
            label=asked.get("label"),
            samples=ran.samples,
            metadata=metadata,
            artifacts_dir=asked.get("artifacts_dir"),
            project_path="",
        )
        rewards = None
        if isinstance(graded, GradeDone):
            rewards = {sample.id: sample.reward for sample in graded.samples}
        return {"run": _shown(ran), "grade": _shown(graded), "rewards": rewards}

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.busy += 1
        try:
            await self.answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            note("request broke off")
        finally:
            self.busy -= 1
            writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        if headers.get("x-osmosis-serve-token") != self.token:
            return await reply(writer, 401, {"detail": "past the façade"})
        if target == "/refuse":
            return await reply(writer, 413, {"error": "too large"})
        if target == "/garbage":
            writer.write(b"what?\r\n\r\n")
            return None
        body = await read_body(reader, headers)
        if target == "/die":
            os._exit(7)
        if target == "/chunks":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-a: 1\r\n\r\n")
            for piece in (b"one", b"two" * 100_000):
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
            return writer.write(b"0\r\n\r\n")
        if target == "/health":
            return await reply(writer, 200, {"status": "ok"})
        if target == "/manifest":
            return await reply(writer, 200, _shown((await self.loaded).manifest))
        if target == "/rollout":
            return await reply(writer, 200, await self.rollout(json.loads(body)))
        if target.startswith("/cancel/"):
            self.send(Cancel(self.running[target.removeprefix("/cancel/")]))
            return await reply(writer, 200, {})
        said = {"method": method, "target": target, "headers": headers, "bytes": len(body)}
        return await reply(writer, 200, said)


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        return body
    return await reader.readexactly(int(headers.get("content-length", 0)))


async def reply(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


def _shown(frame: Any) -> Any:
    return json.loads(json.dumps(frame, default=lambda o: {"type": type(o).__name__, **vars(o)}))


async def main() -> None:
    expected = ["serve", "--attach", "--listen", "127.0.0.1:0", "--json", "--name"]
    assert sys.argv[1:-1] == expected, sys.argv
    note(f"started {os.getpid()} {sys.argv[-1]}")
    if os.environ.get("FAKE_OSMOSIS_FAIL"):
        raise SystemExit(2)
    fake = Fake()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, fake.stop.set)
    socket_path = f"{tempfile.mkdtemp()}/worker.sock"
    workers = await asyncio.start_unix_server(fake.worker, socket_path, limit=2**27)
    server = await asyncio.start_server(fake.http, "127.0.0.1", 0, limit=2**27)
    port = server.sockets[0].getsockname()[1]
    resource = {"url": f"http://127.0.0.1:{port}", "worker_address": f"unix:{socket_path}"}
    envelope = {"schema_version": 1, "status": "ok", "operation": "serve", "resource": resource}
    print(json.dumps(envelope), flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    stdin_closed = asyncio.ensure_future(reader.read())
    stopped = asyncio.ensure_future(fake.stop.wait())
    await asyncio.wait({stdin_closed, stopped}, return_when=asyncio.FIRST_COMPLETED)
    note("drains" if stopped.done() else "parent gone")
    server.close()
    while fake.busy and not stdin_closed.done():
        await asyncio.sleep(0.01)
    workers.close()
    note("left")
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
