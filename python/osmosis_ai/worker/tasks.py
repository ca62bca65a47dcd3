"""Executes one `run` or `grade` frame and makes its answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.areal.own_grader import OwnGrader
from osmosis_ai.rollout.context import GraderContext, Judge, RolloutContext
from osmosis_ai.rollout.failure import failure_of
from osmosis_ai.rollout.json_text import dump_json
from osmosis_ai.rollout.types import RolloutSample
from osmosis_ai.worker.frames import (
    Failure,
    Grade,
    GradeDone,
    JudgeAccess,
    Rejected,
    Run,
    RunDone,
    Sample,
    TaskFailed,
)
from osmosis_ai.worker.own_grader import run_own_grader

if TYPE_CHECKING:
    from osmosis_ai.worker.loading import Rollout


async def execute_run(
    rollout: Rollout, task: Run, started: Callable[[], None]
) -> RunDone | Rejected:
    """Runs the workflow; raises what user code raised."""
    code = rollout.code
    if isinstance(code, OwnGrader):
        return await run_own_grader(code, rollout.load, task, started)
    context = RolloutContext(
        chat_completions_url=task.chat_completions_url,
        api_key=task.api_key,
        rollout_id=task.rollout_id,
    )
    prompt = json.loads(task.prompt)
    metadata = parse_json(task.metadata)
    artifacts_dir = made_folder(task.artifacts_dir)
    started()
    try:
        result = await code.workflow.run(context, prompt, metadata, artifacts_dir)
    finally:
        remove_if_empty(artifacts_dir)
    several = len(result.samples) > 1
    return RunDone(
        task=task.task,
        samples=[sample_frame(sample, several) for sample in result.samples],
        metrics=None if result.metrics is None else dump_json(result.metrics, "metrics"),
    )


async def execute_grade(rollout: Rollout, task: Grade, started: Callable[[], None]) -> GradeDone:
    """Runs the grader; raises what user code raised, or what it left undone."""
    given = {sample.id: sample for sample in task.samples}
    artifacts_dir = made_folder(task.artifacts_dir)
    context = GraderContext(
        label=task.label,
        samples={name: rollout_sample(sample, task.label) for name, sample in given.items()},
        metadata=parse_json(task.metadata),
        artifacts_dir=artifacts_dir,
        project_path=task.project_path,
        judge=None if task.judge is None else _judge(task.judge),
    )
    started()
    assert not isinstance(rollout.code, OwnGrader), "the engine grades nothing that grades itself"
    try:
        kept = await rollout.code.grader.grade(context)
    finally:
        remove_if_empty(artifacts_dir)
    return GradeDone(
        task=task.task, samples=[graded_frame(sample, given[sample.id]) for sample in kept]
    )


def _judge(access: JudgeAccess) -> Judge:
    return Judge(base_url=access.base_url, api_key=access.api_key, model=access.model)


def failed(task: int, error: BaseException) -> TaskFailed:
    """The answer for a task whose user code raised."""
    failure = failure_of(error)
    return TaskFailed(
        task,
        Failure(failure.category.value, failure.kind, failure.message, failure.traceback),
    )


def sample_frame(sample: RolloutSample, several: bool) -> Sample:
    """A workflow's sample on its way to the engine; `several` makes errors name it."""
    where = f"sample `{sample.id}`: " if several else ""
    return Sample(
        id=sample.id,
        messages=dump_json(sample.messages, f"{where}messages"),
        reward=sample.reward,
        remove_sample=sample.remove_sample,
        metrics=_object(sample.metrics, f"{where}metrics"),
        extra_fields=_object(sample.extra_fields, f"{where}extra_fields"),
    )


def rollout_sample(sample: Sample, label: str | None) -> RolloutSample:
    """A sample on its way to the grader."""
    return RolloutSample(
        id=sample.id,
        messages=json.loads(sample.messages),
        label=label,
        reward=sample.reward,
        remove_sample=sample.remove_sample,
        metrics=parse_json(sample.metrics) or {},
        extra_fields=parse_json(sample.extra_fields) or {},
    )


def graded_frame(sample: RolloutSample, given: Sample) -> Sample:
    """A graded sample on its way to the engine."""
    # A grader scores the conversation; the text of it goes back as it came.
    return Sample(
        id=given.id,
        messages=given.messages,
        reward=sample.reward,
        remove_sample=sample.remove_sample,
        metrics=_object(sample.metrics, f"sample `{given.id}`: metrics"),
        extra_fields=_object(sample.extra_fields, f"sample `{given.id}`: extra_fields"),
    )


def _object(value: dict[str, Any], where: str) -> str | None:
    return dump_json(value, where) if value else None


def parse_json(text: str | None) -> Any:
    """The value of JSON text, when there is any."""
    return None if text is None else json.loads(text)


def made_folder(path: str | None) -> Path | None:
    """The artifacts folder of a rollout, made when it is missing."""
    if path is None:
        return None
    folder = Path(path)
    # For their owner alone, each of them: `parents=True` would leave those above it to the umask.
    for missing in reversed([folder, *folder.parents]):
        if not missing.exists():
            missing.mkdir(mode=0o700, exist_ok=True)
    return folder


def remove_if_empty(folder: Path | None) -> None:
    """Most rollouts leave nothing behind; their folders go again."""
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.rmdir()
