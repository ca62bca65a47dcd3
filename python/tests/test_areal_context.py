"""`workflow_context`: which rollout this is, its numbers, and the HTTP clients it shares."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from osmosis_ai.areal import stats_tracker, workflow_context
from osmosis_ai.areal.workflow_context import WorkflowContext

web = pytest.importorskip("aiohttp.web")
MANY = 2000


class Server:
    """A real HTTP server that counts connections."""

    def __init__(self) -> None:
        self.connections: set[Any] = set()
        self.together = 1
        self.url = ""
        self.cookies: list[str] = []
        self._waiting = 0
        self._all_here = asyncio.Event()

    async def start(self) -> Any:
        app = web.Application()
        app.router.add_get("/", self._answer)
        app.router.add_get("/slow", self._slow)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _answer(self, request: Any) -> Any:
        self.connections.add(request.transport)
        self.cookies.append(request.headers.get("Cookie", ""))
        self._waiting += 1
        if self._waiting >= self.together:
            self._all_here.set()
        await self._all_here.wait()
        reply = web.Response(text="hello")
        reply.set_cookie("seen", "yes")
        return reply

    async def _slow(self, request: Any) -> Any:
        await asyncio.sleep(3600)

    async def _complete(self, request: Any) -> Any:
        self.connections.add(request.transport)
        message = {"role": "assistant", "content": f"to {request.headers['authorization']}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "m"}
        return web.json_response({**body, "choices": [choice]})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    runner = await made.start()
    yield made
    await workflow_context.close()
    await runner.cleanup()


async def get_with_aiohttp(url: str) -> str:
    session = await workflow_context.get_aiohttp_session()
    async with session.get(url) as reply:
        return str(await reply.text())


async def get_with_httpx(url: str) -> str:
    client = await workflow_context.get_httpx_client()
    return (await client.get(url)).text


@pytest.fixture
def many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * MANY
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip("not enough file descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@pytest.mark.parametrize("get", [get_with_aiohttp, get_with_httpx])
async def test_calls_in_a_row_use_one_connection(server: Server, get: Any) -> None:
    for _ in range(50):
        assert await get(f"{server.url}/") == "hello"
    assert len(server.connections) == 1
    assert set(server.cookies) == {""}, "rollouts don't share cookies"


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("get", [get_with_aiohttp, get_with_httpx])
async def test_thousands_of_calls_are_under_way_at_once(server: Server, get: Any) -> None:
    server.together = MANY
    texts = await asyncio.gather(*(get(f"{server.url}/") for _ in range(MANY)))
    assert texts == ["hello"] * MANY
    assert len(server.connections) == MANY
    for _ in range(20):
        await get(f"{server.url}/")
    assert len(server.connections) == MANY, "connections are used again"


async def test_without_aiohttp_the_httpx_client_keeps_its_own_connections(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("httpx")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    server.together = 200
    texts = await asyncio.gather(*(get_with_httpx(f"{server.url}/") for _ in range(200)))
    assert texts == ["hello"] * 200
    before = len(server.connections)
    await get_with_httpx(f"{server.url}/")
    assert len(server.connections) == before == 200
    with pytest.raises(ImportError, match=r"`aiohttp` is not installed; .*osmosis-rs\[areal\]"):
        await workflow_context.get_aiohttp_session()


async def test_a_missing_httpx_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("openai", "httpx"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"`httpx` is not installed; .*osmosis-rs\[areal\]"):
        await workflow_context.get_httpx_client()


async def test_clients_are_the_loops_own_and_close_with_it(server: Server) -> None:
    ours = await workflow_context.get_aiohttp_session()
    assert await workflow_context.get_aiohttp_session() is ours

    async def elsewhere() -> tuple[Any, Any]:
        return (
            await workflow_context.get_aiohttp_session(),
            await workflow_context.get_httpx_client(),
        )

    theirs, client = await asyncio.to_thread(asyncio.run, elsewhere())
    assert theirs is not ours
    assert theirs.closed
    assert client.is_closed
    assert not ours.closed
    client = await workflow_context.get_httpx_client()
    await workflow_context.close()
    assert ours.closed
    assert client.is_closed
    assert await get_with_httpx(f"{server.url}/") == "hello"


async def test_failures_of_the_httpx_client_are_httpx_s_own(server: Server) -> None:
    client = await workflow_context.get_httpx_client()
    errors = sys.modules[type(client).__module__.partition(".")[0]]
    with pytest.raises(errors.ReadTimeout):
        await client.get(f"{server.url}/slow", timeout=0.05)
    with pytest.raises(errors.ConnectError):
        await client.get("http://127.0.0.1:1/")
    assert (await client.get(f"{server.url}/missing")).status_code == 404


async def test_the_openai_client_takes_the_shared_httpx_client(server: Server) -> None:
    openai = pytest.importorskip("openai")
    for key in ("one", "two"):
        client = openai.AsyncOpenAI(
            base_url=f"{server.url}/v1",
            api_key=key,
            http_client=await workflow_context.get_httpx_client(),
            max_retries=0,
        )
        reply = await client.chat.completions.create(
            model="osmosis-rollout", messages=[{"role": "user", "content": "hi"}]
        )
        assert reply.choices[0].message.content == f"to Bearer {key}"
    assert len(server.connections) == 1


def test_outside_of_a_rollout_the_context_is_empty() -> None:
    assert workflow_context.get() == WorkflowContext(is_eval=False, task_id=None)
    assert workflow_context.stat_scope() == "rollout"


async def test_rollouts_on_one_loop_have_contexts_and_numbers_of_their_own() -> None:
    both_inside = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None

    async def helper(reward: float) -> None:
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)

    async def rollout(task: int) -> dict[str, float]:
        with workflow_context.entered(WorkflowContext(task == 1, task)) as collected:
            with stats_tracker.get("own").scope(f"task{task}"):
                if both_inside is not None:
                    await both_inside.wait()
                await asyncio.create_task(helper(task))
                stats_tracker.get("own").scalar(x=task)
            assert workflow_context.get().task_id == task
        return collected.numbers()

    first, second = await asyncio.gather(rollout(1), rollout(2))
    assert first == {
        "eval-rollout/reward": 1.0,
        "eval-rollout/reward__count": 1,
        "own/task1/x": 1.0,
        "own/task1/x__count": 1,
    }
    assert second == {
        "rollout/reward": 2.0,
        "rollout/reward__count": 1,
        "own/task2/x": 2.0,
        "own/task2/x__count": 1,
    }
    assert workflow_context.get() == WorkflowContext()
