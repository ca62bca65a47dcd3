"""Measures `osmosis view` in Chromium: time until a page can be used, frames while scrolling, memory of the server.

Needs Debian's Chromium and the packages that `cargo xtask ci --only "viewer page"` installs. `inspect view` shows the same
runs, exported by `osmosis export --format inspect`, in the same browser; it is installed from PyPI into
`target/bench-venvs/inspect` (`--without-inspect` leaves it out).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tables import print_table

ROOT = Path(__file__).resolve().parent.parent
INSPECT = "inspect-ai==0.3.285"
RUNS = {"r10000": ("large", 10_000), "r100000": ("large", 100_000), "long": ("long", 0)}
# What is promised: milliseconds to the first screen, milliseconds of 95% of the frames, MB of the server.
FIRST_SCREEN_MS = {
    "run of 10,000": 1000,
    "run of 100,000": 1500,
    "rollout of 200 turns": 1000,
    "token lens of 100,000": 1000,
}
FRAME_MS = 40
SERVER_MB = 150


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--osmosis", "--binary", required=True, help="the program to measure")
    parser.add_argument("--packages", help="folder with playwright-core [default: the target folder's]")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--make-runs", help="the example `make_runs` of osmosis-view [default: built in release]")
    parser.add_argument("--workspace", help="folder with the runs of an earlier measurement")
    parser.add_argument("--rounds", type=int, default=5, help="first screens of each page [default: 5]")
    parser.add_argument("--inspect", help="an `inspect` that is installed already")
    parser.add_argument("--without-inspect", action="store_true")
    parser.add_argument("--markdown", action="store_true", help="accepted for `cargo xtask bench`: the tables always are")
    arguments = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    packages = arguments.packages or str(target / "viewer-packages")
    make_runs = arguments.make_runs
    if make_runs is None:
        build = ["cargo", "build", "--release", "--locked", "-p", "osmosis-view", "--example", "make_runs"]
        subprocess.run(build, check=True, cwd=ROOT)
        make_runs = str(target / "release/examples/make_runs")
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(arguments.workspace or folder)
        for name, (kind, count) in RUNS.items():
            if not (workspace / ".osmosis/evals" / name).exists():
                subprocess.run([make_runs, str(workspace), kind, name, str(count)], check=True)
        measure = [str(ROOT / "benches/viewer/measure.mjs"), arguments.osmosis, str(workspace), packages, arguments.chromium]
        ours = node(*measure, str(arguments.rounds))
        theirs: dict[str, Any] = {}
        if not arguments.without_inspect:
            inspect = arguments.inspect or installed(target / "bench-venvs/inspect")
            if inspect is not None:
                theirs = beside(inspect, arguments, workspace, packages)
    return report(ours, theirs)


def node(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(["node", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def installed(venv: Path) -> str | None:
    """`inspect` of PyPI, installed once; `None`, with the reason, where that can't be done."""
    program = venv / "bin/inspect"
    if program.exists():
        return str(program)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", INSPECT]
        subprocess.run(pip, check=True)
    except subprocess.CalledProcessError as error:
        print(f"inspect view was not measured: {error}", file=sys.stderr)
        return None
    return str(program)


def beside(inspect: str, arguments: argparse.Namespace, workspace: Path, packages: str) -> dict[str, Any]:
    """The same runs in `inspect view`."""
    logs = workspace / "inspect-logs"
    logs.mkdir(exist_ok=True)
    for name in RUNS:
        log = logs / f"{name}.eval"
        if not log.exists():
            export = [arguments.osmosis, "export", name, "--workspace", str(workspace), "--format", "inspect", "-o", str(log)]
            subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    measure = str(ROOT / "benches/viewer/inspect.mjs")
    return node(measure, inspect, str(logs), packages, arguments.chromium, str(min(arguments.rounds, 3)))


def report(ours: dict[str, Any], theirs: dict[str, Any]) -> int:
    failed = []

    def limit(value: float, most: float, what: str) -> str:
        if value > most:
            failed.append(f"{what}: {value}, the limit is {most}")
        return f"{value / most:.2f} of {most:,}"

    def compared(name: str, key: str, own: float) -> tuple[str, str]:
        other = theirs.get(name, {}).get(key)
        if other is None:
            return "–", "–"
        return f"{other:,}", f"{other / max(own, 0.1):.1f}"

    rows = []
    for name, most in FIRST_SCREEN_MS.items():
        own = ours[name]["cold_ms"]
        rows.append([name, f"{own:,}", f"{ours[name]['warm_ms']:,}", limit(own, most, name), *compared(name, "cold_ms", own)])
    print_table(["first screen, ms", "first time", "again", "of the limit", "`inspect view`", "ratio"], rows)
    rows = []
    for name in FIRST_SCREEN_MS:
        own = ours[name]["server_mb"]
        rows.append([name, f"{own:,}", limit(own, SERVER_MB, f"server, {name}"), *compared(name, "server_mb", own)])
    print_table(["server, peak MB", "", "of the limit", "`inspect view`", "ratio"], rows)
    rows = []
    for name, result in ours.items():
        if "p95_ms" in result:
            within = limit(result["p95_ms"], FRAME_MS, f"scrolling, {name}")
            own = result["p95_ms"]
            rows.append([name, result["p50_ms"], own, result["max_ms"], within, *compared(f"scrolling {name}", "p95_ms", own)])
    header = ["frame while scrolling, ms", "median", "95% under", "longest", "of the limit", "`inspect view`, 95%", "ratio"]
    print_table(header, rows)
    if theirs:
        print(f"`inspect view` of {INSPECT.split('==')[0]} {theirs.get('version', '')}: first screen is the list of samples, or the sample's messages.")
    for line in failed:
        print(f"over the limit: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
