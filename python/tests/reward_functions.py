"""Reward functions for the tests, in a module that a reward process imports quickly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def double(value: int) -> int:
    return value * 2


def keyword_sum(*values: int, **named: int) -> int:
    return sum(values) + sum(named.values())


def process_id(*_: Any) -> int:
    return os.getpid()


def nap(seconds: float, value: Any = None) -> Any:
    time.sleep(seconds)
    return value


def note(folder: str, text: str) -> None:
    """One more file in the folder."""
    (Path(folder) / f"{time.monotonic_ns()}-{os.getpid()}").write_text(text)


def hang(folder: str) -> None:
    note(folder, str(time.monotonic()))
    while True:
        time.sleep(3600)


def hang_with_a_subprocess(folder: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    note(folder, f"{os.getpid()} {child.pid}")
    child.wait()


def die_once(folder: str, value: int) -> int:
    if value == 20:
        try:
            (Path(folder) / "died").touch(exist_ok=False)
        except FileExistsError:
            return value
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def die(folder: str) -> None:
    note(folder, "dies")
    os._exit(7)


def leave(folder: str) -> None:
    note(folder, "leaves")
    sys.exit(3)


def wait_for(file: str) -> str:
    """Says in a file that it runs, and ends when another file appears."""
    Path(file + ".running").write_text(str(os.getpid()))
    while not os.path.exists(file):
        time.sleep(0.005)
    return "done"


def fail(text: str) -> None:
    raise KeyError(text)


class UnpicklableError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.handle = lambda: None


class UnreadableError(Exception):
    """Can be pickled, but not read back."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


def fail_unpicklable() -> None:
    raise UnpicklableError("it holds a lambda")


def fail_unreadable() -> None:
    raise UnreadableError(3, detail="two arguments")


def give_unpicklable() -> Any:
    return lambda: None


def large(size: int) -> bytes:
    return b"x" * size


def length(data: bytes) -> int:
    return len(data)


def draw() -> tuple[int, float]:
    time.sleep(0.05)
    return os.getpid(), random.random()


async def asynchronous() -> int:
    return 1


class Scorer:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def score(self, value: int) -> int:
        return value * self.factor

    def __call__(self, value: int) -> int:
        return self.score(value)

    @classmethod
    def name(cls) -> str:
        return cls.__name__


class Locked(Scorer):
    def __init__(self) -> None:
        import threading

        super().__init__(1)
        self.lock = threading.Lock()


def misbehave(how: str, value: int) -> int:
    if how == "crash":
        os._exit(1)
    if how == "hang":
        time.sleep(3600)
    if how == "raise":
        raise ValueError(str(value))
    if how == "nap":
        time.sleep(value % 30 / 1000)
    return value * 2
