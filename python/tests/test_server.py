"""The façade against a program that speaks the seam, and under a real ASGI server."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderContext,
    LocalBackend,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    get_rollout_context,
)
from osmosis_ai.rollout.server import ControllerAuth, RolloutServer, create_rollout_server
from osmosis_ai.rollout.server.binary import ServerStartError, find_binary
from osmosis_ai.rollout.server.hosts import foreign_host

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the binary is a POSIX program")

FAKE = Path(__file__).parent / "fake_osmosis.py"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the fake binary the one that is found; its notes are in the file."""
    program = tmp_path / "osmosis"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("OSMOSIS_BIN", str(program))
    monkeypatch.setenv("FAKE_OSMOSIS_LOG", str(tmp_path / "log"))
    (tmp_path / "log").touch()
    return tmp_path / "log"


class Say(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        rollout = get_rollout_context()
        assert rollout is not None
        do = (ctx.metadata or {}).get("do")
        if do == "raise":
            raise ValueError("no")
        if do == "hang":
            await asyncio.Event().wait()
        if do == "exit":
            sys.exit(3)
        if ctx.artifacts_dir is not None:
            (ctx.artifacts_dir / "note").write_text("x")
        return [*ctx.prompt, {"url": rollout.base_url, "key": rollout.api_key}]


class Label(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        if ctx.label is not None:
            ctx.set_reward(float(ctx.label))


@contextlib.asynccontextmanager
async def serving(app: RolloutServer) -> AsyncIterator[httpx.AsyncClient]:
    """Requests to the app, whose first one starts everything."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        try:
            yield client
        finally:
            await app.stop()


def local() -> RolloutServer:
    return create_rollout_server(backend=LocalBackend(workflow=Say, grader=Label))


def asked(**fields: Any) -> dict[str, Any]:
    return {
        "rollout_id": "e1",
        "initial_messages": [{"role": "user", "content": "hi"}],
        "chat_completions_url": "http://gateway/v1",
        **fields,
    }


async def test_a_rollout_goes_through_the_backend_to_its_reward(log: Path, tmp_path: Path):
    async with serving(local()) as client:
        folder = tmp_path / "artifacts" / "e1"
        answer = (
            await client.post("/rollout", json=asked(label="0.25", artifacts_dir=str(folder)))
        ).json()
        (sample,) = answer["run"]["samples"]
        assert json.loads(sample["messages"]) == [
            {"role": "user", "content": "hi"},
            {"url": "http://gateway/v1", "key": "rollout-key"},
        ]
        assert answer["rewards"] == {"main": 0.25}
        assert (folder / "note").read_text() == "x"
    assert log.read_text().splitlines()[1:] == ["drains", "left"]


async def test_the_manifest_names_what_the_backend_runs(log: Path):
    async with serving(local()) as client:
        manifest = (await client.get("/manifest")).json()
        assert (manifest["workflow"]["name"], manifest["workflow"]["max_concurrent"]) == ("Say", 4)
        assert manifest["workflow"]["file"] == __file__
        assert manifest["grader"]["name"] == "Label"
    async with serving(create_rollout_server(backend=LocalBackend(workflow=Say))) as client:
        assert (await client.get("/manifest")).json()["grader"] is None


@pytest.mark.parametrize(
    ("do", "category", "message"),
    [
        ("raise", "validation_error", "ValueError: no"),
        ("exit", "agent_error", "sys.exit(3)"),
    ],
)
async def test_a_failed_workflow_is_told_as_a_failed_task(
    log: Path, do: str, category: str, message: str
):
    async with serving(local()) as client:
        answer = (await client.post("/rollout", json=asked(metadata={"do": do}))).json()
        failure = answer["run"]["failure"]
        assert failure["category"] == category
        assert message in failure["message"]
        assert (await client.get("/health")).status_code == 200


async def test_a_sample_without_a_reward_is_a_failed_grade(log: Path):
    async with serving(local()) as client:
        answer = (await client.post("/rollout", json=asked())).json()
        assert "`main`" in answer["grade"]["failure"]["message"]
        assert answer["rewards"] is None


async def test_many_rollouts_at_once(log: Path):
    async with serving(local()) as client:
        answers = await asyncio.gather(
            *(
                client.post("/rollout", json=asked(rollout_id=f"e{n}", label=str(n)))
                for n in range(20)
            )
        )
        assert [a.json()["rewards"]["main"] for a in answers] == [float(n) for n in range(20)]


async def test_a_cancelled_rollout_ends_and_can_run_again(log: Path):
    async with serving(local()) as client:
        hanging = asyncio.ensure_future(
            client.post("/rollout", json=asked(metadata={"do": "hang"}))
        )
        while (await client.get("/health")).json()["backend"]["running"] == 0:
            await asyncio.sleep(0.01)
        await client.get("/cancel/e1")
        assert (await hanging).json()["run"]["type"] == "TaskCancelled"
        assert (await client.get("/health")).json()["backend"]["running"] == 0
        assert (await client.post("/rollout", json=asked(label="1"))).json()["rewards"]


async def test_a_rollout_that_is_not_graded_does_not_linger(log: Path):
    async with serving(local()) as client:
        await client.post("/rollout", json=asked(ungraded=True))
        while (await client.get("/health")).json()["backend"]["running"]:
            await asyncio.sleep(0.01)


class Own(ExecutionBackend):
    """A backend of the user's: one of everything it can do wrong."""

    def __init__(self) -> None:
        self.labels: list[Any] = []

    async def health(self) -> dict[str, Any]:  # type: ignore[override]
        return {"mine": True}

    async def execute(
        self, request: ExecutionRequest, on_workflow_complete: Any, on_grader_complete: Any = None
    ) -> None:
        do = (request.metadata or {}).get("do")
        if do == "silent":
            return
        if do == "raise":
            raise OSError("backend is down")
        sample = RolloutSample(id="s", messages=[{"id": request.id}])
        done = ExecutionResult(status=RolloutStatus.SUCCESS, samples={"s": sample})
        if do == "fail":
            done = ExecutionResult(
                status=RolloutStatus.FAILURE,
                err_message="sandbox lost",
                err_category=RolloutErrorCategory.HTTP_ERROR,
            )
        await on_workflow_complete(done)
        if do == "half":
            return
        self.labels.append(request.label)
        sample.reward = 1.0
        await on_grader_complete(done)


async def test_a_backend_of_the_users_own_is_served(log: Path):
    backend = Own()
    async with serving(create_rollout_server(backend=backend)) as client:
        assert (await client.get("/health")).json()["backend"] == {"mine": True}
        assert (await client.get("/manifest")).json()["workflow"]["name"] == "Own"
        answer = (await client.post("/rollout", json=asked(label="l"))).json()
        assert answer["rewards"] == {"s": 1.0}
        assert backend.labels == ["l"]
        for do, part, message in (
            ("silent", "run", "without calling `on_workflow_complete`"),
            ("raise", "run", "backend is down"),
            ("fail", "run", "sandbox lost"),
            ("half", "grade", "without calling `on_grader_complete`"),
        ):
            answer = (await client.post("/rollout", json=asked(metadata={"do": do}))).json()
            assert message in answer[part]["failure"]["message"]


async def test_requests_are_forwarded_as_they_are(log: Path):
    async with serving(local()) as client:
        reply = await client.put("/a%20b/c?q=1&r=%2F", content=b"x" * 300_000, headers={"X-A": "1"})
        said = reply.json()
        assert (said["method"], said["target"], said["bytes"]) == (
            "PUT",
            "/a%20b/c?q=1&r=%2F",
            300_000,
        )
        assert said["headers"]["x-a"] == "1"

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield b"y" * 1000

        said = (await client.post("/b", content=pieces())).json()
        assert said["bytes"] == 50_000
        chunks = await client.get("/chunks")
        assert chunks.content == b"one" + b"two" * 100_000
        assert chunks.headers["x-a"] == "1"
        early = await client.post("/refuse", content=b"z" * 20_000_000)
        assert (early.status_code, early.json()) == (413, {"error": "too large"})
        garbage = await client.get("/garbage")
        assert garbage.status_code == 503
        assert "no answer in HTTP" in garbage.json()["error"]["message"]


async def test_below_another_app_the_binary_is_at_its_own_root(log: Path):
    app = local()

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/api"}, receive, send)

    transport = httpx.ASGITransport(mounted)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        assert (await client.get("/api/x")).json()["target"] == "/x"
    await app.stop()


async def test_a_binary_that_died_is_started_again(log: Path):
    async with serving(local()) as client:
        assert (await client.get("/die")).status_code == 503
        while True:
            # The first request may still find the old one's end.
            if (await client.get("/health")).status_code == 200:
                break
        assert (await client.post("/rollout", json=asked(label="1"))).json()["rewards"]
    assert log.read_text().count("started") == 2


async def test_a_binary_that_died_goes_on_under_its_name_though_nobody_asks(
    log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_NAME", "mine")

    def names() -> list[str]:
        lines = [line.split() for line in log.read_text().splitlines()]
        return [line[2] for line in lines if line[0] == "started"]

    async with serving(local()) as client:
        assert (await client.get("/die")).status_code == 503
        while len(names()) < 2:
            await asyncio.sleep(0.01)
    assert names() == ["mine", "mine"]
    monkeypatch.delenv("OSMOSIS_ROLLOUT_NAME")
    assert local()._run_name != local()._run_name


async def test_a_binary_that_does_not_start_is_an_answer(
    log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_OSMOSIS_FAIL", "1")
    async with serving(local()) as client:
        reply = await client.get("/health")
        assert reply.status_code == 503
        assert "ended with code 2" in reply.json()["error"]["message"]
    monkeypatch.delenv("FAKE_OSMOSIS_FAIL")
    monkeypatch.setenv("FAKE_OSMOSIS_REFUSE", "1")
    async with serving(local()) as client:
        message = (await client.get("/health")).json()["error"]["message"]
        assert "the token is not known" in message
    assert log.read_text().splitlines()[-1] == "left"


def test_making_the_app_starts_nothing(log: Path):
    app = local()
    assert log.read_text() == ""
    assert app.backend.health()["running"] == 0
    with pytest.raises(TypeError, match="ExecutionBackend"):
        create_rollout_server(backend=object())  # type: ignore[arg-type]


def test_the_key_of_a_controller_is_not_shown():
    auth = ControllerAuth(api_key="secret")
    assert "secret" not in repr(auth)
    assert auth.as_bearer_headers() == {"Authorization": "Bearer secret"}
    assert ControllerAuth().as_bearer_headers() is None


def test_the_binary_is_named_then_beside_then_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OSMOSIS_BIN", raising=False)
    beside, on_path = tmp_path / "venv" / "osmosis", tmp_path / "bin" / "osmosis"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(on_path.parent))
    with pytest.raises(ServerStartError, match="OSMOSIS_BIN"):
        find_binary()
    for program in (on_path, beside):
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        assert find_binary() == str(program)
    monkeypatch.setenv("OSMOSIS_BIN", str(on_path))
    assert find_binary() == str(on_path)
    monkeypatch.setenv("OSMOSIS_BIN", str(tmp_path / "nothing"))
    with pytest.raises(ServerStartError, match="no program"):
        find_binary()


MAIN = """
import contextlib, sys
from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend, create_rollout_server

class W(AgentWorkflow):
    async def run(self, ctx):
        return ctx.prompt

class G(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1)

@contextlib.asynccontextmanager
async def lifespan(app):
    app.state.ready = True
    print("lifespan entered", file=sys.stderr, flush=True)
    yield
    print("lifespan left", file=sys.stderr, flush=True)

app = create_rollout_server(backend=LocalBackend(workflow=W, grader=G), lifespan=lifespan)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_under_uvicorn_everything_starts_and_ends_with_the_server(
    log: Path, tmp_path: Path, how: signal.Signals
):
    pytest.importorskip("uvicorn")
    (tmp_path / "main.py").write_text(MAIN)
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "main:app", "--port", "0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(FAKE.parent.parent)},
    )
    try:
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(line)
            if "Uvicorn running on" in line:
                url = line.split("running on ")[1].split(" ")[0]
                break
        else:
            pytest.fail("".join(lines))
        answer = httpx.post(f"{url}/rollout", json=asked(label="1"), timeout=30).json()
        assert answer["rewards"] == {"main": 1.0}
        server.send_signal(how)
        rest = server.stderr.read()
        server.wait(30)
    finally:
        server.kill()
        server.wait()
    assert any("lifespan entered" in line for line in lines)
    if how is signal.SIGTERM:
        assert "lifespan left" in rest
        assert log.read_text().splitlines()[1:] == ["drains", "left"]
    else:
        # Its standard input tells the binary that nobody is there any more.
        assert _eventually(lambda: log.read_text().splitlines()[1:] == ["parent gone", "left"])


def _eventually(holds: Any) -> bool:
    import time

    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


async def test_the_binary_is_shown_that_a_request_comes_from_the_facade(log: Path) -> None:
    app = create_rollout_server(backend=LocalBackend(workflow=Say, grader=Label))
    async with serving(app) as client:
        guessed = {"X-Osmosis-Serve-Token": "guess"}
        reply = await client.get("/echo", headers=guessed)
        assert reply.status_code == 200
        assert reply.json()["headers"]["x-osmosis-serve-token"] != "guess"
        assert app._binary is not None
        async with httpx.AsyncClient(trust_env=False) as past:
            refused = await past.get(f"{app._binary.url}/echo", headers=guessed)
            assert refused.status_code == 401


def _scope(server: Any, *hosts: str) -> dict[str, Any]:
    return {"server": server, "headers": [(b"host", host.encode()) for host in hosts]}


def test_on_loopback_without_a_key_only_names_of_this_machine_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OSMOSIS_ROLLOUT_KEY", raising=False)
    monkeypatch.setenv("OSMOSIS_ROLLOUT_HOSTS", "tunnel.example, other.example")
    loopback = ("127.0.0.1", 8000)
    for host in ("127.0.0.1:8000", "localhost", "LOCALHOST.:1", "[::1]:8000", "tunnel.example:80"):
        assert foreign_host(_scope(loopback, host)) is None, host
        assert foreign_host(_scope(("::ffff:127.0.0.1", 1), host)) is None, host
    for host in ("evil.example", "127.0.0.1.evil.example:8000", "10.0.0.1", "", "localhost:x:1"):
        assert foreign_host(_scope(loopback, host)) == host
        # Others reach it there by whatever name it has; so does a test client.
        assert foreign_host(_scope(("10.0.0.1", 8000), host)) is None
        assert foreign_host(_scope(("testserver", 80), host)) is None
        assert foreign_host(_scope(None, host)) is None
    assert foreign_host(_scope(loopback)) == ""
    assert foreign_host(_scope(loopback, "localhost", "evil.example")) is not None
    monkeypatch.setenv("OSMOSIS_ROLLOUT_KEY", "a key")
    assert foreign_host(_scope(loopback, "evil.example")) is None
