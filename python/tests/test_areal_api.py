"""The names that code written for AReaL imports, and what they do here."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.areal import alias, reward_api, stats_tracker, workflow_context
from osmosis_ai.areal.cli_args import GenerationHyperparameters
from osmosis_ai.areal.io_struct import ModelRequest, ModelResponse
from osmosis_ai.areal.workflow_api import RolloutWorkflow, WorkflowShape, workflow_shape


@pytest.fixture
def aliased() -> Iterator[None]:
    alias.install_alias()
    yield
    alias.remove_alias()
    assert "areal" not in sys.modules


@pytest.mark.usefixtures("aliased")
def test_the_contracts_names_are_importable_and_are_ours() -> None:
    from areal.api.cli_args import GenerationHyperparameters as Hyperparameters
    from areal.api.io_struct import ModelRequest as Request
    from areal.api.io_struct import ModelResponse as Response
    from areal.api.reward_api import AsyncRewardWrapper
    from areal.api.workflow_api import RolloutWorkflow as Workflow
    from areal.infra import workflow_context as context

    assert Hyperparameters is GenerationHyperparameters
    assert (Request, Response) == (ModelRequest, ModelResponse)
    assert AsyncRewardWrapper is reward_api.AsyncRewardWrapper
    assert Workflow is RolloutWorkflow
    assert context is workflow_context
    assert reward_api.__name__ == "osmosis_ai.areal.reward_api"
    assert reward_api.__spec__ is not None
    assert reward_api.__spec__.name == reward_api.__name__


@pytest.mark.usefixtures("aliased")
def test_the_shorter_ways_to_import_them_work_too() -> None:
    import areal.infra.workflow_context
    from areal import workflow_context as context
    from areal.api import AsyncRewardWrapper, InferenceEngine, ModelRequest, RolloutWorkflow
    from areal.utils import logging, stats_tracker

    assert context is areal.infra.workflow_context
    assert all((AsyncRewardWrapper, InferenceEngine, ModelRequest, RolloutWorkflow))
    assert stats_tracker.get is importlib.import_module("osmosis_ai.areal.stats_tracker").get
    assert logging.getLogger("x").name == "x"


@pytest.mark.usefixtures("aliased")
def test_what_is_not_offered_says_what_is() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"`areal.engine`: .*offers `areal.api.cli_args`"):
        importlib.import_module("areal.engine")
    with pytest.raises(ImportError, match="PPOTrainer"):
        exec("from areal import PPOTrainer")


def test_a_real_areal_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "areal" / "api"
    package.mkdir(parents=True)
    (tmp_path / "areal" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "workflow_api.py").write_text("class RolloutWorkflow: real = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    alias.install_alias()
    try:
        from areal.api.workflow_api import RolloutWorkflow as Real

        assert Real.real
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'areal.api.reward_api'"):
            importlib.import_module("areal.api.reward_api")
    finally:
        alias.remove_alias()
        for name in [name for name in sys.modules if name.partition(".")[0] == "areal"]:
            del sys.modules[name]


def test_installing_twice_is_installing_once() -> None:
    alias.install_alias()
    alias.install_alias()
    alias.remove_alias()
    assert not alias.alias_installed()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("areal.api.reward_api")


class Episodes(RolloutWorkflow):
    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> None:
        return None


class WrittenForTheRealOne:
    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> None:
        return None


class Agent:
    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        return 1.0


class OsmosisShaped:
    async def run(self, ctx: Any) -> None:
        return None


class NotAsync:
    def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (Episodes, WorkflowShape.EPISODE),
        (Episodes(), WorkflowShape.EPISODE),
        (WrittenForTheRealOne, WorkflowShape.EPISODE),
        (Agent, WorkflowShape.AGENT),
        (Agent(), WorkflowShape.AGENT),
        (RolloutWorkflow, None),
        (OsmosisShaped, None),
        (NotAsync, None),
        (3, None),
    ],
)
def test_workflows_are_known_by_their_methods(value: Any, shape: WorkflowShape | None) -> None:
    assert workflow_shape(value) is shape


class Tokenizer:
    eos_token_id = 2
    pad_token_id = 0


def test_settings_copy_without_sharing() -> None:
    settings = GenerationHyperparameters(stop_token_ids=[7], stop=["a"])
    copied = settings.new(n_samples=4)
    copied.stop_token_ids.append(8)
    assert (settings.stop_token_ids, settings.n_samples, copied.n_samples) == ([7], 1, 4)
    assert settings.new_with_stop_and_pad_token_ids(Tokenizer()).stop_token_ids == [7, 0, 2]
    with pytest.raises(TypeError):
        settings.new(no_such_setting=1)


def test_settings_in_the_words_of_openai() -> None:
    settings = GenerationHyperparameters(max_new_tokens=9, temperature=0.5, top_k=3)
    assert settings.to_openai_args_dict(exclude_args=["stop"]) == {
        "n": 1,
        "max_completion_tokens": 9,
        "top_p": 1.0,
        "temperature": 0.5,
        "frequency_penalty": 0.0,
    }
    assert settings.to_openai_responses_args_dict()["max_output_tokens"] == 9
    assert settings.to_openai_agents_model_settings_dict()["max_tokens"] == 9
    with pytest.raises(ValueError, match="unknown `api_format` `grpc`"):
        settings.to_openai_args_dict(api_format="grpc")


def test_requests_have_ids_of_their_own_and_copy_without_sharing() -> None:
    request = ModelRequest(input_ids=[1])
    copied = request.copy()
    copied.input_ids.append(2)
    copied.metadata["x"] = 1
    assert (request.input_ids, request.metadata, copied.rid) == ([1], {}, request.rid)
    assert ModelRequest().rid != ModelRequest().rid


def test_a_response_without_its_stop_tokens() -> None:
    response = ModelResponse([1], [5, 6, 2, 0], tokenizer=Tokenizer())
    assert (response.input_len, response.output_len, response.end_with_stop) == (1, 4, True)
    assert response.output_tokens_without_stop == [5, 6]
    cut = ModelResponse([1], [5, 2], stop_reason="length", tokenizer=Tokenizer())
    assert cut.output_tokens_without_stop == [5, 2]
    for tokens, text in (([5], "neither"), ([2, 2], "nothing would be left")):
        with pytest.raises(ValueError, match=text):
            _ = ModelResponse([1], tokens, tokenizer=Tokenizer()).output_tokens_without_stop
    with pytest.raises(ValueError, match="no tokenizer"):
        _ = ModelResponse([1], [5]).end_with_stop


def test_numbers_are_reported_under_their_scope() -> None:
    with stats_tracker.collecting() as collected:
        tracker = stats_tracker.get("rollout")
        tracker.scalar(reward=1, turns=2)
        tracker.scalar(reward=0)
        with tracker.scope("math"):
            tracker.scalar(correct=True)
        with tracker.record_timing("tool"):
            pass
    numbers = collected.numbers()
    assert numbers.pop("timeperf/tool") >= 0
    assert numbers == {
        "rollout/reward": 0.5,
        "rollout/reward__count": 2,
        "rollout/turns": 2.0,
        "rollout/turns__count": 1,
        "rollout/math/correct": 1.0,
        "rollout/math/correct__count": 1,
        "timeperf/tool__count": 1,
    }


def test_arrays_are_reported_where_their_mask_is_set() -> None:
    with stats_tracker.collecting() as collected:
        tracker = stats_tracker.get("")
        tracker.denominator(tokens=[[True, False], [True, True]])
        tracker.stat("tokens", entropy=[[1.0, 9.0], [2.0, 3.0]])
        tracker.stat("tokens", stats_tracker.ReduceType.MAX, peak=[[1.0, 9.0], [2.0, 3.0]])
        with pytest.raises(ValueError, match="has 1 values, its mask `tokens` has 4"):
            tracker.stat("tokens", short=[1.0])
        with pytest.raises(ValueError, match="there is no mask `other`"):
            tracker.stat("other", entropy=[1.0])
    assert collected.numbers() == {
        "tokens": 3.0,
        "entropy/avg": 2.0,
        "entropy/min": 1.0,
        "entropy/max": 3.0,
        "peak": 3.0,
    }


def test_outside_of_a_rollout_numbers_are_exported_by_hand() -> None:
    stats_tracker.export_all()
    stats_tracker.scalar(a=1)
    stats_tracker.get("b").scalar(c=2)
    assert stats_tracker.get("b").export() == {"b/c": 2.0, "b/c__count": 1}
    assert stats_tracker.export_all() == {"a": 1.0, "a__count": 1}
    assert stats_tracker.export_all() == {}
