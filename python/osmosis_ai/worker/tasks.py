"""Executes one `run` or `grade` frame and makes its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import assert_never

from osmosis_ai.rollout.context import Judge
from osmosis_ai.rollout.execution import MAIN_SAMPLE
from osmosis_ai.rollout.failure import failure_of
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
from osmosis_ai.rollout.json_text import dump_json
from osmosis_ai.rollout.types import RolloutSample
from osmosis_ai.worker import debugging
from osmosis_ai.worker.frames import (
    Failure,
    Grade,
    GradeDone,
    InteractionReward,
    JudgeAccess,
    Rejected,
    Run,
    RunDone,
    Sample,
    TaskFailed,
)

if TYPE_CHECKING:
    from osmosis_ai.worker.loading import Rollout

RunAnswer: TypeAlias = RunDone | Rejected | TaskFailed
GradeAnswer: TypeAlias = GradeDone | TaskFailed


async def execute_run(rollout: Rollout, task: Run, started: Callable[[], None]) -> RunAnswer:
    """Runs the workflow. What user code raises becomes `TaskFailed`."""
    try:
        result = await rollout.workflow.run(run_job(task), started)
        return run_answer(task.task, result)
    except BaseException as error:
        # User code may raise anything, SystemExit included; it ends the task, not us.
        debugging.examine(error)
        return failed(task.task, error)


async def execute_grade(rollout: Rollout, task: Grade, started: Callable[[], None]) -> GradeAnswer:
    """Runs the grader. What user code raises, or leaves ungraded, becomes `TaskFailed`."""
    try:
        result = await rollout.workflow.grade(grade_job(task), started)
        return grade_answer(task, result)
    except BaseException as error:
        debugging.examine(error)
        return failed(task.task, error)


def run_job(task: Run) -> RunJob:
    """The frame's JSON text as values."""
    return RunJob(
        task=task.task,
        rollout_id=task.rollout_id,
        prompt=json.loads(task.prompt),
        metadata=parse_json(task.metadata),
        chat_completions_url=task.chat_completions_url,
        api_key=task.api_key,
        artifacts_dir=task.artifacts_dir,
        row=parse_json(task.row),
        is_eval=bool(task.is_eval),
        other_api_key=task.other_api_key,
    )


def grade_job(task: Grade) -> GradeJob:
    """The frame's JSON text as values."""
    return GradeJob(
        label=task.label,
        samples={sample.id: rollout_sample(sample, task.label) for sample in task.samples},
        metadata=parse_json(task.metadata),
        artifacts_dir=task.artifacts_dir,
        project_path=task.project_path,
        judge=None if task.judge is None else _judge(task.judge),
        turn_counts=task.turns,
    )


def run_answer(task: int, result: RunResult) -> RunDone | Rejected:
    """The frame for what the workflow returned."""
    match result:
        case UngradedSamples(samples, metrics):
            several = len(samples) > 1
            frames = [sample_frame(sample, several) for sample in samples]
            return RunDone(task, frames, _metrics(metrics))
        case RolloutReward(reward, sequences, metrics):
            extra = None if sequences is None else {"sequences": sequences}
            sample = Sample(
                id=MAIN_SAMPLE,
                messages="[]",
                reward=reward,
                extra_fields=None if extra is None else dump_json(extra, "sequences"),
            )
            return RunDone(task, [sample], _metrics(metrics))
        case CallRewards(rewards, metrics):
            calls = [InteractionReward(call, reward) for call, reward in rewards.items()]
            return RunDone(task, [], _metrics(metrics), calls)
        case Declined(reason):
            return Rejected(task, reason)
        case _:
            assert_never(result)


def grade_answer(task: Grade, result: GradeResult) -> GradeAnswer:
    """The frame for what the grader left."""
    match result:
        case GradedSamples(samples):
            return grade_done(task, samples)
        case NoGrader(workflow):
            message = f"`{workflow}` grades itself: there is nothing to grade apart from a run"
            return TaskFailed(task.task, Failure("agent_error", "no_grader", message))
        case _:
            assert_never(result)


def grade_done(task: Grade, samples: Iterable[RolloutSample]) -> GradeDone:
    """The frame for graded samples."""
    given = {sample.id: sample for sample in task.samples}
    frames = []
    turn_rewards = {}
    for sample in samples:
        frames.append(graded_frame(sample, given[sample.id]))
        if sample.turn_rewards is not None:
            turn_rewards[sample.id] = sample.turn_rewards
    return GradeDone(task.task, frames, turn_rewards or None)


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


def _metrics(value: dict[str, Any] | None) -> str | None:
    return None if value is None else dump_json(value, "metrics")


def parse_json(text: str | None) -> Any:
    """The value of JSON text, when there is any."""
    return None if text is None else json.loads(text)
