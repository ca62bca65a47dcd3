"""What rollouts share closes with its event loop, and does not pile up."""

import asyncio
from typing import Any

from osmosis_ai.rollout.cleanup import PerLoop, close_all


class Thing:
    def __init__(self, key: Any) -> None:
        self.key = key
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


def shared() -> PerLoop[Thing]:
    return PerLoop(Thing, Thing.close)


def test_a_value_belongs_to_its_loop_and_closes_with_it():
    things = shared()

    async def use() -> Thing:
        assert things.get("a") is things.get("a")
        assert things.get("a") is not things.get("b")
        return things.get("a")

    first, second = asyncio.run(use()), asyncio.run(use())
    assert first is not second
    assert (first.closed, second.closed) == (1, 1)


async def test_what_the_running_loop_holds_closes_on_request_and_is_made_again():
    things = shared()
    old = things.get()
    elsewhere = await asyncio.to_thread(_in_a_loop_that_stays, things)
    await close_all()
    assert (old.closed, elsewhere.closed) == (1, 0)
    assert things.get() is not old
    await close_all()
    assert old.closed == 1


def _in_a_loop_that_stays(things: PerLoop[Thing]) -> Thing:
    async def use() -> Thing:
        return things.get()

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(use())
    finally:
        loop.close()


async def test_many_keys_do_not_pile_up_and_nobody_loses_what_he_holds():
    things = shared()
    first = things.get(0)
    for key in range(1, 500):
        things.get(key)
    again = things.get(0)
    await asyncio.sleep(0)
    assert again is not first
    assert (first.closed, again.closed) == (0, 0)
    assert len(things._values) <= 64
    await close_all()
    assert (first.closed, again.closed) == (0, 1)
