"""Strands: agents whose model is the policy and whose messages become samples.

```python
agent = OsmosisStrandsAgent(
    name="solver",
    model=OsmosisRolloutModel(params={"temperature": 1.0}),
    tools=[multiply],
    messages=ctx.prompt,
    callback_handler=None,
)
await agent.invoke_async()
```
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

from osmosis_ai.rollout.context import RolloutContext, SampleSource, get_rollout_context
from osmosis_ai.rollout.errors import ForeignSessionError, NoRolloutContextError, NoSessionError
from osmosis_ai.rollout.integrations.agents.strands_messages import as_json, as_messages, as_prompt
from osmosis_ai.rollout.types import RolloutSample

try:
    from strands import Agent
    from strands.agent.agent_result import AgentResult
    from strands.models.model import Model
    from strands.types.exceptions import MaxTokensReachedException

    from osmosis_ai.rollout.integrations.agents.strands_model import RETRIES_CAN_BE_OFF, PolicyModel
except ImportError as error:
    raise ImportError(
        "the Strands integration needs Strands Agents with its OpenAI model: "
        f"pip install 'osmosis-rs[strands]' ({error})"
    ) from error

__all__ = ["OsmosisRolloutModel", "OsmosisStrandsAgent"]

_running_agent: ContextVar[OsmosisStrandsAgent | None] = ContextVar(
    "osmosis_strands_agent", default=None
)


class OsmosisRolloutModel(Model):
    """Stands for the policy wherever Strands takes a model.

    `params` are the sampling parameters of its calls. An `OsmosisStrandsAgent` binds it to the
    rollout; a plain agent that has it speaks for the sample of the agent it runs in.
    """

    def __init__(self, params: dict[str, Any] | None = None, **model_config: Any) -> None:
        if "model_id" in model_config:
            raise TypeError("OsmosisRolloutModel takes no `model_id`: it stands for the policy")
        self.config: dict[str, Any] = {**model_config, "params": dict(params or {})}

    @property
    def params(self) -> dict[str, Any]:
        """The sampling parameters."""
        return self.config["params"]  # type: ignore[no-any-return]

    def update_config(self, **model_config: Any) -> None:
        """Changes the configuration."""
        self.config.update(model_config)

    def get_config(self) -> Any:
        """The configuration."""
        return self.config

    async def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the policy for the agent that is running here."""
        async for event in self._bound_here().stream(*args, **kwargs):
            yield event

    async def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the policy for the agent that is running here."""
        async for event in self._bound_here().structured_output(*args, **kwargs):
            yield event

    def _bound_here(self) -> PolicyModel:
        context = get_rollout_context()
        if context is None:
            raise NoRolloutContextError(
                "OsmosisRolloutModel was called outside of a rollout; it stands for the policy "
                "only inside `AgentWorkflow.run` (or `with RolloutContext(...):`)"
            )
        agent = _running_agent.get()
        sample = agent.sample_name if agent is not None else None
        if agent is None or sample is None or agent.rollout_context is not context:
            raise NoSessionError(
                "the policy was called by an agent that is no sample of this rollout; give the "
                "OsmosisRolloutModel to an OsmosisStrandsAgent, made inside `run`"
            )
        return PolicyModel(context, sample, self.config)


class OsmosisStrandsAgent(Agent):
    """Strands' agent; with an `OsmosisRolloutModel` it is also the sample of its rollout.

    Made inside `run`, it registers with the rollout under its name, which is the sample's id;
    without a name it is `main` (then `main-2`, …). Made outside, it does so when it first runs
    inside one. Its `messages` may be chat messages (`ctx.prompt`) or Strands' own; they are copied.
    With any other model it is the plain agent.
    """

    def __init__(
        self, model: Any = None, messages: Any = None, tools: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        self.rollout_context: RolloutContext | None = None
        self.sample_name: str | None = None
        self._given_name: str | None = kwargs.get("name")
        self._stands_for_policy = isinstance(model, OsmosisRolloutModel)
        self._placeholder_config = model.config if self._stands_for_policy else {}
        if self._stands_for_policy and RETRIES_CAN_BE_OFF:
            # The gateway retries; Strands would wait for minutes behind the engine's back.
            kwargs.setdefault("retry_strategy", None)
        given: Any = as_messages(messages) if messages is not None else None
        super().__init__(model, given, tools, *args, **kwargs)
        context = get_rollout_context()
        if context is not None and self._stands_for_policy:
            self._bind(context)

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Runs the agent, as Strands does, for the rollout it is in."""
        self._enter_rollout()
        events = super().stream_async(as_prompt(prompt), **kwargs)
        ended = False
        try:
            while not ended:
                # Only while Strands works: what happens between two events is its consumer's.
                token = _running_agent.set(self)
                try:
                    event = await events.__anext__()
                except StopAsyncIteration:
                    return
                except MaxTokensReachedException:
                    cut = self._cut_answer()
                    if cut is None:
                        raise
                    event, ended = {"result": cut}, True
                finally:
                    with contextlib.suppress(ValueError):
                        _running_agent.reset(token)
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined, unused-ignore]

    def _cut_answer(self) -> AgentResult | None:
        """The result of a run whose answer was cut at the token limit: for a policy that is where
        the sample ends, not a failure. `None` when the agent is no sample."""
        if self.sample_name is None or not self.messages:
            return None
        return AgentResult("max_tokens", self.messages[-1], self.event_loop_metrics, {})

    async def structured_output_async(self, output_model: Any, prompt: Any = None) -> Any:
        """Asks the agent for an instance of a pydantic model."""
        self._enter_rollout()
        return await super().structured_output_async(output_model, as_prompt(prompt))

    def _enter_rollout(self) -> None:
        context = get_rollout_context()
        if context is None or context is self.rollout_context or not self._stands_for_policy:
            return
        if self.rollout_context is not None:
            raise ForeignSessionError(
                f"agent `{self.sample_name}` belongs to rollout "
                f"`{self.rollout_context.rollout_id}` and can't be used in rollout "
                f"`{context.rollout_id}`; make the OsmosisStrandsAgent inside `run`"
            )
        self._bind(context)

    def _bind(self, context: RolloutContext) -> None:
        name = self._given_name if self._given_name is not None else context.free_sample_name()
        bound = PolicyModel(context, name, self._placeholder_config)
        context.register_sample_source(name, _AgentMessages(self))
        self.rollout_context, self.sample_name = context, name
        self.model = bound


class _AgentMessages(SampleSource):
    def __init__(self, agent: OsmosisStrandsAgent) -> None:
        self._agent = agent

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=as_json(self._agent.messages))
