"""`AsyncRewardWrapper`: values, and what becomes of functions that hang, crash or raise."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.areal import alias
from osmosis_ai.areal.reward_api import (
    AsyncRewardWrapper,
    RewardCrash,
    RewardError,
    RewardNotPicklable,
    RewardRaised,
    RewardTimeout,
    RewardTraceback,
    close_pool,
    pool_status,
)
from osmosis_ai.rollout.entrypoint import import_entrypoint, parse_entrypoint
from osmosis_ai.rollout.failure import failure_of

from . import reward_functions as functions

PACKAGE = Path(__file__).resolve().parent.parent
LONG = 60.0


@pytest.fixture(autouse=True)
def _fresh_pool() -> Iterator[None]:
    close_pool()
    yield
    close_pool()


async def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + LONG
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.005)
    return value


def notes(folder: Path) -> list[str]:
    return [file.read_text() for file in sorted(folder.iterdir())]


def wait_until_gone(pid: int) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([watched], [], [], LONG)
        assert ended, f"process {pid} is still there"
    finally:
        os.close(watched)


def test_a_wrapper_alone_starts_neither_thread_nor_process() -> None:
    threads = threading.active_count()
    AsyncRewardWrapper(functions.double)
    assert threading.active_count() == threads
    assert pool_status().processes == ()


async def test_values_come_back_with_arguments_and_keywords() -> None:
    wrapper = AsyncRewardWrapper(functions.keyword_sum, max_workers=2)
    assert await wrapper(1, 2, third=3) == 6
    results = await asyncio.gather(*(wrapper(i, by=1) for i in range(300)))
    assert results == [i + 1 for i in range(300)]


async def test_one_hung_function_of_two_processes_is_a_timeout_and_a_thousand_others_are_correct(
    tmp_path: Path,
) -> None:
    hung = AsyncRewardWrapper(functions.hang, timeout_seconds=1, max_workers=2)
    double = AsyncRewardWrapper(functions.double, max_workers=2)
    await asyncio.gather(double(1), double(1))

    async def outcome_of_hung() -> float:
        with pytest.raises(RewardTimeout, match=r"`hang` ran for more than `timeout_seconds` = 1"):
            await hung(str(tmp_path))
        return time.monotonic()

    waiting = asyncio.ensure_future(outcome_of_hung())
    first = await asyncio.gather(*(double(i) for i in range(500)))
    began = float((await until(lambda: notes(tmp_path), "the function hangs"))[0])
    assert len(pool_status().processes) == 2
    second = await asyncio.gather(*(double(i) for i in range(500, 1000)))
    assert first + second == [i * 2 for i in range(1000)]
    assert await waiting - began < 2
    await until(lambda: len(pool_status().processes) == 2, "the killed process is replaced")
    assert pool_status().started == 3
    assert len(notes(tmp_path)) == 1, "a timeout is not tried again"


async def test_one_crash_among_64_calls_leads_to_one_new_process(tmp_path: Path) -> None:
    wrapper = AsyncRewardWrapper(functions.die_once, max_workers=2)
    results = await asyncio.gather(*(wrapper(str(tmp_path), i) for i in range(64)))
    assert results == list(range(64))
    status = await until(
        lambda: len((now := pool_status()).processes) == 2 and now, "both processes are there"
    )
    assert (status.started, status.crashes) == (3, 1)


async def test_a_wrapper_per_call_still_gives_one_pool() -> None:
    async def call() -> int:
        return await AsyncRewardWrapper(functions.process_id, max_workers=2)()

    processes = set(await asyncio.gather(*(call() for _ in range(200))))
    assert len(processes) <= 2
    assert processes <= set(pool_status().processes)
    assert pool_status().started == 2


async def test_the_largest_wrapper_decides_how_many_processes_there_are() -> None:
    small = AsyncRewardWrapper(functions.nap, max_workers=1)
    large = AsyncRewardWrapper(functions.nap, max_workers=3)
    await asyncio.gather(*(small(0.01) for _ in range(6)))
    assert len(pool_status().processes) == 1
    await asyncio.gather(*(large(0.2) for _ in range(9)))
    assert len(pool_status().processes) == 3
    assert pool_status().limit == 3


async def test_waiting_for_a_process_does_not_count() -> None:
    wrapper = AsyncRewardWrapper(functions.nap, timeout_seconds=2, max_workers=1)
    assert await asyncio.gather(*(wrapper(0.5, i) for i in range(6))) == list(range(6))


async def test_importing_the_functions_module_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import os, time\nif os.getpid() != int(os.environ['TEST_PID']): time.sleep(1.5)\n"
        "def score(): return 4\n"
    )
    monkeypatch.setenv("TEST_PID", str(os.getpid()))
    monkeypatch.syspath_prepend(str(tmp_path))
    import slow_to_import  # type: ignore[import-not-found]

    assert await AsyncRewardWrapper(slow_to_import.score, timeout_seconds=1, max_workers=1)() == 4


async def test_a_slow_call_does_not_hold_up_calls_that_were_sent_after_it(tmp_path: Path) -> None:
    double = AsyncRewardWrapper(functions.double, max_workers=2)
    slow = AsyncRewardWrapper(functions.wait_for, max_workers=2)
    gate = tmp_path / "gate"
    await asyncio.gather(*(double(i) for i in range(200)))
    before = [asyncio.ensure_future(double(i)) for i in range(300)]
    waiting = asyncio.ensure_future(slow(str(gate)))
    after = [asyncio.ensure_future(double(i)) for i in range(300)]
    assert await asyncio.gather(*before, *after) == [i * 2 for i in [*range(300), *range(300)]]
    assert not waiting.done()
    gate.touch()
    assert await waiting == "done"


async def test_a_huge_argument_and_a_huge_result_arrive_whole() -> None:
    size = 48 * 1024 * 1024
    length = AsyncRewardWrapper(functions.length, max_workers=2)
    large = AsyncRewardWrapper(functions.large, max_workers=2)
    assert await length(b"x" * size) == size
    assert await large(size) == b"x" * size
    counted, made, small = await asyncio.gather(length(b"y" * size), large(size), length(b"z"))
    assert (counted, len(made), small) == (size, size, 1)


async def test_what_the_function_raises_keeps_its_type_and_its_traceback() -> None:
    with pytest.raises(KeyError, match="missing") as raised:
        await AsyncRewardWrapper(functions.fail)("missing")
    cause = raised.value.__cause__
    assert isinstance(cause, RewardTraceback)
    assert "raise KeyError(text)" in str(cause)
    assert "reward_process.py" not in str(cause)
    assert "raise KeyError(text)" in (failure_of(raised.value).traceback or "")
    assert pool_status().crashes == 0


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (functions.fail_unpicklable, "`fail_unpicklable` raised UnpicklableError: it holds a lam"),
        (functions.fail_unreadable, "`fail_unreadable` raised UnreadableError: 3: two arguments"),
        (functions.give_unpicklable, "its result of type `function` can't be pickled"),
    ],
)
async def test_what_cannot_leave_its_process_is_told(function: Any, text: str) -> None:
    wrapper = AsyncRewardWrapper(function, max_workers=1)
    with pytest.raises(RewardRaised, match=text):
        await wrapper()
    with pytest.raises(RewardRaised):
        await wrapper()
    assert pool_status().started == 1


async def test_a_process_that_dies_every_time_is_a_crash_after_the_retries(tmp_path: Path) -> None:
    wrapper = AsyncRewardWrapper(functions.die, max_workers=1, max_retries=2)
    with pytest.raises(RewardCrash, match=r"exited with code 7, at each of 3 attempts") as raised:
        await wrapper(str(tmp_path))
    assert failure_of(raised.value).kind == "reward_crash"
    assert len(notes(tmp_path)) == 3
    assert await AsyncRewardWrapper(functions.double, max_workers=1)(4) == 8


async def test_sys_exit_of_a_function_ends_neither_the_caller_nor_the_process(
    tmp_path: Path,
) -> None:
    with pytest.raises(RewardCrash, match=r"raised SystemExit\(3\)"):
        await AsyncRewardWrapper(functions.leave, max_workers=1)(str(tmp_path))
    assert len(notes(tmp_path)) == 1
    assert pool_status().started == 1


async def test_a_process_killed_from_outside_is_replaced_and_its_call_tried_again(
    tmp_path: Path,
) -> None:
    file = tmp_path / "gate"
    waiting = asyncio.ensure_future(
        AsyncRewardWrapper(functions.wait_for, max_workers=1)(str(file))
    )
    running = Path(f"{file}.running")
    await until(lambda: running.exists() and running.read_text(), "the function runs")
    first = int(running.read_text())
    os.kill(first, signal.SIGKILL)
    await until(lambda: running.read_text() not in ("", str(first)), "it runs again")
    file.touch()
    assert await waiting == "done"
    assert (pool_status().started, pool_status().crashes) == (2, 1)


async def test_an_idle_process_killed_from_outside_costs_no_call() -> None:
    wrapper = AsyncRewardWrapper(functions.process_id, max_workers=1, max_retries=0)
    first = await wrapper()
    os.kill(first, signal.SIGKILL)
    await until(lambda: pool_status().processes not in ((), (first,)), "it is replaced")
    assert await wrapper() == pool_status().processes[0]


async def test_a_killed_template_is_started_again() -> None:
    wrapper = AsyncRewardWrapper(functions.process_id, max_workers=1)
    first = await wrapper()
    template = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(template, signal.SIGKILL)
    wait_until_gone(first)
    assert await wrapper() != first


async def test_cancelling_the_caller_kills_a_running_function_and_frees_its_process(
    tmp_path: Path,
) -> None:
    waiting = asyncio.ensure_future(
        AsyncRewardWrapper(functions.hang_with_a_subprocess, 3600, max_workers=1)(str(tmp_path))
    )
    said = await until(lambda: notes(tmp_path) and notes(tmp_path)[0], "the function runs")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await AsyncRewardWrapper(functions.double, max_workers=1)(4) == 8
    for pid in said.split():
        wait_until_gone(int(pid))


async def test_a_cancelled_call_that_was_waiting_never_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = AsyncRewardWrapper(functions.wait_for, max_workers=1)
    first = asyncio.ensure_future(slow(str(gate)))
    running = Path(f"{gate}.running")
    await until(running.exists, "the first runs")
    never = tmp_path / "never"
    second = asyncio.ensure_future(slow(str(never)))
    await asyncio.sleep(0)
    second.cancel()
    gate.touch()
    assert await first == "done"
    assert await AsyncRewardWrapper(functions.double, max_workers=1)(1) == 2
    assert not Path(f"{never}.running").exists()
    assert pool_status().started == 1


async def test_cancelling_many_short_calls_loses_none_of_the_others() -> None:
    double = AsyncRewardWrapper(functions.double, max_workers=2)
    await asyncio.gather(*(double(i) for i in range(200)))
    calls = [asyncio.ensure_future(double(i)) for i in range(600)]
    await until(lambda: calls[20].done(), "some are done")
    for call in calls[1::2]:
        call.cancel()
    kept = await asyncio.gather(*calls[::2])
    assert kept == [i * 2 for i in range(0, 600, 2)]


async def call_or_cancel(how: str, value: int) -> str:
    timeout = 0.3 if how == "hang" else LONG
    wrapper = AsyncRewardWrapper(functions.misbehave, timeout, max_workers=3, max_retries=1)
    call = asyncio.ensure_future(wrapper("nap" if how == "cancel" else how, value))
    if how == "cancel":
        asyncio.get_running_loop().call_later(value % 7 / 100, call.cancel)
    try:
        return "right" if await call == value * 2 else "wrong"
    except asyncio.CancelledError:
        return "cancelled"
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_the_others_do_every_call_has_its_own_outcome(seed: int) -> None:
    expected = {
        "fine": {"right"},
        "nap": {"right"},
        "raise": {"ValueError"},
        "crash": {"RewardCrash"},
        "hang": {"RewardTimeout"},
        "cancel": {"cancelled", "right"},
    }
    draw = random.Random(seed)
    hows = draw.choices(list(expected), weights=[60, 20, 8, 3, 3, 6], k=300)
    outcomes = await asyncio.gather(*(call_or_cancel(how, n) for n, how in enumerate(hows)))
    wrong = [
        (how, outcome)
        for how, outcome in zip(hows, outcomes, strict=True)
        if outcome not in expected[how]
    ]
    assert wrong == [], f"seed {seed}"
    await until(lambda: len(pool_status().processes) == 3, "there are as many processes as before")


def test_several_loops_and_threads_share_the_processes() -> None:
    wrapper = AsyncRewardWrapper(functions.double, max_workers=2)
    results: dict[int, list[int]] = {}

    async def many(thread: int) -> None:
        results[thread] = await asyncio.gather(*(wrapper(thread * 100 + i) for i in range(100)))

    threads = [threading.Thread(target=lambda n=n: asyncio.run(many(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [(n * 100 + i) * 2 for i in range(100)] for n in range(4)}
    assert pool_status().started <= 2


async def test_partials_methods_and_callable_objects_work() -> None:
    scorer = functions.Scorer(3)
    method = AsyncRewardWrapper(scorer.score)
    assert await method(2) == 6
    scorer.factor = 4
    assert await method(2) == 8, "what it is bound to is taken as it is at the call"
    assert await AsyncRewardWrapper(functools.partial(functions.keyword_sum, 1, by=2))(3) == 6
    assert await AsyncRewardWrapper(scorer)(2) == 8
    assert await AsyncRewardWrapper(functions.Scorer.name)() == "Scorer"
    assert await AsyncRewardWrapper(len)([1, 2]) == 2


def _closure() -> Callable[[], int]:
    value = 3

    def inner() -> int:
        return value

    return inner


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: 1, r"top level of a module as `def`"),
        (_closure(), r"top level of a module as `def`"),
        (functools.partial(lambda x: x, 1), r"can't be sent to a reward process"),
        (functions.Locked().score, r"bound to a `Locked`, which holds something"),
        (functions.asynchronous, r"is async .*: await it directly"),
        (functools.partial(functions.asynchronous), r"is async"),
        (3, r"must be a function, not a value of type `int`"),
    ],
)
def test_a_function_that_cannot_travel_fails_when_it_is_wrapped(function: Any, text: str) -> None:
    with pytest.raises(RewardNotPicklable, match=text):
        AsyncRewardWrapper(function)


async def test_an_argument_that_cannot_travel_is_named() -> None:
    wrapper = AsyncRewardWrapper(functions.keyword_sum)
    with pytest.raises(RewardNotPicklable, match=r"argument `tokenizer` can't be sent"):
        await wrapper(1, tokenizer=threading.Lock())


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": None},
        {"max_workers": 0},
        {"max_retries": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(arguments))}` must"):
        AsyncRewardWrapper(functions.double, **arguments)


async def test_forked_processes_draw_different_random_numbers() -> None:
    wrapper = AsyncRewardWrapper(functions.draw, max_workers=3)
    drawn = await asyncio.gather(*(wrapper() for _ in range(6)))
    assert len({pid for pid, _ in drawn}) == 3
    assert len({number for _, number in drawn}) == 6


async def test_a_module_that_became_importable_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await AsyncRewardWrapper(functions.double, max_workers=1)(1) == 2
    (tmp_path / "came_later.py").write_text("def score(x): return x + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import came_later  # type: ignore[import-not-found]

    wrapper = AsyncRewardWrapper(came_later.score, max_workers=1)
    assert await asyncio.gather(*(wrapper(i) for i in range(20))) == list(range(1, 21))
    assert pool_status().started == 1


@pytest.mark.parametrize("name", ["types.py", "rewards_of_test.py"])
async def test_functions_of_an_entrypoint_work_whatever_its_file_is_called(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text(
        "from areal.api.reward_api import AsyncRewardWrapper\n"
        "def score(a, b): return float(a == b)\n"
        "class Judge:\n    def score(self, a): return len(a)\n"
        "wrapped = AsyncRewardWrapper(score, max_workers=1)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    alias.install_alias()
    try:
        module = import_entrypoint(parse_entrypoint(str(tmp_path), name))
        assert await module.wrapped("x", "x") == 1.0
        assert await AsyncRewardWrapper(module.Judge().score)("abc") == 3
    finally:
        alias.remove_alias()
        sys.modules.pop(module.__name__, None)


def run_script(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    return subprocess.Popen(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SCRIPT = """
    import asyncio, os, sys, time
    from dataclasses import dataclass
    from osmosis_ai.areal.reward_api import AsyncRewardWrapper, pool_status

    @dataclass
    class Verdict:
        value: int

    def judge(verdict):
        return Verdict(verdict.value + 1)

    def hang():
        print("hangs", os.getpid(), os.getppid(), flush=True)
        time.sleep(3600)
"""


def test_functions_and_classes_of_a_plain_script_work(tmp_path: Path) -> None:
    script = run_script(
        tmp_path,
        SCRIPT
        + """
    async def main():
        judged = await AsyncRewardWrapper(judge)(Verdict(4))
        print(type(judged) is Verdict, judged.value)

    if __name__ == "__main__":
        asyncio.run(main())
    """,
    )
    out, err = script.communicate(timeout=LONG)
    assert (out, err) == ("True 5\n", "")


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    script = run_script(tmp_path, SCRIPT + "\n    asyncio.run(AsyncRewardWrapper(judge)(1))\n")
    _, err = script.communicate(timeout=LONG)
    assert script.returncode == 1
    assert 'if __name__ == "__main__":' in err


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_no_process_outlives_its_owner(tmp_path: Path, how: str) -> None:
    script = run_script(
        tmp_path,
        SCRIPT
        + """
    async def main():
        waiting = asyncio.ensure_future(AsyncRewardWrapper(hang, max_workers=2)())
        await asyncio.sleep(0)
        await AsyncRewardWrapper(judge, max_workers=2)(Verdict(1))
        print("others", *pool_status().processes, flush=True)
        while not os.path.exists("leave"):
            await asyncio.sleep(0.01)

    if __name__ == "__main__":
        asyncio.run(main())
    """,
    )
    assert script.stdout is not None
    said = [script.stdout.readline().split() for _ in range(2)]
    pids = {int(pid) for line in said for pid in line[1:]}
    assert len(pids) == 3, said
    if how == "killed":
        script.kill()
    else:
        (tmp_path / "leave").touch()
    script.wait(LONG)
    for pid in pids:
        wait_until_gone(pid)
    script.communicate()


async def test_a_forked_child_has_a_pool_of_its_own() -> None:
    wrapper = AsyncRewardWrapper(functions.process_id, max_workers=1)
    ours = await wrapper()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            theirs = asyncio.new_event_loop().run_until_complete(wrapper())
            os.write(writer, str(theirs).encode())
        finally:
            os._exit(0)
    os.close(writer)
    theirs = int(await asyncio.to_thread(os.read, reader, 100))
    os.close(reader)
    os.waitpid(child, 0)
    assert theirs != ours
    wait_until_gone(theirs)
    assert await wrapper() == ours, "the parent's pool goes on"


async def test_calls_that_wait_when_the_pool_closes_fail() -> None:
    wrapper = AsyncRewardWrapper(functions.nap, 3600, max_workers=1)
    waiting = asyncio.gather(wrapper(3600), wrapper(3600), return_exceptions=True)
    await until(lambda: pool_status().processes, "the process is there")
    await asyncio.to_thread(close_pool)
    assert [type(error) for error in await waiting] == [RewardCrash, RewardCrash]
    assert await AsyncRewardWrapper(functions.double)(1) == 2


def test_every_error_is_a_reward_error_with_a_kind() -> None:
    kinds = [c.kind for c in (RewardTimeout, RewardCrash, RewardRaised, RewardNotPicklable)]
    assert all(issubclass(c, RewardError) for c in (RewardTimeout, RewardCrash, RewardRaised))
    assert len(set(kinds)) == 4
    assert failure_of(RewardTimeout("late")).category.value == "timeout"
