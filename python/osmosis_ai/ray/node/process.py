"""One `osmosis node` process: started, restarted when it fails, ended with its owner."""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BINARY_VARIABLE = "OSMOSIS_BIN"

# Waits after failures in a row; the last one repeats.
_WAITS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# A process that ran this long has not failed at once: its next wait is the first again.
_GOOD_SECONDS = 60.0
# After `now`: how long the process may take before it is killed.
_NOW_SECONDS = 10.0
# Without anybody who looks, a process that only fails is given up after this long.
_UNWATCHED_SECONDS = 600.0
_KEPT_LINES = 1000
_LINE_LENGTH = 4000

# Run by a Python of its own, because a forked process with threads may run little else than `exec`.
# The kernel kills the program when the thread that started it is gone.
_ENDS_WITH_PARENT = """\
import ctypes, os, sys
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class BinaryMissingError(Exception):
    """This machine has no `osmosis` program."""


def find_binary(environ: Mapping[str, str] | None = None) -> str:
    """`OSMOSIS_BIN`, then beside the interpreter, then on the `PATH`."""
    environ = os.environ if environ is None else environ
    path = environ.get("PATH")
    named = environ.get(BINARY_VARIABLE)
    fix = (
        "install `osmosis-rs` on every machine of the cluster (`pip install osmosis-rs` in the "
        f"Python that runs Ray), or set {BINARY_VARIABLE} before `ray start`"
    )
    if named:
        found = shutil.which(named, path=path)
        if found is None:
            raise BinaryMissingError(f"{BINARY_VARIABLE} is `{named}`, which is no program; {fix}")
        return found
    # Not resolved: in a virtual environment the interpreter is a link, its neighbours are not.
    beside = Path(sys.executable).with_name("osmosis")
    found = shutil.which(str(beside)) or shutil.which("osmosis", path=path)
    if found is None:
        raise BinaryMissingError(
            f"`osmosis` is neither beside `{sys.executable}` nor on the PATH; {fix}"
        )
    return found


def machine_variables() -> dict[str, str]:
    """The environment that Ray was started with on this machine.

    Ray sets variables for its workers (`OMP_NUM_THREADS`, `CUDA_VISIBLE_DEVICES`) by what an actor
    reserved, which is nothing here. Its raylet, the parent of its workers, has the original ones.
    """
    try:
        raw = Path(f"/proc/{os.getppid()}/environ").read_bytes()
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        raw, command = b"", b""
    if b"raylet" not in command.split(b"\0")[0]:
        return dict(os.environ)
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


class NodeProcess:
    """Keeps one program running until it ends by itself with code 0, or is asked to stop."""

    def __init__(
        self,
        arguments: list[str],
        variables: Mapping[str, str],
        *,
        waits: tuple[float, ...] = _WAITS,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self._arguments = arguments
        self._variables = dict(variables)
        self._waits = waits
        self._on_line = on_line
        self._lock = threading.Condition()
        self._lines: collections.deque[tuple[int, str]] = collections.deque(maxlen=_KEPT_LINES)
        self._line_number = 0
        self._state = "starting"
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._last_exit: str | None = None
        self._asked: str | None = None
        self._looked_at = time.monotonic()
        # It starts the program, so it must live as long as this process does: see the wrapper.
        self._owner = threading.Thread(target=self._own, name="osmosis-node", daemon=True)
        self._owner.start()

    def look(self, since: int) -> dict[str, Any]:
        """What it does, and the lines that it has printed from the number `since` on."""
        with self._lock:
            self._looked_at = time.monotonic()
            first = self._lines[0][0] if self._lines else self._line_number
            return {
                "state": self._state,
                "pid": self._process.pid if self._process is not None else None,
                "restarts": self._restarts,
                "last_exit": self._last_exit,
                "lines": [text for number, text in self._lines if number >= since],
                "next": self._line_number,
                "missed": max(0, first - since),
            }

    def stop(self, how: str) -> None:
        """`drain`: it finishes what it holds and leaves. `now`: it leaves."""
        with self._lock:
            if self._asked == how or self._asked == "now":
                return
            first_time = self._asked is None
            self._asked = how
            process = self._process
            self._lock.notify_all()
        if process is not None:
            # Two kinds of signal: two of one kind that arrive together count as one.
            if first_time:
                _signal(process, signal.SIGTERM)
            if how == "now":
                _signal(process, signal.SIGINT)
                threading.Timer(_NOW_SECONDS, _kill, (process,)).start()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended for good, after at most so long."""
        self._owner.join(seconds)
        return not self._owner.is_alive()

    def unwatched_for(self) -> float:
        """Seconds since somebody looked."""
        with self._lock:
            return time.monotonic() - self._looked_at

    def _own(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            problem = self._run_once()
            with self._lock:
                self._process = None
                self._last_exit = problem or "ended with code 0"
                if problem is None or self._asked is not None:
                    break
                if time.monotonic() - began >= _GOOD_SECONDS:
                    failures = 0
                elif time.monotonic() - self._looked_at >= _UNWATCHED_SECONDS:
                    break
                wait = self._waits[min(failures, len(self._waits) - 1)]
                failures += 1
                self._state = "waiting"
            self._say(f"{problem}; starting it again in {wait:g} s")
            with self._lock:
                if self._lock.wait_for(lambda: self._asked is not None, wait):
                    break
                self._restarts += 1
        with self._lock:
            self._state = "ended"
            self._lock.notify_all()

    def _run_once(self) -> str | None:
        """Why it has to run again; `None` after code 0."""
        environ = {**machine_variables(), **self._variables}
        try:
            program = find_binary(environ)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-S", "-E", "-c", _ENDS_WITH_PARENT, str(os.getpid())),
                    *(program, *self._arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
            )
        except (OSError, BinaryMissingError) as error:
            return str(error)
        with self._lock:
            self._process = process
            self._state = "running"
            asked = self._asked
        if asked is not None:
            _signal(process, signal.SIGTERM)
            if asked == "now":
                _signal(process, signal.SIGINT)
                threading.Timer(_NOW_SECONDS, _kill, (process,)).start()
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        code = process.wait()
        # What it left behind may hold the pipe open.
        reader.join(1)
        _kill(process)
        return _problem(code)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in process.stdout:
                self._say(line.decode(errors="replace").rstrip())

    def _say(self, line: str) -> None:
        line = line[:_LINE_LENGTH]
        with self._lock:
            self._lines.append((self._line_number, line))
            self._line_number += 1
        if self._on_line is not None:
            self._on_line(line)


def _problem(code: int) -> str | None:
    if code == 0:
        return None
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"`osmosis node` was ended by {signal.Signals(-code).name}"
    return f"`osmosis node` ended with code {code}"


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(OSError):
        process.send_signal(number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole group; the program leads one of its own."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
