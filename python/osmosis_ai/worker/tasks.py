"""Executes one `run` or `grade` frame and makes its answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.context import GraderContext, RolloutContext
from osmosis_ai.rollout.failure import failure_of
from osmosis_ai.rollout.json_text import dump_json
from osmosis_ai.rollout.types import RolloutSample
from osmosis_ai.worker.frames import (
    Failure,
    Grade,
    GradeDone,
    Run,
    RunDone,
    Sample,
    TaskFailed,
)
from osmosis_ai.worker.loading import Rollout


async def execute_run(rollout: Rollout, task: Run, started: Callable[[], None]) -> RunDone:
    """Runs the workflow; raises what user code raised."""
    context = RolloutContext(
        chat_completions_url=task.chat_completions_url,
        api_key=task.api_key,
        rollout_id=task.rollout_id,
    )
    prompt = json.loads(task.prompt)
    metadata = _parsed(task.metadata)
    artifacts_dir = _folder(task.artifacts_dir)
    started()
    try:
        result = await rollout.workflow.run(context, prompt, metadata, artifacts_dir)
    finally:
        _tidy(artifacts_dir)
    several = len(result.samples) > 1
    return RunDone(
        task=task.task,
        samples=[_sample(sample, several) for sample in result.samples],
        metrics=None if result.metrics is None else dump_json(result.metrics, "metrics"),
    )


async def execute_grade(rollout: Rollout, task: Grade, started: Callable[[], None]) -> GradeDone:
    """Runs the grader; raises what user code raised, or what it left undone."""
    given = {sample.id: sample for sample in task.samples}
    artifacts_dir = _folder(task.artifacts_dir)
    context = GraderContext(
        label=task.label,
        samples={name: _rollout_sample(sample, task.label) for name, sample in given.items()},
        metadata=_parsed(task.metadata),
        artifacts_dir=artifacts_dir,
        project_path=task.project_path,
    )
    started()
    try:
        kept = await rollout.grader.grade(context)
    finally:
        _tidy(artifacts_dir)
    return GradeDone(
        task=task.task, samples=[_graded_sample(sample, given[sample.id]) for sample in kept]
    )


def failed(task: int, error: BaseException) -> TaskFailed:
    """The answer for a task whose user code raised."""
    failure = failure_of(error)
    return TaskFailed(
        task,
        Failure(failure.category.value, failure.kind, failure.message, failure.traceback),
    )


def _sample(sample: RolloutSample, several: bool) -> Sample:
    where = f"sample `{sample.id}`: " if several else ""
    return Sample(
        id=sample.id,
        messages=dump_json(sample.messages, f"{where}messages"),
        reward=sample.reward,
        remove_sample=sample.remove_sample,
        metrics=_object(sample.metrics, f"{where}metrics"),
        extra_fields=_object(sample.extra_fields, f"{where}extra_fields"),
    )


def _rollout_sample(sample: Sample, label: str | None) -> RolloutSample:
    return RolloutSample(
        id=sample.id,
        messages=json.loads(sample.messages),
        label=label,
        reward=sample.reward,
        remove_sample=sample.remove_sample,
        metrics=_parsed(sample.metrics) or {},
        extra_fields=_parsed(sample.extra_fields) or {},
    )


def _graded_sample(sample: RolloutSample, given: Sample) -> Sample:
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


def _parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _folder(path: str | None) -> Path | None:
    if path is None:
        return None
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tidy(folder: Path | None) -> None:
    """Most rollouts leave nothing behind; their folders go again."""
    if folder is not None:
        with contextlib.suppress(OSError):
            folder.rmdir()
