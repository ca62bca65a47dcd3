"""The one pool of this process: made at the first call, not shared with forked children."""

from __future__ import annotations

import atexit
import os
import threading

from osmosis_ai.areal.reward_pool import PoolStatus, RewardPool
from osmosis_ai.areal.reward_slot import Call

_pool: RewardPool | None = None
_pool_lock = threading.Lock()


def submit(call: Call, limit: int) -> RewardPool:
    """Queues the call in the pool of this process, which is made when there is none."""
    global _pool
    while True:
        with _pool_lock:
            pool = _pool
            if pool is None:
                pool = _pool = RewardPool()
        if pool.submit(call, limit):
            return pool
        with _pool_lock:
            if _pool is pool:
                _pool = None


def pool_status() -> PoolStatus:
    """What reward processes this process has."""
    pool = _pool
    return PoolStatus((), 0, 0, 0, 0, 0) if pool is None else pool.status()


def close_pool() -> None:
    """Ends the reward processes; the next call starts new ones."""
    global _pool
    with _pool_lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def _forget_pool() -> None:
    global _pool, _pool_lock
    _pool_lock = threading.Lock()
    pool, _pool = _pool, None
    if pool is not None:
        pool.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
atexit.register(close_pool)
