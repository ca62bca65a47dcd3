"""A small engine: listens, starts real worker processes, talks frames, keeps what they print."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import struct
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from osmosis_ai.worker.frames import (
    Grade,
    Hello,
    Load,
    LoopBlocked,
    Refused,
    Run,
    Sample,
    Started,
    Welcome,
    decode_body,
    encode,
)

WORKER_MAIN = Path(__file__).parent.parent / "osmosis_ai" / "worker" / "__main__.py"
PATIENCE = 60.0

T = TypeVar("T")


async def read_frame(reader: asyncio.StreamReader) -> Any:
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    return decode_body(await reader.readexactly(length))


@dataclass
class Worker:
    """The engine's end of one worker's control connection."""

    hello: Hello
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    lines: list[str]
    line_arrived: asyncio.Event
    _held: list[Any] = field(default_factory=list)

    def send(self, frame: Any) -> None:
        self.writer.write(encode(frame))

    async def frame(self) -> Any:
        """The next frame, whatever it is."""
        return await asyncio.wait_for(read_frame(self.reader), PATIENCE)

    async def expect(self, kind: type[T], **fields: Any) -> T:
        """The next frame of the kind with these fields; others are kept for later."""
        for held in self._held:
            if _fits(held, kind, fields):
                self._held.remove(held)
                return held
        while True:
            frame = await self.frame()
            if _fits(frame, kind, fields):
                return frame
            self._held.append(frame)

    async def load(self, project: Path, entrypoint: str = "main.py", **overrides: Any) -> Any:
        self.send(
            Load(
                str(project),
                entrypoint,
                json.dumps(overrides.get("workflow", {})),
                json.dumps(overrides.get("grader", {})),
            )
        )
        return await self.frame()

    async def answer(self, frame: Run | Grade) -> Any:
        """Sends a task and waits for its end."""
        self.send(frame)
        assert await self.expect(Started, task=frame.task) == Started(frame.task)
        while True:
            for held in self._held:
                # A blocked loop is news of the task, not its end; a slow machine may block it.
                if getattr(held, "task", None) == frame.task and not isinstance(held, LoopBlocked):
                    self._held.remove(held)
                    return held
            self._held.append(await self.frame())

    async def run(self, prompt: Any = None, **fields: Any) -> Any:
        return await self.answer(run_task(prompt, **fields))

    async def printed(self, wanted: str) -> None:
        """Waits until a line is there."""

        async def wait() -> None:
            while wanted not in self.lines:
                self.line_arrived.clear()
                await self.line_arrived.wait()

        try:
            await asyncio.wait_for(wait(), PATIENCE)
        except asyncio.TimeoutError:
            raise AssertionError(f"{wanted!r} is not in {self.lines!r}") from None

    async def closed(self) -> None:
        """Waits until the worker has hung up."""

        async def wait() -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await read_frame(self.reader)

        await asyncio.wait_for(wait(), PATIENCE)


class Engine:
    """Listens on a Unix socket and starts workers."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "engine.sock"
        self._controls: dict[str, asyncio.Future[Worker]] = {}
        self._lines: dict[str, list[str]] = {}
        self._events: dict[str, asyncio.Event] = {}
        self.processes: list[asyncio.subprocess.Process] = []
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.refuse: str | None = None

    @property
    def address(self) -> str:
        return f"unix:{self._path}"

    async def __aenter__(self) -> Engine:
        self._server = await asyncio.start_unix_server(self._accept, self._path, limit=2**27)
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.hang_up()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        assert self._server is not None
        self._server.close()

    def hang_up(self) -> None:
        """Drops every connection, as a dying engine does."""
        for writer in self._writers:
            writer.close()

    def expect_worker(self, token: str) -> asyncio.Future[Worker]:
        return self._controls.setdefault(token, asyncio.get_running_loop().create_future())

    async def start(
        self, folder: Path, python: str = sys.executable, **environment: str
    ) -> tuple[Worker, asyncio.subprocess.Process]:
        token = secrets.token_hex(8)
        arrival = self.expect_worker(token)
        process = await asyncio.create_subprocess_exec(
            python,
            str(WORKER_MAIN),
            cwd=folder,
            env={
                **os.environ,
                "OSMOSIS_WORKER_ADDR": self.address,
                "OSMOSIS_WORKER_TOKEN": token,
                **environment,
            },
        )
        self.processes.append(process)
        return await asyncio.wait_for(arrival, PATIENCE), process

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            hello = await read_frame(reader)
            assert isinstance(hello, Hello)
            lines = self._lines.setdefault(hello.token, [])
            event = self._events.setdefault(hello.token, asyncio.Event())
            if hello.channel == "output":
                writer.write(encode(Welcome(1)))
                while line := await reader.readline():
                    lines.append(line.decode().rstrip("\n"))
                    event.set()
            elif self.refuse:
                writer.write(encode(Refused(self.refuse)))
            else:
                writer.write(encode(Welcome(1)))
                worker = Worker(hello, reader, writer, lines, event)
                self.expect_worker(hello.token).set_result(worker)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass


_next_task = iter(range(1, 1_000_000))


def run_task(prompt: Any = None, **fields: Any) -> Run:
    task = next(_next_task)
    return Run(
        task=fields.get("task", task),
        rollout_id=fields.get("rollout_id", f"r{task}-0"),
        prompt=json.dumps(prompt if prompt is not None else [{"role": "user", "content": "hi"}]),
        metadata=fields.get("metadata"),
        chat_completions_url=fields.get("url", "http://127.0.0.1:1/v1"),
        api_key=fields.get("api_key", "key"),
        artifacts_dir=fields.get("artifacts_dir"),
        row=fields.get("row"),
        is_eval=fields.get("is_eval"),
        other_api_key=fields.get("other_api_key"),
    )


def grade_task(samples: list[Sample] | None = None, **fields: Any) -> Grade:
    task = next(_next_task)
    given = samples if samples is not None else [Sample(id="main", messages='[{"n":1.50}]')]
    return Grade(
        task=fields.get("task", task),
        rollout_id=fields.get("rollout_id", f"r{task}-0"),
        label=fields.get("label"),
        samples=given,
        metadata=fields.get("metadata"),
        artifacts_dir=fields.get("artifacts_dir"),
        project_path="/nowhere",
        turns=fields.get("turns"),
    )


def _fits(frame: Any, kind: type, fields: dict[str, Any]) -> bool:
    return isinstance(frame, kind) and all(getattr(frame, k) == v for k, v in fields.items())


@contextlib.asynccontextmanager
async def loaded_worker(
    folder: Path, source: str, **options: Any
) -> AsyncIterator[tuple[Worker, asyncio.subprocess.Process, Engine]]:
    """A worker that has loaded `source` as `main.py`."""
    from osmosis_ai.worker.frames import Loaded

    project = folder / "project"
    project.mkdir(exist_ok=True)
    (project / "main.py").write_text(source)
    async with Engine(folder) as engine:
        worker, process = await engine.start(project, **options)
        answer = await worker.load(project)
        assert isinstance(answer, Loaded), answer
        yield worker, process, engine
