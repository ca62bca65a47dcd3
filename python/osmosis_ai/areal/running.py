"""Runs one rollout of an AReaL-style workflow; what the workflow returns is the grade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from typing_extensions import assert_never

from osmosis_ai.areal import http_clients, results, rollout_environ, workflow_context
from osmosis_ai.areal.building import Mode
from osmosis_ai.areal.gateway_engine import GatewayEngine
from osmosis_ai.areal.subprocess_mode import run_in_subprocess
from osmosis_ai.areal.workflow_api import WorkflowShape
from osmosis_ai.rollout.errors import WorkflowReturnError
from osmosis_ai.rollout.jobs import (
    CallRewards,
    Declined,
    RolloutReward,
    RunJob,
    RunResult,
    UngradedSamples,
)
from osmosis_ai.rollout.workflow_kinds import LoadRequest


async def run_rollout(
    workflow: Any,
    shape: WorkflowShape,
    mode: Mode,
    request: LoadRequest,
    job: RunJob,
    started: Callable[[], None],
) -> RunResult:
    """Runs the workflow on the row; raises what user code raised."""
    data = _data(job)
    context = workflow_context.WorkflowContext(is_eval=job.is_eval, task_id=job.task)
    variables = rollout_environ.unset_variables(job.chat_completions_url, job.other_api_key)
    numbers: dict[str, float] = {}
    started()
    with workflow_context.entered(context) as tracked, rollout_environ.entered(variables):
        if shape is WorkflowShape.EPISODE:
            engine = GatewayEngine(job.chat_completions_url, job.api_key)
            returned = await workflow.arun_episode(engine, data)
            result = _episode_result(results.read_episode(returned))
        elif mode is Mode.SUBPROCESS:
            ended = await run_in_subprocess(_to_load(request), data, _address(job), context)
            numbers = ended.numbers
            result = _agent_result(results.read_agent_reward(ended.returned))
        else:
            returned = await workflow.run(data, **_extra(job))
            result = _agent_result(results.read_agent_reward(returned))
    return _with_metrics(result, {**numbers, **tracked.numbers()})


def _data(job: RunJob) -> dict[str, Any]:
    """The dataset row; a served request has messages and metadata instead."""
    if job.row is not None:
        return job.row
    return {"messages": job.prompt, **(job.metadata or {})}


def _to_load(request: LoadRequest) -> dict[str, Any]:
    return {
        "project_path": request.project_path,
        "entrypoint": request.entrypoint,
        "workflow": request.workflow_table,
    }


def _address(job: RunJob) -> dict[str, Any]:
    return {"base_url": job.chat_completions_url, "api_key": job.api_key}


def _extra(job: RunJob) -> dict[str, Any]:
    extra = _address(job)
    # Without httpx there is no SDK that could take one.
    extra["http_client"] = http_clients.httpx_client() if http_clients.has_httpx() else None
    return extra


def _agent_result(
    read: results.LastReward | results.RewardsById | results.Rejected,
) -> RunResult:
    match read:
        case results.Rejected():
            return Declined("`run` returned None")
        case results.LastReward(reward):
            return RolloutReward(reward, sequences=None, metrics=None)
        case results.RewardsById(rewards):
            return CallRewards(rewards, metrics=None)
        case _:
            assert_never(read)


def _episode_result(read: results.Episode | results.Rejected) -> RunResult:
    match read:
        case results.Rejected():
            return Declined("`arun_episode` returned None")
        case results.Episode(sequences):
            rewards = [one.reward for one in sequences if one.reward is not None]
            if not rewards:
                raise WorkflowReturnError(
                    "`arun_episode` returned no reward: add `rewards` with one number per "
                    "sequence, or return None to reject the rollout"
                )
            mean = sum(rewards) / len(rewards)
            return RolloutReward(mean, [_sequence(one) for one in sequences], metrics=None)
        case _:
            assert_never(read)


def _sequence(one: results.Sequence) -> dict[str, Any]:
    named = {
        "input_ids": one.input_ids,
        "loss_mask": one.loss_mask,
        "logprobs": one.logprobs,
        "versions": one.versions,
        "reward": one.reward,
        "id": one.id,
    }
    return {name: value for name, value in named.items() if value is not None}


def _with_metrics(result: RunResult, numbers: dict[str, float]) -> RunResult:
    match result:
        case Declined():
            return result
        case RolloutReward() | CallRewards() | UngradedSamples():
            return replace(result, metrics=dict(numbers)) if numbers else result
        case _:
            assert_never(result)
