"""One execution of a workflow or grader, and the rules for what comes out of it.

The worker and `LocalBackend` share this, so that a workflow behaves the same in both.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.config import ConfigCopies
from osmosis_ai.rollout.context import (
    AgentWorkflowContext,
    GraderContext,
    RolloutContext,
    judging_with,
)
from osmosis_ai.rollout.errors import NoSampleError, UngradedSampleError, WorkflowReturnError
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.jobs import UngradedSamples
from osmosis_ai.rollout.types import (
    AgentWorkflowConfig,
    AgentWorkflowOutput,
    GraderConfig,
    RolloutSample,
)

# The sample of a workflow that returns its messages instead of registering a source.
MAIN_SAMPLE = "main"

logger = logging.getLogger("osmosis_ai.rollout")
# What a sample has that nobody has graded.
NO_GRADE: dict[str, Any] = {"reward": None, "remove_sample": False, "turn_rewards": None}

_warned_of_grades = False


class WorkflowRunner:
    """Runs one workflow class, with its config."""

    def __init__(
        self, workflow: type[AgentWorkflow[Any]], config: AgentWorkflowConfig | None
    ) -> None:
        self.workflow = workflow
        self.config = config
        self._copies = ConfigCopies(config) if config is not None else None

    async def run(
        self,
        rollout: RolloutContext,
        prompt: list[dict[str, Any]],
        metadata: dict[str, Any] | None,
        artifacts_dir: Path | None,
    ) -> UngradedSamples:
        """Runs the workflow on one row inside its rollout context and collects the samples."""
        with rollout:
            config = self._copies.make() if self._copies is not None else None
            context = AgentWorkflowContext(
                prompt=prompt, config=config, metadata=metadata, artifacts_dir=artifacts_dir
            )
            returned = await _awaited(self.workflow(config).run(context), "run")
            samples = [_bare(sample) for sample in (await rollout.get_samples()).values()]
        return UngradedSamples(samples or [_returned_sample(returned)], _metrics(returned))


class GraderRunner:
    """Runs one grader class, with its config."""

    def __init__(self, grader: type[Grader], config: GraderConfig | None) -> None:
        self.grader = grader
        self.config = config
        self._copies = ConfigCopies(config) if config is not None else None

    async def grade(self, context: GraderContext) -> list[RolloutSample]:
        """Grades the samples of one rollout; every kept one has a reward afterwards."""
        expected = list(context.samples)
        context.samples = {name: _bare(sample) for name, sample in context.samples.items()}
        config = self._copies.make() if self._copies is not None else None
        with judging_with(context.judge):
            await _awaited(self.grader(config).grade(context), "grade")
        return graded(expected, context.samples)


def graded(expected: Iterable[str], samples: dict[str, RolloutSample]) -> list[RolloutSample]:
    """The samples after `grade`; raises `UngradedSampleError` naming all that were left out."""
    kept = []
    ungraded = []
    for name in expected:
        sample = samples.get(name)
        if sample is None or (sample.reward is None and not sample.remove_sample):
            ungraded.append(name)
        else:
            kept.append(sample if sample.id == name else sample.model_copy(update={"id": name}))
    if ungraded:
        names = ", ".join(f"`{name}`" for name in ungraded)
        raise UngradedSampleError(
            f"no reward for sample {names}; call `ctx.set_sample_reward(id, reward)` for every "
            "sample, or set `sample.remove_sample = True` on one that should not count"
        )
    return kept


def _bare(sample: RolloutSample) -> RolloutSample:
    """The sample without a grade: rewards and removals are the grader's alone."""
    global _warned_of_grades
    if sample.reward is None and not sample.remove_sample and sample.turn_rewards is None:
        return sample
    if not _warned_of_grades:
        _warned_of_grades = True
        logger.warning(
            "sample `%s` came with a reward or `remove_sample`; only what a grader sets counts",
            sample.id,
        )
    return sample.model_copy(update=NO_GRADE)


async def _awaited(result: Any, method: str) -> Any:
    if not inspect.isawaitable(result):
        raise WorkflowReturnError(f"`{method}` must be async, it returned {_name(result)}")
    return await result


def _returned_sample(returned: Any) -> RolloutSample:
    messages = returned.messages if isinstance(returned, AgentWorkflowOutput) else returned
    if messages is None or messages == []:
        raise NoSampleError(
            "`run` registered no sample source and returned no messages; use an integration's "
            "session or agent inside `run`, or return the list of messages"
        )
    if not isinstance(messages, list):
        raise WorkflowReturnError(
            f"`run` returned {_name(messages)}; without a registered sample source it must return "
            "a list of messages or an AgentWorkflowOutput"
        )
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise WorkflowReturnError(
                f"`run` returned a list whose item {index} is {_name(message)}; messages are dicts"
            )
    return RolloutSample(id=MAIN_SAMPLE, messages=messages)


def _metrics(returned: Any) -> dict[str, Any] | None:
    return (returned.metrics or None) if isinstance(returned, AgentWorkflowOutput) else None


def _name(value: Any) -> str:
    return f"a value of type `{type(value).__name__}`"
