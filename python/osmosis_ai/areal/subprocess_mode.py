"""A rollout in a process of its own, for agents that only know environment variables.

The process imports the entrypoint, builds the workflow, and runs it once on the row that it reads
from standard input. What it returns comes back through a pipe of its own: the agent may print.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

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
    """Runs the workflow there. A cancelled task kills the process and all it started."""
    request = dump_json(
        {"load": load, "data": data, "extra": extra, "context": asdict(context)}, "data"
    )
    answer_fd, theirs = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from osmosis_ai.areal.subprocess_mode import main; main()",
            str(theirs),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[theirs],
            start_new_session=True,
            env=_environment(extra),
        )
    finally:
        os.close(theirs)
    try:
        answer, _ = await asyncio.gather(_read(answer_fd), process.communicate(request.encode()))
    except BaseException:
        _kill(process.pid)
        await process.wait()
        raise
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
        os.killpg(pid, 9)


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


def main() -> None:
    """The process: one rollout, then its end."""
    from osmosis_ai.rollout.discovery import discover_rollout
    from osmosis_ai.worker.process import die_with_parent

    die_with_parent(os.getppid())
    answer_fd = int(sys.argv[1])
    os.set_inheritable(answer_fd, False)
    request = json.loads(sys.stdin.read())
    runtime.enter_worker()
    install_alias()
    load = request["load"]
    answer: dict[str, Any]
    try:
        found: Any = discover_rollout(
            load["project_path"], load["entrypoint"], load["workflow"], {}
        )
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
