"""Executes one `run` frame with a workflow of AReaL's shape, whose return value is the grade."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from osmosis_ai.areal import http_clients, results, rollout_environ, workflow_context
from osmosis_ai.areal.building import Mode
from osmosis_ai.areal.gateway_engine import GatewayEngine
from osmosis_ai.areal.own_grader import OwnGrader
from osmosis_ai.areal.subprocess_mode import run_in_subprocess
from osmosis_ai.areal.workflow_api import WorkflowShape
from osmosis_ai.rollout.errors import WorkflowReturnError
from osmosis_ai.rollout.execution import MAIN_SAMPLE
from osmosis_ai.rollout.json_text import dump_json
from osmosis_ai.worker.frames import InteractionReward, Load, Rejected, Run, RunDone, Sample


async def run_own_grader(
    code: OwnGrader, load: Load, task: Run, started: Callable[[], None]
) -> RunDone | Rejected:
    """Runs the workflow on the row; raises what user code raised."""
    data = _data(task)
    context = workflow_context.WorkflowContext(is_eval=bool(task.is_eval), task_id=task.task)
    variables = rollout_environ.unset_variables(task.chat_completions_url, task.other_api_key)
    numbers: dict[str, float] = {}
    started()
    with workflow_context.entered(context) as tracked, rollout_environ.entered(variables):
        if code.shape is WorkflowShape.EPISODE:
            engine = GatewayEngine(task.chat_completions_url, task.api_key)
            returned = await code.workflow.arun_episode(engine, data)
            answer = _episode(task.task, results.read_episode(returned))
        elif code.mode is Mode.SUBPROCESS:
            ended = await run_in_subprocess(_to_load(load), data, _address(task), context)
            numbers = ended.numbers
            answer = _agent(task.task, results.read_agent_reward(ended.returned))
        else:
            returned = await code.workflow.run(data, **_extra(task))
            answer = _agent(task.task, results.read_agent_reward(returned))
    numbers = {**numbers, **tracked.numbers()}
    if isinstance(answer, RunDone) and numbers:
        return RunDone(
            answer.task, answer.samples, dump_json(numbers, "metrics"), answer.interactions
        )
    return answer


def _data(task: Run) -> dict[str, Any]:
    """The dataset row; a served request has messages and metadata instead."""
    if task.row is not None:
        row: dict[str, Any] = json.loads(task.row)
        return row
    metadata = {} if task.metadata is None else json.loads(task.metadata)
    return {"messages": json.loads(task.prompt), **metadata}


def _to_load(load: Load) -> dict[str, Any]:
    return {
        "project_path": load.project_path,
        "entrypoint": load.entrypoint,
        "workflow": json.loads(load.workflow),
    }


def _address(task: Run) -> dict[str, Any]:
    return {"base_url": task.chat_completions_url, "api_key": task.api_key}


def _extra(task: Run) -> dict[str, Any]:
    extra = _address(task)
    # Without httpx there is no SDK that could take one.
    extra["http_client"] = http_clients.httpx_client() if http_clients.has_httpx() else None
    return extra


def _agent(
    task: int, read: results.LastReward | results.RewardsById | results.Rejected
) -> RunDone | Rejected:
    if isinstance(read, results.Rejected):
        return Rejected(task, "`run` returned None")
    if isinstance(read, results.LastReward):
        return RunDone(task, [_sample(read.reward, None)], None)
    rewards = [InteractionReward(key, reward) for key, reward in read.rewards.items()]
    return RunDone(task, [], None, rewards)


def _episode(task: int, read: results.Episode | results.Rejected) -> RunDone | Rejected:
    if isinstance(read, results.Rejected):
        return Rejected(task, "`arun_episode` returned None")
    rewards = [one.reward for one in read.sequences if one.reward is not None]
    if not rewards:
        raise WorkflowReturnError(
            "`arun_episode` returned no reward: add `rewards` with one number per sequence, or "
            "return None to reject the rollout"
        )
    sequences = [_sequence(one) for one in read.sequences]
    extra_fields = dump_json({"sequences": sequences}, "sequences")
    return RunDone(task, [_sample(sum(rewards) / len(rewards), extra_fields)], None)


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


def _sample(reward: float, extra_fields: str | None) -> Sample:
    return Sample(id=MAIN_SAMPLE, messages="[]", reward=reward, extra_fields=extra_fields)
