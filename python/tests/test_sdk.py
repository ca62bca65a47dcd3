"""Contexts, samples, configs and the local backend."""

import asyncio
import errno
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    BaseConfig,
    ConcurrencyConfig,
    ExecutionRequest,
    ExecutionResult,
    Grader,
    GraderConfig,
    GraderContext,
    LocalBackend,
    RolloutContext,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.config import ConfigCopies
from osmosis_ai.rollout.errors import InvalidRewardError, NotJsonError
from osmosis_ai.rollout.failure import error_category, failure_of
from osmosis_ai.rollout.json_text import dump_json
from osmosis_ai.rollout.types import as_reward


class Source(SampleSource):
    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=self.messages)


class OldSource(SampleSource):
    """As written for edition 0.3, without a name."""

    async def get_sample(self) -> RolloutSample:  # type: ignore[override]
        return RolloutSample(messages=[{"old": True}])


def test_the_context_is_current_only_inside():
    assert get_rollout_context() is None
    outer, inner = RolloutContext("http://a"), RolloutContext("http://b")
    with outer:
        with inner:
            assert get_rollout_context() is inner
        assert get_rollout_context() is outer
    assert get_rollout_context() is None


def test_empty_fields_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://env/v1")
    monkeypatch.setenv("OSMOSIS_API_KEY", "env-key")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "env-id")
    context = RolloutContext()
    got = (context.chat_completions_url, context.api_key, context.rollout_id)
    assert got == ("http://env/v1", "env-key", "env-id")
    assert RolloutContext("http://x", "k", "r").api_key == "k"
    assert "env-key" not in repr(context)


@pytest.mark.parametrize(
    "url",
    [
        "http://h/v1",
        "http://h/v1/",
        "http://h/v1/chat/completions",
        "http://h/v1/chat/completions/",
    ],
)
def test_the_base_url_has_no_endpoint(url: str):
    assert RolloutContext(url).base_url == "http://h/v1"


async def test_samples_come_from_their_sources_in_order():
    context = RolloutContext(rollout_id="r1-0")
    context.register_sample_source("b", Source({"n": 1}))
    context.register_sample_source("a", Source())
    with pytest.raises(ValueError, match="`b` is already registered"):
        context.register_sample_source("b", Source())
    samples = await context.get_samples()
    assert list(samples) == ["b", "a"]
    assert samples["b"].messages == [{"n": 1}]
    assert (await context.get_sample("a")) == samples["a"]
    with pytest.raises(ValueError, match="name one"):
        await context.get_sample()


async def test_the_names_of_edition_03_work():
    context = RolloutContext()
    assert await context.get_sample() is None
    context.set_sample_source(OldSource())
    sample = await context.get_sample()
    assert sample is not None
    assert (sample.id, sample.messages) == ("main", [{"old": True}])


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, "\ud800", 7])
def test_names_the_engine_can_not_carry_are_refused(name: Any):
    with pytest.raises(ValueError, match="sample id"):
        RolloutContext().register_sample_source(name, Source())


@pytest.mark.parametrize(
    ("given", "reward"),
    [(1, 1.0), (True, 1.0), (0.25, 0.25), (Fraction(1, 2), 0.5), (-1e15, -1e15)],
)
def test_numbers_are_rewards(given: Any, reward: float):
    assert as_reward(given) == reward
    assert RolloutSample(reward=given).reward == reward


@pytest.mark.parametrize(
    "given", [float("nan"), float("inf"), 1.7e308, -1.1e15, "1", None, [1], 10**400, 1j]
)
def test_other_things_are_no_rewards(given: Any):
    with pytest.raises(InvalidRewardError):
        as_reward(given)
    if given is not None:
        with pytest.raises(ValidationError):
            RolloutSample().reward = given


def test_the_grader_context_knows_its_samples():
    context = GraderContext(label="l", samples={"a": RolloutSample(id="a")})
    context.set_reward(1)
    assert context.sample.reward == context.get_samples()["a"].reward == 1.0
    with pytest.raises(ValueError, match="no sample `b`"):
        context.set_sample_reward("b", 1)
    context.samples["b"] = RolloutSample(id="b")
    context.set_sample_reward("b", 0)
    with pytest.raises(ValueError, match="exactly one sample"):
        context.set_reward(1)


def test_turns_have_rewards_of_their_own_as_many_as_there_are_turns():
    context = GraderContext(samples={"a": RolloutSample(id="a")}, turn_counts={"a": 3})
    assert context.turn_count() == context.turn_count("a") == 3
    context.set_turn_rewards([0, 0.5, True])
    assert context.sample.turn_rewards == [0.0, 0.5, 1.0]
    assert context.sample.reward is None, "it is given apart"
    with pytest.raises(ValueError, match="`a` has 3 turns, and got rewards for 2"):
        context.set_turn_rewards([1, 2])
    with pytest.raises(InvalidRewardError, match=r"turn 1: .*`nan`"):
        context.set_turn_rewards([0, float("nan"), 0])
    with pytest.raises(InvalidRewardError, match=r"turn 2: .*`inf`"):
        context.set_turn_rewards([0, 0, float("inf")])
    with pytest.raises(InvalidRewardError, match="a list of numbers"):
        context.set_turn_rewards(1)  # type: ignore[arg-type]
    assert context.sample.turn_rewards == [0.0, 0.5, 1.0], "what was given before stays"
    context.samples["b"] = RolloutSample(id="b")
    with pytest.raises(ValueError, match="`b` has 0 turns"):
        context.set_sample_turn_rewards("b", [1])
    with pytest.raises(ValueError, match="exactly one sample"):
        context.set_turn_rewards([1])
    with pytest.raises(ValueError, match="no sample `c`"):
        context.turn_count("c")
    unknown = GraderContext(samples={"a": RolloutSample(id="a")})
    unknown.set_turn_rewards([1])
    with pytest.raises(ValueError, match="turn_counts"):
        unknown.turn_count()


def test_rewards_of_turns_are_dumped_when_there_are_some():
    sample = RolloutSample(reward=1)
    assert "turn_rewards" not in sample.model_dump()
    sample.turn_rewards = [1, 2]
    assert RolloutSample.model_validate(sample.model_dump()).turn_rewards == [1.0, 2.0]
    assert RolloutSample.model_validate_json(sample.model_dump_json()) == sample


def test_configs_are_open_and_checked():
    with pytest.raises(ValidationError):
        BaseConfig()  # type: ignore[call-arg]
    config: Any = AgentWorkflowConfig(name="c", anything=threading.Lock())
    assert config.concurrency.max_concurrent is None
    with pytest.raises(ValidationError):
        config.name = 3
    with pytest.raises(ValidationError):
        ConcurrencyConfig(max_concurrent=0)


def test_copies_share_only_what_can_not_be_copied():
    lock = threading.Lock()
    config: Any = AgentWorkflowConfig(name="c", lock=lock, seen=[1])
    copies = ConfigCopies(config)
    for _ in range(2):
        made: Any = copies.make()
        assert made.lock is lock
        assert made.seen == [1]
        assert made.seen is not config.seen
        assert made.concurrency is not config.concurrency
        made.seen.append(2)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([{"a": object()}], "m[0].a: object of type object"),
        ([float("inf")], "m[0]: `inf` is not a JSON number"),
        ({"k": {(1, 2): 3}}, "m.k: key of type tuple"),
        (["\ud800"], "m[0]: text that is not valid Unicode"),
        ({"\ud800": 1}, "m: key that is not valid Unicode"),
    ],
)
def test_what_is_not_json_is_named_by_its_path(value: Any, problem: str):
    with pytest.raises(NotJsonError) as caught:
        dump_json(value, "m")
    assert str(caught.value) == problem


def test_depth_has_a_limit():
    deep: Any = []
    for _ in range(99):
        deep = [deep]
    assert dump_json(deep, "m").startswith("[[")
    circle: Any = []
    circle.append(circle)
    for too_deep in ([[deep]], circle):
        with pytest.raises(NotJsonError, match="nested deeper"):
            dump_json(too_deep, "m")


class _HttpError(Exception):
    pass


_HttpError.__module__ = "httpx._exceptions"


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (TimeoutError(), RolloutErrorCategory.TIMEOUT),
        (asyncio.TimeoutError(), RolloutErrorCategory.TIMEOUT),
        (ValueError(), RolloutErrorCategory.VALIDATION_ERROR),
        (TypeError(), RolloutErrorCategory.VALIDATION_ERROR),
        (AssertionError(), RolloutErrorCategory.VALIDATION_ERROR),
        (_HttpError(), RolloutErrorCategory.HTTP_ERROR),
        (KeyError(), RolloutErrorCategory.AGENT_ERROR),
        (SystemExit(), RolloutErrorCategory.AGENT_ERROR),
    ],
)
def test_errors_have_a_category(error: BaseException, category: RolloutErrorCategory):
    assert error_category(error) is category


def test_a_machine_without_descriptors_is_named_wherever_it_stands():
    class Group(Exception):
        """As Python 3.10 has it from a package."""

        def __init__(self, *exceptions: BaseException) -> None:
            super().__init__("several")
            self.exceptions = exceptions

    full = OSError(errno.EMFILE, "Too many open files")
    wrapped = RuntimeError("All connection attempts failed")
    wrapped.__cause__ = Group(OSError(errno.ECONNREFUSED, "no"), OSError(errno.ENFILE, "Too many"))
    while_handling = ValueError("no answer")
    while_handling.__context__ = full
    while_handling.__suppress_context__ = True
    full.__cause__ = while_handling  # a circle
    for error in (full, wrapped, while_handling):
        failure = failure_of(error)
        assert failure.kind == "out_of_descriptors"
        assert failure.message.startswith(f"{type(error).__name__}: ")
    assert failure_of(OSError(errno.ENOSPC, "full")).kind == "OSError"


def test_a_failure_is_bounded_and_survives_a_bad_exception():
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert failure_of(Mute()).kind == "Mute"
    long = failure_of(ValueError("x" * 100_000))
    assert len(long.message) < 5_000

    def deep(n: int) -> None:
        deep(n + 1)

    try:
        deep(0)
    except RecursionError as error:
        trace = failure_of(error).traceback
        assert trace is not None
        assert len(trace) < 20_000


@pytest.mark.parametrize("value", ["a/b", "..", "", "a b", "x" * 201])
def test_request_ids_are_one_path_segment(value: str):
    with pytest.raises(ValidationError):
        ExecutionRequest(id=value, prompt=[])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1])
def test_timeouts_are_finite(value: float):
    with pytest.raises(ValidationError):
        ExecutionRequest(id="a", prompt=[], agent_timeout_sec=value)


class Echo(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        match (ctx.metadata or {}).get("do"):
            case "raise":
                raise ValueError("no")
            case "hang":
                await asyncio.Event().wait()
            case "exit":
                sys.exit(2)
            case "source":
                context = get_rollout_context()
                assert context is not None
                context.register_sample_source("s", Source({"url": context.base_url}))
                return AgentWorkflowOutput(messages=[{"ignored": True}], metrics={"m": 1})
        return ctx.prompt


class Half(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for name, sample in ctx.samples.items():
            assert sample.label == ctx.label
            if ctx.label != "skip":
                ctx.set_sample_reward(name, 0.5)


default_config = AgentWorkflowConfig(
    name="limited", concurrency=ConcurrencyConfig(max_concurrent=2)
)


async def execute(
    backend: LocalBackend, do: str = "", **fields: Any
) -> tuple[ExecutionResult, ExecutionResult]:
    told: list[ExecutionResult] = []

    async def tell(result: ExecutionResult) -> None:
        told.append(result.model_copy(deep=True))

    request = ExecutionRequest(
        id="e1", prompt=[{"role": "user"}], metadata={"do": do} if do else None, **fields
    )
    await backend.execute(request, tell, tell)
    first, second = told
    return first, second


async def test_the_local_backend_runs_and_grades():
    backend = LocalBackend(workflow=Echo, grader=Half)
    ran, graded = await execute(backend, label="x")
    assert (ran.status, graded.status) == (RolloutStatus.SUCCESS, RolloutStatus.SUCCESS)
    assert ran.samples["main"].reward is None
    assert graded.samples["main"].reward == 0.5
    assert graded.samples["main"].messages == [{"role": "user"}]


async def test_the_local_backend_uses_the_context_around_it():
    with RolloutContext("http://around/v1", "k", "outer"):
        _, graded = await execute(LocalBackend(workflow=Echo, grader=Half), "source")
    assert graded.samples["s"].messages == [{"url": "http://around/v1"}]


@pytest.mark.parametrize(
    ("do", "fields", "category", "message"),
    [
        ("raise", {}, "validation_error", "ValueError: no"),
        ("hang", {"agent_timeout_sec": 0.05}, "timeout", "deadline of 0.05 s"),
        ("exit", {}, "agent_error", "sys.exit(2)"),
    ],
)
async def test_a_failed_workflow_is_told_to_both_callbacks(
    do: str, fields: dict[str, Any], category: str, message: str
):
    ran, graded = await execute(LocalBackend(workflow=Echo, grader=Half), do, **fields)
    assert ran == graded
    assert ran.status is RolloutStatus.FAILURE
    assert str(ran.err_category) == category
    assert message in (ran.err_message or "")


async def test_a_failed_grade_carries_no_reward():
    ran, graded = await execute(LocalBackend(workflow=Echo, grader=Half), label="skip")
    assert ran.status is RolloutStatus.SUCCESS
    assert graded.status is RolloutStatus.FAILURE
    assert graded.samples["main"].reward is None
    assert "`main`" in (graded.err_message or "")


class Paid(SampleSource):
    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=[{}], reward=1.0, remove_sample=True)


class PaysItself(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        assert rollout is not None
        rollout.register_sample_source("s", Paid())


class Indifferent(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        assert (ctx.sample.reward, ctx.sample.remove_sample) == (None, False)
        if ctx.label == "assign":
            ctx.sample.reward = 0.25


async def test_rewards_and_removals_are_the_graders_alone():
    backend = LocalBackend(workflow=PaysItself, grader=Indifferent)
    ran, graded = await execute(backend)
    assert (ran.samples["s"].reward, ran.samples["s"].remove_sample) == (None, False)
    assert graded.status is RolloutStatus.FAILURE
    assert "no reward for sample `s`" in (graded.err_message or "")
    assert (graded.samples["s"].reward, graded.samples["s"].remove_sample) == (None, False)
    _, graded = await execute(backend, label="assign")
    assert graded.samples["s"].reward == 0.25
    _, ungraded = await execute(LocalBackend(workflow=PaysItself))
    assert ungraded.samples["s"].reward is None


async def test_the_local_backend_takes_dotted_names():
    backend = LocalBackend(
        workflow=f"{__name__}.Echo",
        workflow_config=f"{__name__}:default_config",
        grader=f"{__name__}.Half",
    )
    assert backend.workflow is Echo
    assert backend.health()["max_concurrent"] == 2
    assert LocalBackend(workflow=Echo).health()["max_concurrent"] == 4
    unlimited = LocalBackend(workflow=Echo, workflow_config=AgentWorkflowConfig(name="u"))
    assert unlimited.health()["max_concurrent"] is None
    with pytest.raises(ValueError, match="has no `Nope`"):
        LocalBackend(workflow=f"{__name__}.Nope")
    with pytest.raises(TypeError, match="subclass of AgentWorkflow"):
        LocalBackend(workflow=Half)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="instance of GraderConfig"):
        LocalBackend(workflow=Echo, grader_config=default_config)  # type: ignore[arg-type]
    assert isinstance(GraderConfig(name="g"), BaseConfig)


async def test_the_local_backend_keeps_to_its_concurrency():
    running = 0
    most = 0

    class Counting(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running -= 1
            return ctx.prompt

    backend = LocalBackend(workflow=Counting, workflow_config=default_config)

    async def many() -> None:
        await asyncio.gather(*(execute(backend) for _ in range(8)))

    await many()
    assert most == 2
    # A backend made at import serves whatever loop comes.
    await asyncio.to_thread(asyncio.run, many())
    assert most == 2


async def test_the_local_backend_keeps_files_where_the_context_says(tmp_path: Path):
    class Write(AgentWorkflow):
        async def run(self, ctx: AgentWorkflowContext) -> Any:
            assert ctx.artifacts_dir is not None
            (ctx.artifacts_dir / "note").write_text("x")
            return ctx.prompt

    class Read(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            assert ctx.artifacts_dir is not None
            assert ctx.project_path == str(Path(__file__).parent)
            ctx.set_reward(float((ctx.artifacts_dir / "note").read_text() == "x"))

    with RolloutContext("http://h/v1", artifacts_dir=tmp_path):
        _, graded = await execute(LocalBackend(workflow=Write, grader=Read))
    assert graded.samples["main"].reward == 1.0
