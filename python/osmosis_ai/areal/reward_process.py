"""The processes that reward functions run in: started by path, on the standard library alone.

A *template*, started clean, forks one process per slot of the pool: a fork of a clean process costs
a millisecond, and a fork of the caller's process (an event loop, threads, locks) would not be
sound. The template runs no reward function; it imports a module only after a reward process has
shown that importing it works and starts no thread. Whoever owns the pool tells both over sockets;
when the owner is gone, the sockets end and so do they.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

# Every message, in every direction: what it is, the number of a call, the size of what follows.
HEADER = struct.Struct("<BQQ")
PROTOCOL = 5

# To the template.
START, END, PRELOAD = range(3)
# To a reward process. `FIRST_CALL` asks for `STARTED` when the function has been loaded. `OFFER` is
# a call sent ahead, which the process may run once it has claimed it: its number is in a pipe, from
# which the owner can take it back as long as the process is busy with another call.
SETUP, CALL, FIRST_CALL, OFFER = range(4)
CLAIM = struct.Struct("<Q")
# From a reward process.
HELLO, STARTED, VALUE, RAISED, FAILED, EXITED, UNLOADABLE = range(7)

_CHUNK = 256 * 1024
_REAP_SECONDS = 0.02
_PR_SET_PDEATHSIG = 1
# Says in a worker that modules of the project come from a snapshot.
_SNAPSHOT = "_OSMOSIS_SNAPSHOT"

# Also true for a user's module that is imported in here and reaches for this one.
inside = False


def main() -> NoReturn:
    """The template, from its start to its end."""
    control = socket.socket(fileno=int(sys.argv[1]))
    _take_over_main()
    _Template(control, _load_prctl()).run()


class _Template:
    def __init__(self, control: socket.socket, prctl: Any) -> None:
        self._control = control
        self._prctl = prctl
        self._children: set[int] = set()
        self._ending: set[int] = set()
        self._owner = os.getppid()

    def run(self) -> NoReturn:
        try:
            while True:
                ready, _, _ = select.select(
                    [self._control], [], [], _REAP_SECONDS if self._ending else None
                )
                self._reap()
                if ready:
                    self._take()
        except (OSError, EOFError):
            for pid in self._children:
                _kill(pid)
            os._exit(0)

    def _take(self) -> None:
        header, fds, _, _ = socket.recv_fds(self._control, HEADER.size, 2)
        if not header:
            raise EOFError
        header += _read(self._control, HEADER.size - len(header))
        kind, _, size = HEADER.unpack(header)
        payload = _read(self._control, size)
        if kind == START:
            self._start(*fds)
        elif kind == END:
            # Only now may the number be given to another process.
            pid = int.from_bytes(payload, "little")
            _kill(pid)
            self._ending.add(pid)
            self._reap()
        elif kind == PRELOAD:
            # The end of the socket is not seen during an import; the kernel sees the owner's.
            self._die_with(self._owner)
            _preload(*pickle.loads(payload))
            self._die_with(None)

    def _start(self, connection: int, claims: int) -> None:
        template = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            # The owner sees that the process ended before it began.
            pid = -1
        if pid:
            os.close(connection)
            os.close(claims)
            if pid > 0:
                self._children.add(pid)
            return
        try:
            os.setpgid(0, 0)
            self._die_with(template)
            self._control.close()
            _reseed()
            _Process(socket.socket(fileno=connection), claims).run()
        finally:
            os._exit(1)

    def _die_with(self, parent: int | None) -> None:
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if parent else 0, 0, 0, 0)
            if parent and os.getppid() != parent:
                os._exit(1)

    def _reap(self) -> None:
        for pid in list(self._ending):
            status = 0
            with contextlib.suppress(ChildProcessError):
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done:
                    continue
            self._ending.discard(pid)
            self._children.discard(pid)
            self._control.sendall(struct.pack("<Qi", pid, os.waitstatus_to_exitcode(status)))


class _Process:
    """Runs one call after the other, in the main thread."""

    def __init__(self, connection: socket.socket, claims: int) -> None:
        self._connection = connection
        self._claims = claims
        self._claimed = 0
        self._rest = b""
        self._main: tuple[str, str] | None = None

    def run(self) -> NoReturn:
        self._send(HELLO, os.getpid().to_bytes(8, "little"))
        while True:
            try:
                kind, number, payload = self._receive()
                if kind == SETUP:
                    self._main = prepare(pickle.loads(payload))
                elif kind != OFFER or self._claim(number):
                    self._call(payload, tell=kind == FIRST_CALL)
            except (OSError, EOFError):
                # The owner is gone, or does not want this process any more.
                os._exit(0)

    def _claim(self, number: int) -> bool:
        """Whether the offered call is ours. Claims come in the order of offers."""
        while self._claimed < number:
            try:
                self._claimed = CLAIM.unpack(os.read(self._claims, CLAIM.size))[0]
            except BlockingIOError:
                return False
        return self._claimed == number

    def _call(self, payload: bytes, tell: bool) -> None:
        try:
            function, args, kwargs = self._load(payload)
        except BaseException as error:
            self._send(UNLOADABLE, _described(error))
            return
        if tell:
            self._send(STARTED, bytes([_has_threads()]))
        try:
            value = function(*args, **kwargs)
        except Exception as error:
            self._send(*_raised(error))
        except BaseException as error:
            # `sys.exit()` must not travel: it would end the caller.
            self._send(EXITED, _described(error))
        else:
            try:
                reply = pickle.dumps(value, PROTOCOL)
            except Exception as error:
                name = type(value).__name__
                problem = f"its result of type `{name}` can't be pickled: {error}"
                self._send(FAILED, pickle.dumps((type(error).__name__, problem, ""), PROTOCOL))
                return
            self._send(VALUE, reply)

    def _load(self, payload: bytes) -> Any:
        try:
            return pickle.loads(payload)
        except AttributeError:
            # Something of the script that the owner runs, which is imported only when needed.
            if self._main is None or hasattr(sys.modules["__main__"], "__osmosis_loaded__"):
                raise
            load_main(self._main)
            return pickle.loads(payload)

    def _receive(self) -> tuple[int, int, bytes]:
        data, self._rest = self._rest, b""
        if len(data) < HEADER.size:
            data += self._connection.recv(_CHUNK)
            if not data:
                raise EOFError
            data += _read(self._connection, HEADER.size - len(data))
        kind, number, size = HEADER.unpack_from(data)
        end = HEADER.size + size
        if len(data) < end:
            return kind, number, data[HEADER.size :] + _read(self._connection, end - len(data))
        self._rest = data[end:]
        return kind, number, data[HEADER.size : end]

    def _send(self, kind: int, payload: bytes) -> None:
        if len(payload) < _CHUNK:
            self._connection.sendall(HEADER.pack(kind, 0, len(payload)) + payload)
        else:
            self._connection.sendall(HEADER.pack(kind, 0, len(payload)))
            self._connection.sendall(payload)


def prepare(setup: dict[str, Any]) -> tuple[str, str] | None:
    """Makes importable what the owner could import; answers where its main script is."""
    if sys.path != setup["path"]:
        sys.path[:] = setup["path"]
    sys.argv[:] = setup["argv"]
    with contextlib.suppress(OSError):
        os.chdir(setup["folder"])
    _Files.known.update(setup["files"])
    if _SNAPSHOT in os.environ:
        import_module("osmosis_ai.project_snapshot").install()
    if _Files not in sys.meta_path:
        sys.meta_path.insert(0, _Files)
    if setup["alias"]:
        import_module("osmosis_ai.areal.alias").install_alias()
    main: tuple[str, str] | None = setup["main"]
    return main


class _Files:
    """Finds modules that the owner loaded from files outside of the import path."""

    known: dict[str, str] = {}  # noqa: RUF012

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        file = cls.known.get(name)
        if file is None:
            return None
        if _SNAPSHOT in os.environ:
            return import_module("osmosis_ai.project_snapshot").spec_of_file(name, file)
        return import_module("importlib.util").spec_from_file_location(name, file)


def load_main(main: tuple[str, str]) -> None:
    """Imports the owner's script, under a name that keeps its `__main__` part from running."""
    import runpy

    how, where = main
    run = runpy.run_module if how == "module" else runpy.run_path
    module = sys.modules["__main__"] = sys.modules["__mp_main__"] = ModuleType("__mp_main__")
    vars(module).update(run(where, run_name="__mp_main__"), __osmosis_loaded__=True)


def _preload(setup: dict[str, Any], module: str) -> None:
    """Imports ahead of the next forks. What fails here shows in a reward process, as before."""
    with contextlib.suppress(BaseException):
        main = prepare(setup)
        if module == "__main__":
            if main is not None:
                load_main(main)
        else:
            import_module(module)
    gc.collect()
    gc.freeze()


def _take_over_main() -> None:
    """Leaves `__main__` to the user's script; modules that import this one find it as it is."""
    global inside
    inside = True
    sys.modules["osmosis_ai.areal.reward_process"] = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")


def _load_prctl() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl


def _read(connection: socket.socket, size: int) -> bytes:
    if size <= 0:
        return b""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(data)


def _kill(pid: int) -> None:
    """Ends a reward process with all that it has started."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def _reseed() -> None:
    """Forked siblings must not draw the same random numbers."""
    for name in ("random", "numpy.random"):
        module = sys.modules.get(name)
        if module is not None:
            with contextlib.suppress(Exception):
                module.seed()


def _has_threads() -> bool:
    """Whether what was imported keeps this process from being forked soundly."""
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        # Without a way to see native threads nothing is preloaded.
        return True


def _raised(error: Exception) -> tuple[int, bytes]:
    try:
        data = pickle.dumps((error, _traceback(error)), PROTOCOL)
        # Some exceptions can be written but not read back.
        pickle.loads(data)
    except Exception:
        return FAILED, _described(error)
    return RAISED, data


def _described(error: BaseException) -> bytes:
    try:
        text = str(error)
    except Exception:
        text = "(the exception has no readable text)"
    return pickle.dumps((type(error).__name__, text, _traceback(error)), PROTOCOL)


def _traceback(error: BaseException) -> str:
    import traceback

    try:
        report = traceback.TracebackException.from_exception(error)
        report.stack[:] = [frame for frame in report.stack if frame.filename != __file__]
        return "".join(report.format())
    except Exception as problem:
        return f"(no traceback: {type(problem).__name__})"


if __name__ == "__main__":
    main()
