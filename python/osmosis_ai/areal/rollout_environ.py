"""Environment variables that are the running rollout's own.

`AsyncOpenAI()` and its like read where to go, and with which key, from the environment when they
are made. What the config passes to workers (`[env]`, `[secrets]`) stays. Where it passes nothing,
such a client reaches the policy's server with a key of the rollout whose calls are recorded and
never trained on. Rollouts share a process, so these names are answered from the context of the
task.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_SDKS = ("OPENAI_", "ANTHROPIC_")
_current: ContextVar[dict[str, str] | None] = ContextVar("osmosis_rollout_environ", default=None)


def policy_variables(base_url: str, api_key: str) -> dict[str, str]:
    """What the SDKs of both dialects look for."""
    # Anthropic's client appends the version itself.
    root = base_url.rstrip("/").removesuffix("/v1")
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": api_key,
    }


def unset_variables(base_url: str, api_key: str | None) -> dict[str, str]:
    """Those of `policy_variables` whose SDK finds nothing in the worker's environment."""
    if api_key is None:
        return {}
    offered = policy_variables(base_url, api_key)
    taken = {_sdk(name) for name in offered if _set_outside(name)}
    return {name: value for name, value in offered.items() if _sdk(name) not in taken}


def _sdk(name: str) -> str:
    return next(sdk for sdk in _SDKS if name.startswith(sdk))


def _set_outside(name: str) -> bool:
    """Whether the worker itself has it, whatever a rollout sees."""
    own = _current.set(None)
    try:
        return bool(os.environ.get(name))
    finally:
        _current.reset(own)


@contextlib.contextmanager
def entered(variables: dict[str, str]) -> Iterator[None]:
    """Around one rollout. Processes that it starts see the worker's environment as it is."""
    _install()
    token = _current.set(variables)
    try:
        yield
    finally:
        _current.reset(token)


_Environ: Any = type(os.environ)


class _RolloutEnviron(_Environ):  # type: ignore[misc]
    def __getitem__(self, key: str) -> str:
        own = _current.get()
        if own is not None and key in own:
            return own[key]
        value: str = super().__getitem__(key)
        return value


def _install() -> None:
    if type(os.environ) is _Environ:
        os.environ.__class__ = _RolloutEnviron
