"""Rewards computed in processes of their own (`areal.api.reward_api`).

```python
score = AsyncRewardWrapper(score_answer, timeout_seconds=10)
reward = await score(prompt, completion, **row)
```
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any

from osmosis_ai.areal import reward_owner, reward_process
from osmosis_ai.areal.reward_errors import (
    RewardCrash,
    RewardError,
    RewardNotPicklable,
    RewardRaised,
    RewardTimeout,
    RewardTraceback,
)
from osmosis_ai.areal.reward_owner import close_pool, pool_status
from osmosis_ai.areal.reward_pool import PoolStatus
from osmosis_ai.areal.reward_process import EXITED, PROTOCOL, RAISED, UNLOADABLE, VALUE
from osmosis_ai.areal.reward_setup import MAIN, main_script, module_of
from osmosis_ai.areal.reward_slot import TRANSFER_SECONDS, Call, Crashed, Outcome, Replied, TimedOut

# The wrappers of this process. Their processes are started once its tasks run on a loop.
_wrappers: weakref.WeakSet[AsyncRewardWrapper] = weakref.WeakSet()
_serving: asyncio.AbstractEventLoop | None = None

__all__ = [
    "AsyncRewardWrapper",
    "RewardError",
    "RewardTimeout",
    "RewardCrash",
    "RewardRaised",
    "RewardNotPicklable",
    "RewardTraceback",
    "PoolStatus",
    "pool_status",
    "close_pool",
]


class AsyncRewardWrapper:
    """Runs a reward function in one of the reward processes that all wrappers of a process share.

    - `timeout_seconds` begins when the function begins, not while the call waits for a process or
      the process imports the function's module. A function that is over it is killed, with its
      process and what that has started, and the call raises `RewardTimeout`. It is not tried again.
    - A process that ends under the function (a crash, the out-of-memory killer, `os._exit`) is
      replaced and the call tried again, `max_retries` times at most; then it raises `RewardCrash`.
    - What the function raises reaches the caller as it is, and is not tried again. Its own
      traceback is the `__cause__`.
    - Cancelling the waiting task kills the function if it runs.
    - `max_workers` is how many processes the shared pool may have; the largest of all wrappers
      counts, `None` is one per usable CPU. They start when calls need them; in a worker the first
      one starts with the worker, and imports the function's module, before the first call.

    Function, arguments and result travel by `pickle`. What a function is bound to (`self` of a
    method, the arguments of a `functools.partial`) travels as it is at the time of the call.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any],
        timeout_seconds: float = 15,
        max_workers: int | None = None,
        max_retries: int = 3,
    ) -> None:
        if not (isinstance(timeout_seconds, int | float) and 0 < timeout_seconds < math.inf):
            raise ValueError(
                f"`timeout_seconds` must be a positive number, not `{timeout_seconds!r}`"
            )
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"`max_workers` must be at least 1, not `{max_workers!r}`")
        if max_retries < 0:
            raise ValueError(f"`max_retries` must not be negative, it is `{max_retries!r}`")
        _check_function(reward_fn)
        self.reward_fn = reward_fn
        self.timeout_seconds = timeout_seconds
        self.max_workers = max_workers if max_workers is not None else _usable_cpus()
        self.max_retries = max_retries
        _wrappers.add(self)
        if _serving is not None:
            self._warm_up(_serving)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The reward of one call, or an exception; never a number that was made up."""
        if reward_process.inside:
            raise RewardError(
                "a reward process can't start reward processes; if this is a script, put what it "
                'runs below `if __name__ == "__main__":`'
            )
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Outcome] = loop.create_future()
        call = Call(
            payload=self._pickled(args, kwargs),
            module=module_of(self.reward_fn),
            timeout=self.timeout_seconds,
            retries=self.max_retries,
            loop=loop,
            reply=reply,
        )
        pool = reward_owner.submit(call, self.max_workers)
        try:
            outcome = await reply
        except asyncio.CancelledError:
            pool.cancel(call)
            raise
        if isinstance(outcome, Replied) and outcome.kind == VALUE:
            return self._loaded(outcome.payload)
        raise self._error(outcome)

    def _warm_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """Has a reward process started that imports the function, and does not call it."""
        try:
            payload = pickle.dumps((callable, (self.reward_fn,), {}), PROTOCOL)
        except Exception:
            # What it is bound to has changed; the call itself tells.
            return
        call = Call(
            payload=payload,
            module=module_of(self.reward_fn),
            timeout=self.timeout_seconds,
            # A function that can't be imported there shows at the first call.
            retries=0,
            loop=loop,
            reply=loop.create_future(),
        )
        reward_owner.submit(call, self.max_workers)

    def _pickled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        try:
            return pickle.dumps((self.reward_fn, args, kwargs), PROTOCOL)
        except Exception as error:
            named = [(f"argument {index}", value) for index, value in enumerate(args)]
            named += [(f"argument `{name}`", value) for name, value in kwargs.items()]
            for name, value in named:
                _check_picklable(name, value)
            raise RewardNotPicklable(
                f"{_name(self.reward_fn)} can't be sent to a reward process: {error}"
            ) from error

    def _loaded(self, payload: bytes) -> Any:
        try:
            return pickle.loads(payload)
        except Exception as error:
            raise RewardRaised(
                f"the result of {_name(self.reward_fn)} can't be read in this process: "
                f"{type(error).__name__}: {error}; return a number"
            ) from error

    def _error(self, outcome: Outcome) -> BaseException:
        name = _name(self.reward_fn)
        if isinstance(outcome, TimedOut):
            if outcome.loading:
                return RewardTimeout(
                    f"{name} did not get to run: importing its module or moving its arguments or "
                    f"result took more than {TRANSFER_SECONDS:g} s"
                )
            return RewardTimeout(
                f"{name} ran for more than `timeout_seconds` = {self.timeout_seconds:g} and was "
                "killed"
            )
        if isinstance(outcome, Crashed):
            tried = f", at each of {outcome.attempts} attempts" if outcome.attempts > 1 else ""
            return RewardCrash(f"the process of {name} {_ending(outcome)}{tried}")
        content = self._loaded(outcome.payload)
        error: BaseException
        if outcome.kind == RAISED:
            error, traceback = content
        else:
            kind, message, traceback = content
            if outcome.kind == EXITED:
                error = RewardCrash(f"{name} raised {kind}({message}), which would end it")
            elif outcome.kind == UNLOADABLE:
                error = RewardNotPicklable(
                    f"{name} or an argument can't be loaded in a reward process: {kind}: {message}"
                )
            else:
                error = RewardRaised(f"{name} raised {kind}: {message}")
        error.__cause__ = RewardTraceback(traceback) if traceback else None
        return error


def warm_up(loop: asyncio.AbstractEventLoop) -> None:
    """From now on this process runs tasks on the loop: starts reward processes for its wrappers.

    One for each module that functions come from. The rest of the pool is forked in milliseconds
    when calls need it. Wrappers that are made later start theirs when they are made.
    """
    global _serving
    if reward_process.inside:
        return
    _serving = loop
    modules = set()
    for wrapper in list(_wrappers):
        module = module_of(wrapper.reward_fn)
        if module not in modules:
            modules.add(module)
            wrapper._warm_up(loop)


def _check_function(function: Any) -> None:
    if not callable(function):
        raise RewardNotPicklable(
            f"`reward_fn` must be a function, not a value of type `{type(function).__name__}`"
        )
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004
    ):
        raise RewardNotPicklable(
            f"{_name(function)} is async and would block nothing: await it directly, without "
            "AsyncRewardWrapper"
        )
    _check_picklable(_name(function), function)
    if module_of(function) == MAIN and main_script() is None:
        raise RewardNotPicklable(
            f"{_name(function)} is defined in an interactive session, which no other process can "
            "import; put it in a file"
        )


def _check_picklable(what: str, value: Any) -> None:
    try:
        pickle.dumps(value, PROTOCOL)
    except Exception as error:
        raise RewardNotPicklable(
            f"{what} can't be sent to a reward process: {error}; {_hint(value)}"
        ) from error


def _hint(value: Any) -> str:
    name = getattr(value, "__qualname__", "")
    if "<lambda>" in name or "<locals>" in name:
        return (
            "move it to the top level of a module as `def`, and pass what it closes over as "
            "arguments or with `functools.partial`"
        )
    if inspect.ismethod(value):
        return (
            f"it is bound to a `{type(value.__self__).__name__}`, which holds something that can't "
            "be pickled; use a function at the top level of a module"
        )
    if inspect.isfunction(value):
        return "its name leads to something else; a decorator must keep the function it wraps"
    return "pass plain data (numbers, text, lists, dicts)"


def _name(function: Any) -> str:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return f"reward function `{getattr(inner, '__qualname__', type(inner).__name__)}`"


def _ending(crash: Crashed) -> str:
    if crash.reason is not None:
        return f"was lost: {crash.reason}"
    if crash.code is None:
        return "ended"
    if crash.code < 0:
        return f"was killed by signal {-crash.code}"
    return f"exited with code {crash.code}"


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1
