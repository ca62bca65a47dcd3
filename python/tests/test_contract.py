"""Every name of the contract, under every path where the contract has it."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import osmosis_ai

ROOT = Path(__file__).parent.parent

ANYWHERE = {
    "osmosis_ai.rollout": [
        "AgentWorkflow",
        "AgentWorkflowConfig",
        "AgentWorkflowContext",
        "AgentWorkflowOutput",
        "BaseConfig",
        "ConcurrencyConfig",
        "ControllerAuth",
        "create_rollout_server",
        "ExecutionBackend",
        "ExecutionRequest",
        "ExecutionResult",
        "get_rollout_context",
        "Grader",
        "GraderConfig",
        "GraderContext",
        "LocalBackend",
        "RolloutContext",
        "RolloutErrorCategory",
        "RolloutSample",
        "RolloutStatus",
        "SampleSource",
    ],
    "osmosis_ai.rollout.agent_workflow": ["AgentWorkflow"],
    "osmosis_ai.rollout.context": [
        "AgentWorkflowContext",
        "GraderContext",
        "RolloutContext",
        "SampleSource",
        "get_rollout_context",
    ],
    "osmosis_ai.rollout.grader": ["Grader"],
    "osmosis_ai.rollout.types": [
        "AgentWorkflowConfig",
        "AgentWorkflowOutput",
        "BaseConfig",
        "ConcurrencyConfig",
        "ExecutionRequest",
        "ExecutionResult",
        "GraderConfig",
        "RolloutErrorCategory",
        "RolloutSample",
        "RolloutStatus",
    ],
    "osmosis_ai.rollout.backend": ["ExecutionBackend", "LocalBackend"],
    "osmosis_ai.rollout.backend.local": ["LocalBackend"],
    "osmosis_ai.rollout.server": ["ControllerAuth", "create_rollout_server"],
}
WITH_FRAMEWORK = {
    ("agents", "osmosis_ai.rollout.integrations.agents.openai_agents"): [
        "OsmosisAgent",
        "OsmosisLitellmModel",
        "OsmosisMemorySession",
        "OsmosisRolloutModel",
    ],
    ("strands", "osmosis_ai.rollout.integrations.agents.strands"): [
        "OsmosisRolloutModel",
        "OsmosisStrandsAgent",
    ],
    ("strands", "osmosis_ai.rollout"): ["OsmosisRolloutModel", "OsmosisStrandsAgent"],
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in ANYWHERE.items() for name in names]
)
def test_a_name_is_where_the_contract_has_it(module: str, name: str):
    value = getattr(importlib.import_module(module), name)
    assert value is getattr(importlib.import_module("osmosis_ai.rollout"), name)
    assert value.__doc__


@pytest.mark.parametrize(
    ("framework", "module", "name"),
    [(*place, name) for place, names in WITH_FRAMEWORK.items() for name in names],
)
def test_a_name_of_an_integration_is_where_its_framework_is(framework: str, module: str, name: str):
    pytest.importorskip(framework)
    assert getattr(importlib.import_module(module), name).__doc__


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_sdk_loads_no_agent_framework_and_no_client():
    code = """
import sys, osmosis_ai.rollout, osmosis_ai.rollout.server, osmosis_ai.worker.main
heavy = {"agents", "openai", "strands", "litellm", "httpx", "httpx2", "aiohttp", "numpy", "boto3"}
print(sorted(heavy & set(sys.modules)))
"""
    assert in_fresh_python(code) == "[]"


@pytest.mark.parametrize(
    ("missing", "statement", "extra"),
    [
        (
            "agents",
            "import osmosis_ai.rollout.integrations.agents.openai_agents",
            "osmosis-rs[openai-agents]",
        ),
        ("strands", "import osmosis_ai.rollout.integrations.agents.strands", "osmosis-rs[strands]"),
        ("strands", "from osmosis_ai.rollout import OsmosisStrandsAgent", "osmosis-rs[strands]"),
    ],
)
def test_a_missing_framework_is_an_error_that_names_the_extra(
    missing: str, statement: str, extra: str
):
    code = f"""
import sys
sys.modules["{missing}"] = None
try:
    {statement}
except ImportError as error:
    print(error)
"""
    assert f"pip install '{extra}'" in in_fresh_python(code)


def test_importing_everything_by_star_loads_no_framework():
    code = "import sys\nfrom osmosis_ai.rollout import *\nprint('strands' in sys.modules)"
    assert in_fresh_python(code) == "False"


def test_the_package_is_marked_as_typed():
    assert (Path(osmosis_ai.__file__).parent / "py.typed").is_file()
