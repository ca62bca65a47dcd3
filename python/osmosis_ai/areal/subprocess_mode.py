"""A rollout in a process of its own, for agents that only know environment variables.

The process imports the entrypoint, builds the workflow, and runs it once on the row that it reads
from standard input. What it returns comes back through a pipe of its own: the agent may print.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any

from osmosis_ai import project_snapshot
from osmosis_ai.areal import http_clients, rollout_environ, workflow_context
from osmosis_ai.areal.alias import install_alias
from osmosis_ai.areal.arrays import plain
from osmosis_ai.areal.workflow_context import WorkflowContext
from osmosis_ai.rollout import runtime
from osmosis_ai.rollout.errors import OsmosisError
from osmosis_ai.rollout.failure import user_traceback
from osmosis_ai.rollout.json_text import dump_json

_OUTPUT_LIMIT = 4_000


class SubprocessError(OsmosisError, RuntimeError):
    """The rollout's process raised, or ended without a result."""

    kind = "subprocess_failed"


@dataclass(frozen=True)
class Ended:
    """What came back."""

    returned: Any
    numbers: dict[str, float]


async def run_in_subprocess(
    load: dict[str, Any], data: dict[str, Any], extra: dict[str, Any], context: WorkflowContext
) -> Ended:
    """Runs the workflow there. What it started ends with it, with a cancelled task, and with us."""
    request = dump_json(
        {"load": load, "data": data, "extra": extra, "context": asdict(context)}, "data"
    )
    answer_fd, theirs = os.pipe()
    lifeline, ours = os.pipe()
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "from osmosis_ai.areal.subprocess_mode import main; main()",
                str(theirs),
                str(lifeline),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[theirs, lifeline],
                start_new_session=True,
                env=_environment(extra),
            )
        finally:
            os.close(theirs)
            os.close(lifeline)
        try:
            answer, _ = await asyncio.gather(
                _read(answer_fd), process.communicate(request.encode())
            )
        finally:
            _kill(process.pid)
            await process.wait()
    finally:
        os.close(ours)
    if not answer:
        raise SubprocessError(f"the rollout's process ended with code {process.returncode}")
    result = json.loads(answer)
    if "error" in result:
        raise SubprocessError(result["error"])
    return Ended(result["returned"], result["numbers"])


def _environment(extra: dict[str, Any]) -> dict[str, str]:
    variables = rollout_environ.policy_variables(extra["base_url"], extra["api_key"])
    path = os.pathsep.join([*(p for p in sys.path if p), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **variables, "PYTHONPATH": path.rstrip(os.pathsep)}


async def _read(fd: int) -> bytes:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", 0)
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def _run(workflow: Any, request: dict[str, Any]) -> dict[str, Any]:
    extra = request["extra"]
    extra["http_client"] = http_clients.httpx_client() if http_clients.has_httpx() else None
    try:
        with workflow_context.entered(WorkflowContext(**request["context"])) as tracked:
            returned = await workflow.run(request["data"], **extra)
    finally:
        await http_clients.close()
    if isinstance(returned, dict):
        returned = {key: plain(value) for key, value in returned.items()}
    elif returned is not None:
        returned = plain(returned)
    return {"returned": returned, "numbers": tracked.numbers()}


def _leave_guard(answer_fd: int, lifeline: int) -> None:
    """Goes on in a child. What stays behind ends the whole session when the worker is gone.

    It runs no user code, so nothing can keep it from that; the kernel would end one process only.
    """
    from osmosis_ai.worker.process import die_with_parent

    news, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (news, told, lifeline):
            os.close(fd)
        die_with_parent(guard)
        return
    os.close(answer_fd)
    while True:
        readable, _, _ = select.select([lifeline, news], [], [])
        if lifeline in readable:
            os.killpg(0, signal.SIGKILL)
        os.read(news, 64)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                os.kill(guard, -code)
            os._exit(abs(code))


def main() -> None:
    """The process: one rollout, then its end."""
    import osmosis_ai.areal.workflow_kind  # noqa: F401
    from osmosis_ai.rollout.discovery import discover

    answer_fd, lifeline = int(sys.argv[1]), int(sys.argv[2])
    for fd in (answer_fd, lifeline):
        os.set_inheritable(fd, False)
    _leave_guard(answer_fd, lifeline)
    request = json.loads(sys.stdin.read())
    runtime.enter_worker()
    project_snapshot.install()
    install_alias()
    load = request["load"]
    answer: dict[str, Any]
    try:
        found: Any = discover(load["project_path"], load["entrypoint"], load["workflow"])
        answer = asyncio.run(_run(found.workflow, request))
    except BaseException as error:
        text = user_traceback(error) or ""
        message = f"{type(error).__name__}: {error}\n{text[-_OUTPUT_LIMIT:]}".rstrip()
        answer = {"error": message}
    with os.fdopen(answer_fd, "wb") as pipe:
        pipe.write(json.dumps(answer).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of user code could keep us here.
    os._exit(0)
