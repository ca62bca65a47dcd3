"""This process as the binary's worker: its frames become calls of the backend.

A backend runs and grades in one `execute`; the binary asks for the two apart, with the label only
in the second. So an execution waits between them, in its first callback, until the grade is asked
for.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import platform
import struct
from typing import Any, TypeAlias

from typing_extensions import assert_never

import osmosis_ai
from osmosis_ai.rollout.artifacts import artifacts_folder
from osmosis_ai.rollout.backend.base import ExecutionBackend
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.errors import OsmosisError, ResultTooLargeError
from osmosis_ai.rollout.execution import graded
from osmosis_ai.rollout.server.binary import ServerStartError
from osmosis_ai.rollout.types import (
    ExecutionRequest,
    ExecutionResult,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_ai.worker.frames import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Cancel,
    Failure,
    Fork,
    ForkFailed,
    Found,
    FrameError,
    Grade,
    Hello,
    Load,
    Loaded,
    Manifest,
    Refused,
    Run,
    RunDone,
    Shutdown,
    Started,
    TaskCancelled,
    TaskFailed,
    Welcome,
    decode_body,
    encode,
)
from osmosis_ai.worker.tasks import (
    GradeAnswer,
    RunAnswer,
    failed,
    grade_done,
    parse_json,
    sample_frame,
)

logger = logging.getLogger("osmosis_ai.rollout.server")

_ANSWER_SECONDS = 30.0
_END_SECONDS = 5.0
# What a worker says of itself in its hello when it can neither be forked nor killed.
ATTACHED_FEATURE = "attached"

Answer: TypeAlias = RunAnswer | GradeAnswer | TaskCancelled


class BackendContractError(OsmosisError):
    """A backend's `execute` ended without reporting a phase."""

    kind = "backend_contract"


class Execution:
    """One rollout at the backend, from its run to its grade."""

    def __init__(self, run: Run, backend: ExecutionBackend) -> None:
        loop = asyncio.get_running_loop()
        self.run_task = run.task
        self.request = ExecutionRequest(
            id=run.rollout_id,
            prompt=parse_json(run.prompt),
            metadata=parse_json(run.metadata),
        )
        self.ran: asyncio.Future[ExecutionResult] = loop.create_future()
        self.wanted: asyncio.Future[Grade] = loop.create_future()
        self.graded: asyncio.Future[ExecutionResult] = loop.create_future()
        self.task = loop.create_task(self._execute(run, backend))

    async def first(self, told: asyncio.Future[ExecutionResult], phase: str) -> ExecutionResult:
        """What the phase's callback was told; raises when the execution ends without it."""
        either: set[asyncio.Future[Any]] = {told, self.task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            self.task.result()
            raise BackendContractError(f"`execute` ended without calling `on_{phase}_complete`")
        return told.result()

    async def end(self) -> None:
        """Cancels what still runs and waits for it."""
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=_END_SECONDS)

    async def _execute(self, run: Run, backend: ExecutionBackend) -> None:
        with artifacts_folder(run.artifacts_dir or None) as folder:
            context = RolloutContext(
                chat_completions_url=run.chat_completions_url,
                api_key=run.api_key,
                rollout_id=run.rollout_id,
                artifacts_dir=None if folder is None else folder.path(),
            )
            try:
                with context:
                    await backend.execute(
                        self.request, self._workflow_complete, self._grader_complete
                    )
            except SystemExit as error:
                # In a task of its own it would end the server instead of the rollout.
                raise RuntimeError(f"user code called `sys.exit({error.code!r})`") from error

    async def _workflow_complete(self, result: ExecutionResult) -> None:
        if not self.ran.done():
            self.ran.set_result(result.model_copy(deep=True))
        if result.status is RolloutStatus.SUCCESS:
            self.request.label = (await self.wanted).label

    async def _grader_complete(self, result: ExecutionResult) -> None:
        if not self.graded.done():
            self.graded.set_result(result)


class AttachedWorker:
    """The connection to the binary, and the executions it asked for."""

    def __init__(
        self,
        backend: ExecutionBackend,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._backend = backend
        self._reader = reader
        self._writer = writer
        self._executions: dict[str, Execution] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._cancelled: set[int] = set()
        self._serving: asyncio.Task[None] | None = None

    @classmethod
    async def dial(cls, backend: ExecutionBackend, address: str, token: str) -> AttachedWorker:
        """Connects, introduces itself and starts serving. Raises `ServerStartError`."""
        try:
            reader, writer = await _connect(address)
            worker = cls(backend, reader, writer)
            worker._send(_hello(token))
            answer = await asyncio.wait_for(worker._receive(), _ANSWER_SECONDS)
        except (OSError, EOFError, ValueError, FrameError, asyncio.TimeoutError) as error:
            raise ServerStartError(f"no worker connection to `{address}`: {error}") from error
        if not isinstance(answer, Welcome):
            writer.close()
            reason = answer.reason if isinstance(answer, Refused) else f"it said {answer!r:.80}"
            raise ServerStartError(f"the binary refused this process as its worker: {reason}")
        worker._serving = asyncio.ensure_future(worker._serve())
        return worker

    async def close(self) -> None:
        """Ends what still runs and hangs up."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _serve(self) -> None:
        try:
            while True:
                frame = await self._receive()
                if isinstance(frame, Shutdown):
                    return
                self._take(frame)
        except (OSError, EOFError, FrameError) as error:
            logger.debug("the binary is gone: %s", error)
        finally:
            running = [execution.task for execution in self._executions.values()]
            running += self._tasks.values()
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=_END_SECONDS)
            self._writer.close()

    def _take(self, frame: Any) -> None:
        if isinstance(frame, Load):
            self._send(Loaded(_manifest(self._backend)))
        elif isinstance(frame, Run | Grade):
            self._tasks[frame.task] = asyncio.ensure_future(self._task(frame))
        elif isinstance(frame, Cancel):
            self._cancel(frame.task)
        elif isinstance(frame, Fork):
            self._send(ForkFailed(frame.token, "an attached process is never forked"))

    async def _task(self, frame: Run | Grade) -> None:
        number = frame.task
        answer: Answer
        try:
            answer = await self._execute(frame)
        except BaseException as error:
            answer = failed(number, error)
        if number in self._cancelled:
            answer = TaskCancelled(number)
            await self._drop(frame.rollout_id)
        self._cancelled.discard(number)
        self._tasks.pop(number, None)
        try:
            self._send(answer)
        except FrameError as error:
            self._send(failed(number, ResultTooLargeError(str(error))))

    async def _execute(self, frame: Run | Grade) -> Answer:
        match frame:
            case Run():
                return await self._run(frame)
            case Grade():
                return await self._grade(frame)
            case _:
                assert_never(frame)

    async def _run(self, run: Run) -> RunAnswer | TaskCancelled:
        # A rollout that runs again was given up before.
        await self._drop(run.rollout_id)
        self._send(Started(run.task))
        execution = Execution(run, self._backend)
        self._executions[run.rollout_id] = execution
        execution.task.add_done_callback(lambda _: self._forget(run.rollout_id, execution))
        result = await execution.first(execution.ran, "workflow")
        if result.status is not RolloutStatus.SUCCESS:
            return _not_done(run.task, result)
        samples = list(result.samples.values())
        return RunDone(run.task, [sample_frame(s, len(samples) > 1) for s in samples], None)

    async def _grade(self, grade: Grade) -> GradeAnswer | TaskCancelled:
        execution = self._executions.get(grade.rollout_id)
        if execution is None or execution.wanted.done():
            message = f"this process has not run rollout `{grade.rollout_id}`"
            return TaskFailed(grade.task, Failure("agent_error", "not_running", message))
        self._send(Started(grade.task))
        execution.wanted.set_result(grade)
        result = await execution.first(execution.graded, "grader")
        if result.status is not RolloutStatus.SUCCESS:
            return _not_done(grade.task, result)
        kept = graded([sample.id for sample in grade.samples], result.samples)
        return grade_done(grade, kept)

    def _cancel(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            self._cancelled.add(number)
            # Not at once: a task cancelled before its first step would never answer.
            asyncio.get_running_loop().call_soon(task.cancel)
            return
        # A run that has been answered and will not be graded.
        for execution in list(self._executions.values()):
            if execution.run_task == number:
                execution.task.cancel()

    async def _drop(self, rollout_id: str) -> None:
        execution = self._executions.get(rollout_id)
        if execution is not None:
            await execution.end()

    def _forget(self, rollout_id: str, execution: Execution) -> None:
        if self._executions.get(rollout_id) is execution:
            del self._executions[rollout_id]
        if not execution.task.cancelled():
            # Seen by whoever waits for the phase; afterwards there is nobody to tell.
            execution.task.exception()

    def _send(self, frame: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(frame))

    async def _receive(self) -> Any:
        (length,) = struct.unpack(">I", await self._reader.readexactly(4))
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
        return decode_body(await self._reader.readexactly(length))


def _not_done(task: int, result: ExecutionResult) -> TaskFailed | TaskCancelled:
    if result.status is RolloutStatus.CANCELLED:
        return TaskCancelled(task)
    category = result.err_category or RolloutErrorCategory.AGENT_ERROR
    message = result.err_message or f"the backend reported `{result.status}`"
    return TaskFailed(task, Failure(category.value, category.value, message))


def _manifest(backend: ExecutionBackend) -> Manifest:
    name = type(backend).__name__
    workflow, grader = _found(type(backend), name), _found(type(backend), name)
    if isinstance(backend, LocalBackend):
        limit = backend.health()["max_concurrent"]
        config = backend.workflow_config.name if backend.workflow_config else None
        workflow = _found(backend.workflow, backend.workflow.__name__, config, limit)
        grader = _found(backend.grader, backend.grader.__name__) if backend.grader else None
    return Manifest(
        workflow=workflow,
        grader=grader,
        warnings=[],
        not_forkable="this process serves HTTP",
    )


def _found(cls: Any, name: str, config: str | None = None, limit: int | None = None) -> Any:
    try:
        file, line = inspect.getfile(cls), inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        file, line = "", 1
    return Found(name=name, file=file, line=max(line, 1), config=config, max_concurrent=limit)


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    scheme, _, place = address.partition(":")
    if scheme == "unix":
        return await asyncio.open_unix_connection(place)
    if scheme == "tcp":
        host, _, port = place.rpartition(":")
        return await asyncio.open_connection(host.strip("[]"), int(port))
    raise ValueError(f"worker address `{address}` is neither `unix:PATH` nor `tcp:HOST:PORT`")


def _hello(token: str) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        sdk=f"osmosis_ai {osmosis_ai.__version__} (python {platform.python_version()})",
        features=[ATTACHED_FEATURE],
        token=token,
        pid=os.getpid(),
        channel="control",
    )
