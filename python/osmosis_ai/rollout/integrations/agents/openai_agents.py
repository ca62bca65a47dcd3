"""OpenAI Agents SDK: agents whose model is the policy, sessions that become samples.

```python
agent = OsmosisAgent(name="solver", model=OsmosisRolloutModel(), tools=[multiply])
session = OsmosisMemorySession(name="solver")
await Runner.run(agent, ctx.prompt, session=session)
```
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

from osmosis_ai.rollout.context import RolloutContext, SampleSource, get_rollout_context
from osmosis_ai.rollout.errors import ForeignSessionError, NoRolloutContextError, NoSessionError
from osmosis_ai.rollout.runtime import in_worker
from osmosis_ai.rollout.types import RolloutSample

try:
    from agents import Agent, Model, ModelSettings, OpenAIChatCompletionsModel, TContext
    from agents.items import ModelResponse, TResponseInputItem, TResponseStreamEvent
    from agents.memory import SessionABC, SessionSettings
    from agents.tracing import set_trace_provider
    from agents.tracing.provider import DefaultTraceProvider

    from osmosis_ai.rollout.integrations.agents.openai_client import (
        POLICY_MODEL,
        call_headers,
        client_for,
        policy_url,
    )
    from osmosis_ai.rollout.integrations.agents.openai_runs import (
        current_sessions,
        explain_missing_models,
        note_use,
        stand_around_default_runner,
    )
except ImportError as error:
    _file = getattr(sys.modules.get("agents"), "__file__", None)
    _shadow = f" (`agents` is {_file}, which may hide it)" if _file else ""
    raise ImportError(
        "the OpenAI Agents integration needs the OpenAI Agents SDK: "
        f"pip install 'osmosis-rs[openai-agents]'{_shadow}"
    ) from error

__all__ = [
    "OsmosisAgent",
    "OsmosisLitellmModel",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
]

_UNNAMED = "main"


class OsmosisMemorySession(SessionABC, SampleSource):
    """A session in memory that is also the sample of its rollout.

    Made inside `run`, it registers with the rollout under its name, which is the sample's id;
    without a name it is `main` (then `main-2`, …). Outside of a rollout it is a plain session. The
    runner's items are kept as they are, in Responses shape.
    """

    def __init__(self, name: str | None = None, *, session_settings: Any = None) -> None:
        self._context = get_rollout_context()
        self._items: list[TResponseInputItem] = []
        self.session_settings = session_settings or SessionSettings()
        if self._context is not None:
            stand_around_default_runner()
            self.name = name if name is not None else self._context.free_sample_name()
            self._context.register_sample_source(self.name, self)
        else:
            self.name = name if name is not None else _UNNAMED
        self.session_id = self.name

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The conversation so far; with a limit, its latest items."""
        self._check_context()
        note_use(self)
        items = self._items
        if limit is not None:
            items = items[-limit:] if limit > 0 else []
        return copy.deepcopy(items)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds to the end of the conversation."""
        self._check_context()
        note_use(self)
        self._items.extend(copy.deepcopy(list(items)))

    async def pop_item(self) -> TResponseInputItem | None:
        """Takes the latest item off the conversation."""
        self._check_context()
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        """Forgets the conversation."""
        self._check_context()
        self._items.clear()

    async def get_sample(self, name: str | None = None) -> RolloutSample:
        """The conversation as a sample."""
        return RolloutSample(id=name or self.name, messages=copy.deepcopy(self._items))

    @property
    def rollout_context(self) -> RolloutContext | None:
        """The rollout this session is registered with."""
        return self._context

    def _check_context(self) -> None:
        current = get_rollout_context()
        if current is not None and current is not self._context:
            where = (
                "was made outside of a rollout"
                if self._context is None
                else f"belongs to rollout `{self._context.rollout_id}`"
            )
            raise ForeignSessionError(
                f"session `{self.name}` {where} and can't be used in rollout "
                f"`{current.rollout_id}`; make the OsmosisMemorySession inside `run`"
            )


class OsmosisRolloutModel(Model):
    """Stands for the policy wherever the SDK takes a model. Sampling goes in `ModelSettings`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or kwargs:
            raise TypeError(_no_arguments(args, kwargs))

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Calls the policy of the rollout that is running here."""
        return await _bound(_context_here()).get_response(*args, **kwargs)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Calls the policy of the rollout that is running here, streaming."""
        return _bound(_context_here()).stream_response(*args, **kwargs)


class OsmosisLitellmModel(OpenAIChatCompletionsModel):
    """The policy, bound to a rollout.

    The name is the reference SDK's. It does not use litellm: it is the OpenAI Agents SDK's own chat
    completions model, pointed at the rollout's gateway with the rollout's key. Called in another
    rollout than the one it was bound to, it speaks for that one.
    """

    def __init__(self, context: RolloutContext | None = None) -> None:
        self._context = context or _context_here()
        policy_url(self._context)
        super().__init__(model=POLICY_MODEL, openai_client=cast(Any, None))

    @property
    def _client(self) -> Any:
        # Connections belong to an event loop, and this may be called on several.
        return client_for(self._context)

    @_client.setter
    def _client(self, client: Any) -> None:
        """The base sets what it was given: nothing."""

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Calls the policy with the headers of rollout and sample."""
        model = self._model_here()
        args, kwargs = model._identified(args, kwargs)
        return await super(OsmosisLitellmModel, model).get_response(*args, **kwargs)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Calls the policy with the headers of rollout and sample, streaming."""
        model = self._model_here()
        args, kwargs = model._identified(args, kwargs)
        return super(OsmosisLitellmModel, model).stream_response(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> OsmosisLitellmModel:
        # Holds connections; copies of an agent or config share it.
        return self

    def _model_here(self) -> OsmosisLitellmModel:
        context = get_rollout_context() or self._context
        return self if context is self._context else _bound(context)

    def _identified(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        headers = call_headers(self._context, _sample_here(self._context))
        # Positional in streams, by keyword otherwise.
        if "model_settings" in kwargs:
            settings = _with_headers(kwargs["model_settings"], headers)
            return args, {**kwargs, "model_settings": settings}
        return (*args[:2], _with_headers(args[2], headers), *args[3:]), kwargs


class OsmosisAgent(Agent[TContext]):
    """The SDK's agent; an `OsmosisRolloutModel` it is given is bound to the rollout.

    Made outside of a rollout it keeps the placeholder, which finds the rollout when the agent runs.
    """

    model: Any

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        context = get_rollout_context()
        if context is not None and isinstance(self.model, OsmosisRolloutModel):
            stand_around_default_runner()
            self.model = _bound(context)


def _no_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = kwargs.get("params", args[0] if args else None)
    known = {field.name for field in dataclasses.fields(ModelSettings)}
    shown = "temperature=0.7, max_tokens=256"
    if isinstance(given, dict) and given and known.issuperset(given):
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return (
        "OsmosisRolloutModel() of the OpenAI Agents integration takes no arguments (`params` is "
        "the Strands integration's): sampling goes to the agent, `OsmosisAgent(..., "
        f"model=OsmosisRolloutModel(), model_settings=ModelSettings({shown}))`"
    )


def _context_here() -> RolloutContext:
    context = get_rollout_context()
    if context is None:
        raise NoRolloutContextError(
            "OsmosisRolloutModel was called outside of a rollout; it stands for the policy only "
            "inside `AgentWorkflow.run` (or `with RolloutContext(...):`)"
        )
    return context


def _bound(context: RolloutContext) -> OsmosisLitellmModel:
    """The rollout's one bound model."""
    model = context.attachments.get(OsmosisLitellmModel)
    if model is None:
        model = context.attachments[OsmosisLitellmModel] = OsmosisLitellmModel(context)
    return cast(OsmosisLitellmModel, model)


def _sample_here(context: RolloutContext) -> str:
    sessions = current_sessions()
    for session in sessions:
        if isinstance(session, OsmosisMemorySession) and session.rollout_context is context:
            return session.name
    given = f" (it has a {type(sessions[0]).__name__})" if sessions else ""
    raise NoSessionError(
        "the policy was called by a run without an OsmosisMemorySession, so the call belongs to no "
        f"sample{given}; pass `session=OsmosisMemorySession(name=...)`, made inside `run`, to "
        "`Runner.run`"
    )


def _with_headers(settings: ModelSettings, headers: dict[str, str]) -> ModelSettings:
    return dataclasses.replace(
        settings, extra_headers={**(settings.extra_headers or {}), **headers}
    )


def _keep_traces_here() -> None:
    """Replaces the provider whose exporter would send every trace over the network."""
    provider = DefaultTraceProvider()
    provider.set_disabled(True)
    set_trace_provider(provider)


stand_around_default_runner()
explain_missing_models()
if in_worker():
    _keep_traces_here()
