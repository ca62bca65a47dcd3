"""Which session a model call belongs to.

The OpenAI Agents SDK does not tell a model which session its run has. We stand around the SDK's
default runner and keep, for the time of each run, the run's session in a context variable. Tasks
copy the context they are made in, so runs side by side (`asyncio.gather`), streamed runs, handoffs
and agents used as tools each see their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import openai
from agents.models.openai_provider import OpenAIProvider
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.errors import NoModelError


@dataclass(eq=False)
class RunScope:
    """One run of an agent: its session, and the run around it (an agent used as a tool)."""

    session: Any
    outer: RunScope | None
    # The agent that the run begins with.
    agent: Any = None
    # The session inside of `session`, when that is a wrapper.
    used: Any = None

    def sessions(self) -> Iterator[Any]:
        """The run's own session first, then those of the runs around it."""
        scope: RunScope | None = self
        while scope is not None:
            for session in (scope.session, scope.used):
                if session is not None:
                    yield session
            scope = scope.outer


_current_run: ContextVar[RunScope | None] = ContextVar("osmosis_openai_run", default=None)
_last_used: ContextVar[Any] = ContextVar("osmosis_openai_last_session", default=None)


def current_sessions() -> list[Any]:
    """The sessions a call made here may belong to, nearest first."""
    scope = _current_run.get()
    if scope is not None:
        return list(scope.sessions())
    # A runner that is not the default one: it reads its session before it calls the model.
    used = _last_used.get()
    return [] if used is None else [used]


def note_use(session: Any) -> None:
    """Called by a session that a run reads or writes."""
    scope = _current_run.get()
    if scope is not None:
        scope.used = session
    else:
        _last_used.set(session)


class ScopedRunner(AgentRunner):
    """The default runner, with each run's session kept in context."""

    def __init__(self, inner: AgentRunner) -> None:
        super().__init__()
        self._inner = inner

    async def run(self, *args: Any, **kwargs: Any) -> Any:
        """Runs an agent."""
        with _scope(args, kwargs):
            return await self._inner.run(*args, **kwargs)

    def run_sync(self, *args: Any, **kwargs: Any) -> Any:
        """Runs an agent where no event loop is running."""
        with _scope(args, kwargs):
            return self._inner.run_sync(*args, **kwargs)

    def run_streamed(self, *args: Any, **kwargs: Any) -> Any:
        """Starts a run in a task, which takes a copy of the context with it."""
        with _scope(args, kwargs):
            return self._inner.run_streamed(*args, **kwargs)


def stand_around_default_runner() -> None:
    """Installs the scoped runner, also again after somebody else set a runner of their own."""
    current = get_default_agent_runner()
    if not isinstance(current, ScopedRunner):
        set_default_agent_runner(ScopedRunner(current))


def explain_missing_models() -> None:
    """Has an agent without a model fail by its name.

    The SDK asks OpenAI for the model of such an agent, often the target of a handoff, and fails for
    lack of a key.
    """
    original = OpenAIProvider.get_model
    if getattr(original, "_osmosis", False):
        return

    @functools.wraps(original)
    def get_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except openai.OpenAIError as error:
            scope = _current_run.get()
            # What a request was answered with is not about keys that are missing.
            if scope is None or get_rollout_context() is None or isinstance(error, openai.APIError):
                raise
            raise NoModelError(_without_model(scope, error)) from error

    get_model._osmosis = True  # type: ignore[attr-defined]
    OpenAIProvider.get_model = get_model  # type: ignore[method-assign]


def _without_model(scope: RunScope, error: Exception) -> str:
    names = [
        f"`{getattr(agent, 'name', agent)}`"
        for agent in _reachable(scope.agent)
        if getattr(agent, "model", None) is None or isinstance(agent.model, str)
    ]
    who = f"agent {', '.join(names)} has no policy model" if names else "an agent has no model"
    return (
        f"{who}, and the default of the OpenAI Agents SDK has no key here ({error}); give every "
        "agent `model=OsmosisRolloutModel()`, targets of handoffs and agents used as tools included"
    )


def _reachable(agent: Any) -> list[Any]:
    """The agent and those that it can hand over to, each once."""
    found: list[Any] = []
    waiting = [agent]
    while waiting:
        one = waiting.pop(0)
        if one is None or any(one is other for other in found):
            continue
        found.append(one)
        for handoff in getattr(one, "handoffs", None) or []:
            reference = getattr(handoff, "_agent_ref", None)
            waiting.append(reference() if callable(reference) else handoff)
    return [one for one in found if hasattr(one, "model")]


@contextlib.contextmanager
def _scope(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    agent = args[0] if args else kwargs.get("starting_agent")
    scope = RunScope(kwargs.get("session"), _current_run.get(), agent)
    token = _current_run.set(scope)
    try:
        yield
    finally:
        # A run that is abandoned may be closed from another context, which has no scope of it.
        with contextlib.suppress(ValueError):
            _current_run.reset(token)
