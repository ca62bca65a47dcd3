"""Code that imports the real `areal`, 1.0.4 from PyPI, in a worker that has it installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.areal import workflow_context
from osmosis_ai.worker.frames import LoadFailed, RunDone
from tests.engine import Engine, loaded_worker, run_task
from tests.test_areal_workflows import ANSWER, Gateway

VERSION = "1.0.4"
TESTS = Path(__file__).parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or TESTS.parent.parent / "target")


@pytest.fixture(scope="module")
def installed() -> str:
    """`PYTHONPATH` with the package alone, which is small; what it depends on is not."""
    folder = TARGET / f"test-areal-{VERSION}"
    if not (folder / "areal").is_dir():
        made = folder.with_name(f"{folder.name}.{os.getpid()}")
        installer = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
        subprocess.run(
            [*installer, "install", "--quiet", "--no-deps", "--target", made, f"areal=={VERSION}"],
            check=True,
        )
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return os.pathsep.join([str(folder), str(TESTS)])


EPISODE = """
import areal_standins

areal_standins.install()
from areal.api.cli_args import GenerationHyperparameters
from areal.api.io_struct import ModelRequest
from areal.api.reward_api import AsyncRewardWrapper
from areal.api.workflow_api import RolloutWorkflow
from areal.infra import workflow_context
from areal.version import __version__

assert __version__ == "1.0.4"
for one in (ModelRequest, RolloutWorkflow, AsyncRewardWrapper, GenerationHyperparameters):
    assert one.__module__.startswith("areal.api."), one

class Episode(RolloutWorkflow):
    async def arun_episode(self, engine, data):
        assert workflow_context.get().is_eval and workflow_context.stat_scope() == "eval-rollout"
        gconfig = GenerationHyperparameters(max_new_tokens=4)
        made = await engine.agenerate(ModelRequest(input_ids=data["ids"], gconfig=gconfig))
        length = made.input_len + made.output_len
        return {
            "input_ids": [made.input_tokens + made.output_tokens],
            "attention_mask": [[1] * length],
            "rewards": [float(made.output_len)],
        }
"""
AGENT = """
import areal_standins

areal_standins.install()
from areal.infra import workflow_context

class Agent:
    async def run(self, data, **extra_kwargs):
        return float(workflow_context.get().is_eval) / 2
"""


async def test_an_episode_of_the_real_package_runs_as_it_is(tmp_path: Path, installed: str) -> None:
    gateway = Gateway(ANSWER)
    async with gateway, loaded_worker(tmp_path, EPISODE, PYTHONPATH=installed) as (worker, _, _):
        port = gateway.runner.addresses[0][1]
        row = json.dumps({"ids": [1, 2, 3]})
        url = f"http://127.0.0.1:{port}/v1"
        done = await worker.answer(run_task(row=row, url=url, is_eval=True))
    assert isinstance(done, RunDone), done
    assert done.samples[0].reward == 2.0
    assert gateway.asked[0][1]["sampling_params"]["max_new_tokens"] == 4


async def test_an_agent_that_asks_the_real_context_is_told(tmp_path: Path, installed: str) -> None:
    async with loaded_worker(tmp_path, AGENT, PYTHONPATH=installed) as (worker, _, _):
        for is_eval, reward in ((True, 0.5), (False, 0.0)):
            done = await worker.answer(run_task(row="{}", is_eval=is_eval))
            assert isinstance(done, RunDone), done
            assert done.samples[0].reward == reward


async def test_a_real_package_without_its_dependencies_is_not_replaced_by_ours(
    tmp_path: Path, installed: str
) -> None:
    (tmp_path / "main.py").write_text("from areal.api.workflow_api import RolloutWorkflow\n")
    async with Engine(tmp_path) as engine:
        worker, _ = await engine.start(tmp_path, PYTHONPATH=installed)
        answer = await worker.load(tmp_path)
    assert isinstance(answer, LoadFailed), answer
    assert "No module named" in str(answer)
    assert "Osmosis offers" not in str(answer)
    assert workflow_context.get() == workflow_context.WorkflowContext()
