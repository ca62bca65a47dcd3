"""Workflow kinds: the core knows none but its own, and takes those that register."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.rollout import workflow_kinds
from osmosis_ai.rollout.discovery import discover
from osmosis_ai.rollout.entrypoint import EntrypointError
from osmosis_ai.rollout.jobs import (
    CallRewards,
    Declined,
    GradedSamples,
    GradeJob,
    GradeResult,
    NoGrader,
    RolloutReward,
    RunJob,
    RunResult,
    UngradedSamples,
)
from osmosis_ai.rollout.types import RolloutSample
from osmosis_ai.rollout.workflow_kinds import (
    Candidate,
    LoadedWorkflow,
    Source,
    UserClass,
    WorkflowKind,
    register,
)
from osmosis_ai.worker.frames import Load, Rejected, RunDone, TaskFailed
from osmosis_ai.worker.loading import Rollout, load_rollout
from osmosis_ai.worker.tasks import execute_grade, execute_run, run_answer
from tests.engine import grade_task, run_task

OURS = """
from osmosis_ai.rollout import AgentWorkflow, Grader

class W(AgentWorkflow):
    async def run(self, ctx): return [{"role": "assistant", "content": "hi"}]

class G(Grader):
    async def grade(self, ctx): ctx.set_reward(1)
"""


@dataclass(frozen=True)
class LoadedFunction(LoadedWorkflow):
    function: Callable[..., Any]
    place: workflow_kinds.Location

    @property
    def workflow_class(self) -> UserClass:
        return UserClass(self.function.__name__, self.place)

    @property
    def grader_class(self) -> None:
        return None

    @property
    def warnings(self) -> list[str]:
        return []

    async def run(self, job: RunJob, started: Callable[[], None]) -> RunResult:
        started()
        return RolloutReward(float(self.function(job.row)), sequences=None, metrics={"n": 1})

    async def grade(self, job: GradeJob, started: Callable[[], None]) -> GradeResult:
        return NoGrader(self.function.__name__)


@dataclass(frozen=True)
class FunctionCandidate(Candidate):
    function: Callable[..., Any]

    @property
    def cls(self) -> type:
        return type(self.function)

    @property
    def is_declared(self) -> bool:
        return True

    def load(self, source: Source) -> LoadedWorkflow:
        return LoadedFunction(self.function, workflow_kinds.Location(source.entrypoint.shown, 1))


class FunctionKind(WorkflowKind):
    """A function named `rollout`."""

    name = "function"

    def prepare_process(self) -> None:
        pass

    def candidate(self, name: str, value: Any) -> Candidate | None:
        return FunctionCandidate(value) if name == "rollout" and callable(value) else None

    def candidates(self, source: Source) -> Sequence[Candidate]:
        found = self.candidate("rollout", getattr(source.module, "rollout", None))
        return [] if found is None else [found]


@pytest.fixture(autouse=True)
def _function_kind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workflow_kinds, "_registered", dict(workflow_kinds._registered))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(Path.cwd())
    register(FunctionKind())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_core_imports_no_other_kind():
    program = (
        "import sys, osmosis_ai.worker.main, osmosis_ai.rollout.server, osmosis_ai.rollout\n"
        "print(*[m for m in sys.modules if m.startswith(('osmosis_ai.areal', 'areal'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


async def test_a_registered_kind_is_found_run_and_not_graded(tmp_path: Path):
    (tmp_path / "main.py").write_text("def rollout(row): return row['value'] / 2\n")
    rollout = load_rollout(Load(str(tmp_path), "main.py", "{}", "{}"))
    assert isinstance(rollout, Rollout), rollout
    manifest = rollout.loaded.manifest
    assert (manifest.workflow.name, manifest.grader, manifest.self_graded) == (
        "rollout",
        None,
        True,
    )
    began: list[str] = []
    done = await execute_run(rollout, run_task(row='{"value": 3}'), lambda: began.append("run"))
    assert isinstance(done, RunDone), done
    assert (done.samples[0].reward, done.metrics, began) == (1.5, '{"n":1}', ["run"])
    failed = await execute_run(rollout, run_task(row="{}"), lambda: None)
    assert isinstance(failed, TaskFailed)
    assert failed.failure.kind == "KeyError"
    graded = await execute_grade(rollout, grade_task(), lambda: None)
    assert isinstance(graded, TaskFailed)
    assert (graded.failure.kind, "grades itself" in graded.failure.message) == ("no_grader", True)


def test_kinds_compete_and_a_name_decides(tmp_path: Path):
    (tmp_path / "main.py").write_text(OURS + "def rollout(row): return 1\n")
    with pytest.raises(EntrypointError) as caught:
        discover(str(tmp_path), "main.py")
    (problem,) = caught.value.problems
    assert problem.code == "several_workflows"
    assert "has 2 workflows: `W` (main.py:4)" in problem.message
    assert isinstance(discover(str(tmp_path), "main.py:rollout"), LoadedFunction)
    assert discover(str(tmp_path), "main.py:W").workflow_class.name == "W"


def test_every_result_of_a_run_has_its_frame():
    sample = RolloutSample(messages=[{"role": "user", "content": "a"}])
    done = run_answer(1, UngradedSamples([sample], None))
    assert isinstance(done, RunDone)
    assert (done.samples[0].reward, done.interactions) == (None, None)
    done = run_answer(1, RolloutReward(0.5, [{"input_ids": [1]}], None))
    assert isinstance(done, RunDone)
    assert done.samples[0].extra_fields == '{"sequences":[{"input_ids":[1]}]}'
    done = run_answer(1, CallRewards({"call": 1.0}, {"n": 2}))
    assert isinstance(done, RunDone)
    assert (done.samples, done.metrics) == ([], '{"n":2}')
    assert run_answer(1, Declined("why")) == Rejected(1, "why")
    with pytest.raises(AssertionError):
        run_answer(1, GradedSamples([]))  # type: ignore[arg-type]
