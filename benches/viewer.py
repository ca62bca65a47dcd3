"""Measures `osmosis view` in Chromium: time until a page can be used, frames while scrolling, memory of the server.

Needs Debian's Chromium and the packages that `cargo xtask ci --only "viewer page"` installs.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--packages", help="folder with playwright-core [default: the target folder's]")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--make-runs", help="the example `make_runs` of osmosis-view [default: built in release]")
    parser.add_argument("--workspace", help="folder with the runs of an earlier measurement")
    arguments = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    packages = arguments.packages or str(target / "viewer-packages")
    make_runs = arguments.make_runs
    if make_runs is None:
        build = ["cargo", "build", "--release", "--locked", "-p", "osmosis-view", "--example", "make_runs"]
        subprocess.run(build, check=True, cwd=ROOT)
        make_runs = str(target / "release/examples/make_runs")
    with tempfile.TemporaryDirectory() as folder:
        workspace = arguments.workspace or folder
        for kind, name, *count in [("large", "r10000", "10000"), ("large", "r100000", "100000"), ("long", "long")]:
            if not (Path(workspace) / ".osmosis/evals" / name).exists():
                subprocess.run([make_runs, workspace, kind, name, *count], check=True)
        measure = ["node", str(ROOT / "benches/viewer/measure.mjs"), arguments.osmosis, workspace, packages, arguments.chromium]
        done = subprocess.run(measure, check=True, capture_output=True, text=True)
    results = json.loads(done.stdout)
    print("| page | first time | again | server, peak |\n|---|---|---|---|")
    for name, result in results.items():
        if "cold_ms" in result:
            print(f"| {name} | {result['cold_ms']} ms | {result['warm_ms']} ms | {result['server_mb']} MB |")
    print("\n| scrolling | median frame | 95% under | longest |\n|---|---|---|---|")
    for name, result in results.items():
        if "p95_ms" in result:
            print(f"| {name} | {result['p50_ms']} ms | {result['p95_ms']} ms | {result['max_ms']} ms |")


if __name__ == "__main__":
    main()
