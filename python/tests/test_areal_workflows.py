"""Workflows of AReaL's shape: how they are found, built, given their rollout, and read."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.areal import rollout_environ
from osmosis_ai.areal.alias import install_alias, remove_alias
from osmosis_ai.areal.building import Mode
from osmosis_ai.areal.cli_args import GenerationHyperparameters
from osmosis_ai.areal.gateway_engine import GatewayEngine, GenerationError
from osmosis_ai.areal.io_struct import ModelRequest
from osmosis_ai.areal.workflow_api import WorkflowShape
from osmosis_ai.areal.workflow_kind import LoadedArealWorkflow
from osmosis_ai.rollout.agent_workflow_kind import LoadedAgentWorkflow
from osmosis_ai.rollout.discovery import discover
from osmosis_ai.rollout.entrypoint import EntrypointError
from osmosis_ai.worker.frames import Rejected, RunDone, TaskFailed
from tests.engine import loaded_worker, run_task

AGENT = """
class Agent:
    def __init__(self, reward_fn=None, turns=1):
        self.reward_fn, self.turns = reward_fn, turns

    async def run(self, data, **extra_kwargs):
        return 1.0
"""
EPISODE = """
from areal.api.workflow_api import RolloutWorkflow

class Episode(RolloutWorkflow):
    async def arun_episode(self, engine, data):
        return None
"""
OURS = """
from osmosis_ai.rollout import AgentWorkflow, Grader

class W(AgentWorkflow):
    async def run(self, ctx): pass

class G(Grader):
    async def grade(self, ctx): pass
"""


@pytest.fixture(autouse=True)
def _alias(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    install_alias()
    yield
    remove_alias()
    for name in set(sys.modules) - before:
        if not name.startswith("osmosis_ai"):
            del sys.modules[name]


def found(
    folder: Path, source: str, entrypoint: str = "main.py", **table: Any
) -> LoadedArealWorkflow:
    (folder / "main.py").write_text(source)
    rollout = discover(str(folder), entrypoint, table)
    assert isinstance(rollout, LoadedArealWorkflow)
    return rollout


def problems(folder: Path, source: str, entrypoint: str = "main.py", **table: Any) -> list[str]:
    (folder / "main.py").write_text(source)
    with pytest.raises(EntrypointError) as caught:
        discover(str(folder), entrypoint, table)
    return [f"{problem.code}: {problem.message}" for problem in caught.value.problems]


def test_both_shapes_are_found(tmp_path: Path):
    agent = found(tmp_path, AGENT)
    assert (agent.name, agent.shape, agent.location.line) == ("Agent", WorkflowShape.AGENT, 2)
    assert agent.mode is Mode.INLINE
    assert found(tmp_path, EPISODE).shape is WorkflowShape.EPISODE
    assert found(tmp_path, AGENT + EPISODE).name == "Episode", "`run` may be there by chance"
    assert found(tmp_path, AGENT + EPISODE, "main.py:Agent").name == "Agent"


def test_a_module_level_workflow_is_taken_as_it_is(tmp_path: Path):
    source = AGENT + "workflow = Agent(turns=7)\nother = Agent()\n"
    assert found(tmp_path, source).workflow.turns == 7
    (problem,) = problems(tmp_path, source, turns=1)
    assert "`workflow` in `main.py` is built already" in problem


def test_a_workflow_of_our_own_is_not_disturbed_by_a_class_with_a_run(tmp_path: Path):
    (tmp_path / "main.py").write_text(OURS + AGENT)
    assert isinstance(discover(str(tmp_path), "main.py"), LoadedAgentWorkflow)
    (problem,) = problems(tmp_path, OURS + EPISODE)
    assert "has 2 workflows: `W` (main.py:4), `Episode`" in problem


def test_arguments_come_from_the_config_with_objects_in_place_of_their_names(tmp_path: Path):
    source = AGENT + "def score(): return 5\nclass Box: inner = [score]\n"
    workflow = found(tmp_path, source, reward_fn="@main:score", turns="@@text").workflow
    assert workflow.reward_fn() == 5
    assert workflow.turns == "@text"
    assert found(tmp_path, source, reward_fn="@json:dumps").workflow.reward_fn is json.dumps
    nested = found(tmp_path, source, reward_fn={"of": ["@main:Box.inner"]}).workflow.reward_fn
    assert nested["of"][0][0]() == 5


def test_a_table_becomes_the_dataclass_of_the_annotation(tmp_path: Path):
    source = """
from areal.api.cli_args import GenerationHyperparameters

class Agent:
    def __init__(self, gconfig: GenerationHyperparameters):
        self.gconfig = gconfig

    async def run(self, data, **extra_kwargs): pass
"""
    made = found(tmp_path, source, gconfig={"max_new_tokens": 5}).workflow.gconfig
    assert made == GenerationHyperparameters(max_new_tokens=5)
    (problem,) = problems(tmp_path, source, gconfig={"nonsense": 5})
    assert "[workflow] gconfig does not fit `GenerationHyperparameters`" in problem


def test_what_does_not_fit_is_said_at_once(tmp_path: Path):
    assert problems(tmp_path, AGENT, turn=1, rewards=2) == [
        "workflow_argument_unknown: [workflow] turn: `Agent` has no such argument",
        "workflow_argument_unknown: [workflow] rewards: `Agent` has no such argument",
    ]
    (missing,) = problems(tmp_path, AGENT.replace("reward_fn=None", "reward_fn"))
    assert "`Agent` needs `reward_fn`" in missing
    (raised,) = problems(tmp_path, AGENT.replace("        self.reward_fn,", "        1 / 0\n    #"))
    assert "workflow_init_failed: `Agent(...)` raised ZeroDivisionError" in raised
    (mode,) = problems(tmp_path, AGENT, mode="thread")
    assert 'it must be "inline" or "subproc"' in mode
    (mode,) = problems(tmp_path, EPISODE, mode="subproc")
    assert "which is for workflows with `run`" in mode
    (sync,) = problems(tmp_path, AGENT.replace("async def", "def"))
    assert sync.startswith("run_not_async")


def test_variables_of_the_policy_are_the_rollouts_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from outside")

    async def rollout(key: str) -> tuple[str | None, str]:
        with rollout_environ.entered(rollout_environ.policy_variables("http://x/v1", key)):
            await asyncio.sleep(0)
            return os.getenv("OPENAI_API_KEY"), os.environ["ANTHROPIC_BASE_URL"]

    async def both() -> Any:
        return await asyncio.gather(rollout("a"), rollout("b"))

    assert asyncio.run(both()) == [("a", "http://x"), ("b", "http://x")]
    assert os.environ["OPENAI_API_KEY"] == "from outside"
    assert "ANTHROPIC_BASE_URL" not in os.environ


def test_a_client_without_an_address_sees_what_the_user_set(monkeypatch: pytest.MonkeyPatch):
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
    for name in names:
        monkeypatch.delenv(name, raising=False)

    def seen() -> dict[str, str | None]:
        variables = rollout_environ.unset_variables("http://x/v1", "other")
        with rollout_environ.entered(variables):
            # One rollout within another's context changes nothing.
            assert rollout_environ.unset_variables("http://x/v1", "other") == variables
            return {name: os.getenv(name) for name in names}

    ours = {"OPENAI_BASE_URL": "http://x/v1", "OPENAI_API_KEY": "other"}
    assert seen() == {
        **ours,
        "ANTHROPIC_BASE_URL": "http://x",
        "ANTHROPIC_API_KEY": "other",
    }
    # A key alone is for the SDK's own address: never ours with theirs.
    monkeypatch.setenv("ANTHROPIC_API_KEY", "mine")
    assert seen() == {**ours, "ANTHROPIC_BASE_URL": None, "ANTHROPIC_API_KEY": "mine"}
    monkeypatch.setenv("OPENAI_BASE_URL", "http://judge/v1")
    assert seen() == {
        "OPENAI_BASE_URL": "http://judge/v1",
        "OPENAI_API_KEY": None,
        "ANTHROPIC_BASE_URL": None,
        "ANTHROPIC_API_KEY": "mine",
    }
    # An engine of an older release gives no second key.
    assert rollout_environ.unset_variables("http://x/v1", None) == {}


class Gateway:
    """Answers `generate` with what it is told."""

    def __init__(self, answer: Any, status: int = 200) -> None:
        self.answer, self.status = answer, status
        self.asked: list[Any] = []

    async def __aenter__(self) -> GatewayEngine:
        async def generate(request: web.Request) -> web.Response:
            self.asked.append((request.headers["authorization"], await request.json()))
            return web.json_response(self.answer, status=self.status)

        app = web.Application()
        app.router.add_post("/v1/generate", generate)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        port = self.runner.addresses[0][1]
        return GatewayEngine(f"http://127.0.0.1:{port}/v1", "key")

    async def __aexit__(self, *error: object) -> None:
        from osmosis_ai.areal import workflow_context

        await workflow_context.close()
        await self.runner.cleanup()


ANSWER = {
    "output_ids": [7, 8],
    "output_logprobs": [-0.5, -0.25],
    "output_versions": [3, 3],
    "stop_reason": "length",
    "latency": 0.5,
    "ttft": 0.25,
}


async def test_agenerate_sends_tokens_and_reads_tokens():
    gateway = Gateway(ANSWER)
    async with gateway as engine:
        gconfig = GenerationHyperparameters(
            max_new_tokens=50, max_tokens=12, top_k=5, stop_token_ids=[2]
        )
        made = await engine.agenerate(ModelRequest(rid="r", input_ids=[1, 2, 3], gconfig=gconfig))
    assert (made.input_tokens, made.output_tokens) == ([1, 2, 3], [7, 8])
    assert (made.output_logprobs, made.output_versions) == ([-0.5, -0.25], [3, 3])
    assert (made.stop_reason, made.latency, made.ttft) == ("length", 0.5, 0.25)
    key, body = gateway.asked[0]
    assert key == "Bearer key"
    assert body == {
        "rid": "r",
        "input_ids": [1, 2, 3],
        "sampling_params": {
            "max_new_tokens": 9,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 5,
            "stop_token_ids": [2],
        },
    }


async def test_agenerate_says_what_is_wrong():
    async with Gateway({"error": {"message": "no token ids here"}}, 501) as engine:
        with pytest.raises(GenerationError, match="501: no token ids here"):
            await engine.agenerate(ModelRequest(input_ids=[1]))
        for request, message in [
            (ModelRequest(), "`input_ids` must be a list"),
            (
                ModelRequest(input_ids=[1], gconfig=GenerationHyperparameters(n_samples=2)),
                "`gconfig.n_samples` is 2",
            ),
            (
                ModelRequest(input_ids=[1] * 4, gconfig=GenerationHyperparameters(max_tokens=4)),
                "nothing is left to generate",
            ),
        ]:
            with pytest.raises(ValueError, match=message):
                await engine.agenerate(request)
    async with Gateway({**ANSWER, "output_logprobs": []}) as engine:
        with pytest.raises(GenerationError, match="0 `output_logprobs` for 2 tokens"):
            await engine.agenerate(ModelRequest(input_ids=[1]))


WORKER = """
import os
built = []

class Agent:
    def __init__(self):
        built.append(os.getpid())

    async def run(self, data, **extra_kwargs):
        assert len(built) == 1
        match data["do"]:
            case "number": return len(data)
            case "none": return None
            case "each": return {"a": 1, "b": 0.5}
            case "text": return "good"
            case "served": return len(data["messages"])
"""


async def test_a_worker_answers_with_the_grade(tmp_path: Path):
    async with loaded_worker(tmp_path, WORKER) as (worker, _, _):

        async def does(what: str, **fields: Any) -> Any:
            row = json.dumps({"do": what, "label": 7})
            return await worker.answer(run_task(**{"row": row, **fields}))

        done = await does("number", task=1)
        assert isinstance(done, RunDone)
        assert (done.samples[0].id, done.samples[0].reward) == ("main", 2.0)
        assert await does("none", task=2) == Rejected(2, "`run` returned None")
        each = await does("each", task=3)
        assert [(one.completion, one.reward) for one in each.interactions] == [("a", 1), ("b", 0.5)]
        failed = await does("text", task=4)
        assert isinstance(failed, TaskFailed)
        assert failed.failure.kind == "invalid_reward"
        served = await does("served", task=5, row=None, metadata='{"do": "served"}')
        assert served.samples[0].reward == 1.0


def test_the_engine_names_the_call_to_make_instead_of_one_that_it_does_not_have() -> None:
    engine = GatewayEngine("http://127.0.0.1:1/v1", "key")
    assert not hasattr(engine, "generate")
    with pytest.raises(AttributeError, match=r"has no `generate`.*await engine\.agenerate\("):
        engine.generate([1, 2])
