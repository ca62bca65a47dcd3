"""The guide's table of troubles says what is really said."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    RolloutSample,
)
from osmosis_ai.rollout.discovery import discover
from osmosis_ai.rollout.entrypoint import EntrypointError
from osmosis_ai.rollout.execution import WorkflowRunner, graded
from osmosis_ai.rollout.failure import failure_of

ROOT = Path(__file__).parent.parent
GUIDE = ROOT.parent / "docs" / "python.md"
PROMPT = [{"role": "user", "content": "hi"}]
HEAD = "from osmosis_ai.rollout import *\n"
FLOW = "class {}(AgentWorkflow):\n    {}def run(self, ctx): pass\n"
GRADER = "class G(Grader):\n    async def grade(self, ctx): pass\n"

Misuse = Callable[[], Awaitable[Any]]
ALWAYS: list[Misuse] = []
OPENAI: list[Misuse] = []
STRANDS: list[Misuse] = []


def rows() -> dict[str, str]:
    """The messages of the tables, each with its cause."""
    text = GUIDE.read_text().partition("\n## Troubleshooting\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\| `(.+?)` \| (.+?) \| .+ \|$", text, re.M)
    assert len(table) == sum(
        line.startswith("| ") and not line.startswith("| message") for line in text.splitlines()
    )
    return dict(table)


def context(rollout_id: str = "r0-0", url: str = "http://127.0.0.1:9/v1") -> RolloutContext:
    return RolloutContext(url, "key", rollout_id)


def returning(value: Any) -> Misuse:
    class Returning(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> Any:
            return value

    return lambda: WorkflowRunner(Returning, None).run(context(), PROMPT, None, None)


def call(function: Callable[[], Any]) -> Misuse:
    async def calling() -> None:
        function()

    return calling


def entrypoint(folder: Path, source: str, overrides: dict[str, Any] | None = None) -> str:
    (folder / "main.py").write_text(HEAD + source)
    with pytest.raises(EntrypointError) as caught:
        discover(str(folder), "main.py", overrides)
    (problem,) = caught.value.problems
    return problem.message


def without(module: str, imported: str) -> str:
    code = f"import sys\nsys.modules['{module}'] = None\ntry:\n    import {imported}\n"
    code += "except ImportError as error:\n    print(error)\n"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    return said.stdout.strip()


two = GraderContext(
    label="1",
    samples={name: RolloutSample(id=name) for name in "ab"},
    turn_counts={"a": 2, "b": 1},
)
ALWAYS += [
    returning(None),
    returning("an answer"),
    returning(["an answer"]),
    call(lambda: graded(two.samples, two.samples)),
    call(lambda: two.set_sample_reward("c", 1)),
    call(lambda: two.set_reward(1)),
    call(lambda: two.set_sample_turn_rewards("a", [1])),
    call(lambda: two.set_sample_reward("a", float("nan"))),
    call(lambda: context().register_sample_source("a\n", None)),  # type: ignore[arg-type]
]

if importlib.util.find_spec("agents"):
    from agents import Runner

    from osmosis_ai.rollout.integrations.agents.openai_agents import (
        OsmosisAgent,
        OsmosisMemorySession,
        OsmosisRolloutModel,
    )

    async def asked_outside() -> None:
        await Runner.run(OsmosisAgent(name="a", model=OsmosisRolloutModel()), "hi")

    async def without_url() -> None:
        with RolloutContext():
            OsmosisAgent(name="a", model=OsmosisRolloutModel())

    async def without_session() -> None:
        with context():
            await Runner.run(OsmosisAgent(name="a", model=OsmosisRolloutModel()), "hi")

    async def without_model() -> None:
        with context():
            session = OsmosisMemorySession("s")
            await Runner.run(OsmosisAgent(name="a"), "hi", session=session)

    async def with_params() -> None:
        OsmosisRolloutModel(params={"temperature": 0.5})

    async def session_from_outside() -> None:
        session = OsmosisMemorySession("s")
        with context():
            await session.get_items()

    async def session_from_elsewhere() -> None:
        with context("r0-0"):
            session = OsmosisMemorySession("s")
        with context("r1-0"):
            await session.get_items()

    async def two_of_one_name() -> None:
        with context():
            OsmosisMemorySession("s")
            OsmosisMemorySession("s")

    OPENAI += [
        asked_outside,
        without_url,
        without_session,
        without_model,
        with_params,
        session_from_outside,
        session_from_elsewhere,
        two_of_one_name,
    ]

if importlib.util.find_spec("strands"):
    from strands import Agent

    from osmosis_ai.rollout.integrations.agents.strands import (
        OsmosisRolloutModel as StrandsModel,
    )
    from osmosis_ai.rollout.integrations.agents.strands import OsmosisStrandsAgent

    def strands_agent() -> OsmosisStrandsAgent:
        return OsmosisStrandsAgent(name="a", model=StrandsModel(), callback_handler=None)

    async def strands_outside() -> None:
        await strands_agent().invoke_async("hi")

    async def strands_without_url() -> None:
        with RolloutContext():
            await strands_agent().invoke_async("hi")

    async def plain_agent() -> None:
        with context():
            await Agent(model=StrandsModel(), callback_handler=None).invoke_async("hi")

    async def agent_from_elsewhere() -> None:
        with context("r0-0"):
            kept = strands_agent()
        with context("r1-0"):
            await kept.invoke_async("hi")

    async def two_agents_of_one_name() -> None:
        with context():
            strands_agent()
            strands_agent()

    STRANDS += [
        strands_outside,
        strands_without_url,
        plain_agent,
        agent_from_elsewhere,
        two_agents_of_one_name,
    ]


async def test_the_guide_has_every_message_and_every_message_of_the_guide_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ours = ("OSMOSIS_CHAT_COMPLETIONS_URL", "OSMOSIS_API_KEY", "OSMOSIS_ROLLOUT_ID")
    for variable in (*ours, "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    run = FLOW.format("W", "async ")
    said = [
        entrypoint(tmp_path, GRADER),
        entrypoint(tmp_path, run + FLOW.format("V", "async ") + GRADER),
        entrypoint(tmp_path, FLOW.format("W", "") + GRADER),
        entrypoint(tmp_path, run + GRADER, {"concurrency": {"max_concurrent": 0}}),
        without("agents", "osmosis_ai.rollout.integrations.agents.openai_agents"),
        without("strands", "osmosis_ai.rollout.integrations.agents.strands"),
    ]
    for misuse in [*ALWAYS, *OPENAI, *STRANDS]:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await misuse()
        said.append(failure_of(caught.value).message)

    unseen = rows()
    patterns = {row: ".*".join(map(re.escape, row.split("…"))) for row in unseen}
    for message in said:
        plain = message.replace("`", "")
        found = [row for row, pattern in patterns.items() if re.match(pattern, plain, re.DOTALL)]
        assert found, f"the guide does not have: {message}"
        for row in found:
            unseen.pop(row, None)
    here = {"OpenAI Agents:": bool(OPENAI), "Strands:": bool(STRANDS)}
    elsewhere = [framework for framework, there in here.items() if not there]
    missing = {row for row, cause in unseen.items() if not cause.startswith(tuple(elsewhere))}
    assert not missing
