"""How many rewards a process computes per second, and what starting and replacing one costs.

    cargo xtask bench rewards -- [--areal [WHEEL]] [--rounds 5] [--calls 3000]

The same calls, all of them waiting at once on one event loop, in the same run and taking turns: `AsyncRewardWrapper`
of this package, `concurrent.futures.ProcessPoolExecutor` through `run_in_executor`, and (with `--areal`) the wrapper of
`areal` 1.0.4, whose wheel is read from WHEEL or fetched from PyPI. Only its `areal/api/reward_api.py` is loaded, with
the standard `logging` in place of its own: the package itself needs torch. Goal: at least equal to both with the same
number of processes; `ratio` is to the better of them. Two functions: `nothing` is all overhead, `check` looks for a number in a text of 2 kB, with 512
token ids beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from concurrent.futures import ProcessPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from osmosis_ai.areal.reward_api import AsyncRewardWrapper, close_pool, pool_status  # noqa: E402
from osmosis_ai.areal.reward_errors import RewardTimeout  # noqa: E402

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
TEXT = "so the sum of both parts is what remains " * 48 + "42"


def nothing(value: int) -> int:
    return value


def check(
    prompt: str, completion: str, prompt_ids: list[int], completion_ids: list[int], answer: str
) -> float:
    return float(NUMBER.findall(completion)[-1] == answer)


def hang() -> None:
    time.sleep(3600)


CALLS = {
    nothing: ((7,), {}),
    check: (("What is it?", TEXT, list(range(64)), list(range(448))), {"answer": "42"}),
}


def areal_wrapper(wheel: str) -> type:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="osmosis-bench-areal-"))
    if not wheel:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
            "areal==1.0.4",
        ]
        subprocess.run(command, check=True)
        wheel = str(next(folder.glob("areal-*.whl")))
    with zipfile.ZipFile(wheel) as archive:
        source = archive.read("areal/api/reward_api.py").decode()
    utils = types.ModuleType("areal.utils")
    utils.logging = logging
    sys.modules.update({"areal": types.ModuleType("areal"), "areal.utils": utils})
    module = types.ModuleType("areal_reward_api")
    exec(compile(source, "areal/api/reward_api.py", "exec"), module.__dict__)
    for name in ("areal", "areal.utils"):
        del sys.modules[name]
    return module.AsyncRewardWrapper


def executor_wrapper(executor: ProcessPoolExecutor, function):
    async def call(*args, **kwargs):
        return await asyncio.get_running_loop().run_in_executor(
            executor, functools.partial(function, *args, **kwargs)
        )

    return call


async def rate(call, function, calls: int) -> float:
    args, kwargs = CALLS[function]
    expected = function(*args, **kwargs)
    started = time.perf_counter()
    results = await asyncio.gather(*(call(*args, **kwargs) for _ in range(calls)))
    seconds = time.perf_counter() - started
    assert all(result == expected for result in results)
    return calls / seconds


async def compare(options: argparse.Namespace, areal: type | None) -> None:
    print(f"{options.calls} calls at once, median of {options.rounds} rounds in turns, rewards/s")
    print(f"{'processes':>9} {'function':<9}{'osmosis':>10}{'executor':>10}{'areal':>10}{'ratio':>10}")
    for processes in options.processes:
        executor = ProcessPoolExecutor(processes)
        close_pool()
        for function in CALLS:
            calls = {
                "osmosis": AsyncRewardWrapper(function, max_workers=processes),
                "executor": executor_wrapper(executor, function),
            }
            if areal is not None:
                calls["areal"] = areal(function, max_workers=processes)
            rates: dict[str, list[float]] = {name: [] for name in calls}
            for call in calls.values():
                await rate(call, function, 64)
            for turn in range(options.rounds):
                names = list(calls)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    rates[name].append(await rate(calls[name], function, options.calls))
            assert len(pool_status().processes) == processes, pool_status()
            medians = {name: statistics.median(values) for name, values in rates.items()}
            shown = "".join(
                f"{medians[name]:>10,.0f}" if name in medians else f"{'-':>10}"
                for name in ("osmosis", "executor", "areal")
            )
            best = max(rate for name, rate in medians.items() if name != "osmosis")
            ratio = medians["osmosis"] / best
            print(f"{processes:>9} {function.__name__:<9}{shown}{ratio:>9.1f}x")
        executor.shutdown()


async def costs(rounds: int) -> None:
    first, replaced = [], []
    for _ in range(rounds):
        close_pool()
        started = time.perf_counter()
        await AsyncRewardWrapper(nothing, max_workers=1)(1)
        first.append(time.perf_counter() - started)
        # Waits until the template has imported this script too, as it has after the first seconds of a run.
        await asyncio.sleep(0.5)
        for _ in range(3):
            try:
                await AsyncRewardWrapper(hang, timeout_seconds=0.01, max_workers=1)()
            except RewardTimeout:
                started = time.perf_counter()
                await AsyncRewardWrapper(nothing, max_workers=1)(1)
                replaced.append(time.perf_counter() - started)
    close_pool()
    print(f"first reward of a new pool: {statistics.median(first) * 1e3:.0f} ms")
    print(
        f"next reward after a kill (the replacement's first): {statistics.median(replaced) * 1e3:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--areal", nargs="?", const="", metavar="WHEEL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    areal = None if options.areal is None else areal_wrapper(options.areal)
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    asyncio.run(compare(options, areal))
    asyncio.run(costs(options.rounds))


if __name__ == "__main__":
    main()
