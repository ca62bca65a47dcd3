"""What one grade costs in a Python worker alone: no engine, no store.

    python benches/grade_worker.py --sdk OLD/python --sdk python

It starts the worker of each package folder in turn, plays the engine's part of the protocol over a socket, and has a
grader of one line grade samples, a few at once. The worker's processor time is from `/proc`, so it runs on Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from big_run import MAIN
from tables import print_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from osmosis_ai.worker import frames  # noqa: E402

MESSAGES = json.dumps(
    [
        {"role": "user", "content": "What is 5 times 8?"},
        {"role": "assistant", "content": "The answer is 0"},
    ]
)


class Worker:
    """A worker process, and our end of its connections."""

    def __init__(self, sdk: pathlib.Path, folder: pathlib.Path) -> None:
        project = folder / "project"
        project.mkdir()
        (project / "main.py").write_text(MAIN)
        address = folder / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address))
        listener.listen()
        environment = {
            **os.environ,
            frames.ADDRESS_VARIABLE: f"unix:{address}",
            frames.TOKEN_VARIABLE: "token",
            "PYTHONPATH": str(sdk),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "osmosis_ai.worker"], env=environment, cwd=project
        )
        self.buffer = bytearray()
        self.control = self._accept(listener)
        output = self._accept(listener)
        threading.Thread(target=_drain, args=(output,), daemon=True).start()
        self.control.sendall(frames.encode(frames.Load(str(project), "main.py", "{}", "{}")))
        loaded = next(self.received())
        assert isinstance(loaded, frames.Loaded), loaded

    def _accept(self, listener: socket.socket) -> socket.socket:
        connection, _ = listener.accept()
        buffer = bytearray()
        while not frames.split_frames(buffer):
            buffer += connection.recv(65536)
        connection.sendall(frames.encode(frames.Welcome(1)))
        return connection

    def received(self) -> Iterator[object]:
        """Frames as they come."""
        while True:
            data = self.control.recv(1 << 18)
            if not data:
                sys.exit("the worker has left")
            self.buffer += data
            yield from frames.split_frames(self.buffer)

    def processor_seconds(self) -> float:
        """What it has used so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _drain(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def measure(sdk: pathlib.Path, count: int, at_once: int) -> tuple[float, float]:
    """Wall and processor time of one grade, in microseconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        worker = Worker(sdk, folder)
        artifacts = folder / "run/artifacts"
        artifacts.mkdir(parents=True)
        encoded = [
            frames.encode(
                frames.Grade(
                    task, f"r{task}-0", "40", [frames.Sample("main", MESSAGES)], None,
                    str(artifacts / f"r{task}-0"), str(folder / "project"),
                )  # fmt: skip
            )
            for task in range(count)
        ]
        used, began = worker.processor_seconds(), time.perf_counter()
        worker.control.sendall(b"".join(encoded[:at_once]))
        sent, done = at_once, 0
        for frame in worker.received():
            if isinstance(frame, frames.GradeDone):
                assert frame.samples[0].reward == 0.0, frame
                done += 1
                if sent < count:
                    worker.control.sendall(encoded[sent])
                    sent += 1
                elif done == count:
                    break
            elif not isinstance(frame, frames.Started):
                sys.exit(f"unexpected: {frame}")
        wall = time.perf_counter() - began
        used = worker.processor_seconds() - used
        worker.process.kill()
        worker.process.wait()
    return wall / count * 1e6, used / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sdk", action="append", default=[], type=pathlib.Path, help="a folder that holds `osmosis_ai`")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    folders = [folder.resolve() for folder in arguments.sdk] or [ROOT / "python"]
    results: list[list[tuple[float, float]]] = [[] for _ in folders]
    for _ in range(arguments.rounds):
        for folder, measured in zip(folders, results, strict=True):
            measured.append(measure(folder, arguments.count, arguments.at_once))
    rows = []
    for place, measured in enumerate(results, start=1):
        wall, used = (statistics.median(values) for values in zip(*measured, strict=True))
        rows.append([f"package {place}", f"{wall:.0f} µs", f"{used:.0f} µs"])
    print_table(["", "wall time of a grade", "processor time of a grade"], rows)


if __name__ == "__main__":
    main()
