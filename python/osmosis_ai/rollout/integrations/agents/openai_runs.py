"""Which session a model call belongs to.

The OpenAI Agents SDK does not tell a model which session its run has. We stand around the SDK's
default runner and keep, for the time of each run, the run's session in a context variable. Tasks
copy the context they are made in, so runs side by side (`asyncio.gather`), streamed runs, handoffs
and agents used as tools each see their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner


@dataclass(eq=False)
class RunScope:
    """One run of an agent: its session, and the run around it (an agent used as a tool)."""

    session: Any
    outer: RunScope | None
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
        with _scope(kwargs.get("session")):
            return await self._inner.run(*args, **kwargs)

    def run_sync(self, *args: Any, **kwargs: Any) -> Any:
        """Runs an agent where no event loop is running."""
        with _scope(kwargs.get("session")):
            return self._inner.run_sync(*args, **kwargs)

    def run_streamed(self, *args: Any, **kwargs: Any) -> Any:
        """Starts a run in a task, which takes a copy of the context with it."""
        with _scope(kwargs.get("session")):
            return self._inner.run_streamed(*args, **kwargs)


def stand_around_default_runner() -> None:
    """Installs the scoped runner, also again after somebody else set a runner of their own."""
    current = get_default_agent_runner()
    if not isinstance(current, ScopedRunner):
        set_default_agent_runner(ScopedRunner(current))


@contextlib.contextmanager
def _scope(session: Any) -> Iterator[None]:
    token = _current_run.set(RunScope(session, _current_run.get()))
    try:
        yield
    finally:
        # A run that is abandoned may be closed from another context, which has no scope of it.
        with contextlib.suppress(ValueError):
            _current_run.reset(token)
