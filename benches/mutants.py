"""Measures the tests: `cargo-mutants` on a seeded sample of mutants.

    cargo install cargo-mutants --locked
    python3 benches/mutants.py --seed 17 --count 300

Works on a clone of the last commit in `target/mutants`, so uncommitted changes take no part. Each crate's mutants are
put into an order given by the seed, and tested from the front until the crate's share has compiled and run; mutants
that don't compile are counted apart. A mutant that the unit tests miss is tested again with all tests of its crate.
Results are kept in `target/mutants/results.jsonl`: a run that was interrupted continues.
`--again FILE` tests the mutants named in FILE instead of a sample (after mending the tests).
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORE = "crates/osmosis-store/src"


@dataclass(frozen=True)
class Stage:
    label: str
    arguments: tuple[str, ...] = ()
    # Arguments of the test programs, which then run all their tests in one process.
    test_arguments: tuple[str, ...] = ()


def quick(*skipped: str) -> Stage:
    """The unit tests without the slow ones, whose names contain `skipped`."""
    skips = (argument for text in skipped for argument in ("--skip", text))
    return Stage("quick unit tests", ("--cargo-arg=--lib",), ("--quiet", *skips))


WHOLE = Stage("all tests of the crate", ("--test-tool=nextest",))


@dataclass(frozen=True)
class Stratum:
    package: str
    # Of 300 mutants. Crates that build quickly get most.
    share: int
    files: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = (quick(), WHOLE)


STRATA = [
    Stratum(
        "osmosis-core",
        135,
        stages=(
            quick("simulation_tests", "properties", "run_numbers::tests::r", "order_of_arrival"),
            WHOLE,
        ),
    ),
    Stratum("osmosis-tokens", 75),
    Stratum(
        "osmosis-store",
        45,
        tuple(f"{STORE}/{file}" for file in ("sqlite/queue.rs", "lock.rs", "sqlite/rollouts.rs")),
        (WHOLE,),
    ),
    Stratum("osmosis-train", 45),
]
SUMMARIES = {
    "CaughtMutant": "caught",
    "MissedMutant": "missed",
    "Unviable": "unviable",
    "Timeout": "timeout",
}


class Campaign:
    def __init__(self, work: Path, commit: str, timeout: int) -> None:
        self.work = work
        self.tree = work / "tree"
        self.commit = commit
        self.timeout = timeout
        self.results_file = work / "results.jsonl"
        self.results: dict[str, dict] = {}
        if self.results_file.exists():
            for line in self.results_file.read_text().splitlines():
                result = json.loads(line)
                if result["commit"] == commit:
                    self.results[result["name"]] = result
        self.environment = {
            # Tests draw the same cases for every mutant, and leave nothing behind for the next.
            "PROPTEST_RNG_SEED": "17",
            "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
            "PROPTEST_MAX_SHRINK_ITERS": "0",
            "CARGO_TARGET_DIR": str(work / "build"),
            **os.environ,
        }

    def clone(self) -> None:
        if not self.tree.exists():
            run(["git", "clone", "--quiet", "--shared", str(ROOT), str(self.tree)])
        git = ["git", "-C", str(self.tree)]
        run([*git, "fetch", "--quiet", str(ROOT), self.commit])
        run([*git, "checkout", "--quiet", "--force", "--detach", self.commit])

    def mutants(self, stratum: Stratum) -> list[str]:
        files = [f"--file={file}" for file in stratum.files]
        command = ["cargo", "mutants", "--list", "--json", "-p", stratum.package, *files]
        done = run(command, cwd=self.tree, env=self.environment, stdout=subprocess.PIPE)
        return sorted({mutant["name"] for mutant in json.loads(done.stdout)})

    def test(self, stratum: Stratum, names: list[str]) -> None:
        """Tests those of `names` without a result, in stages: only what one stage misses goes on to the next."""
        names = [name for name in names if name not in self.results]
        for stage in stratum.stages:
            if not names:
                return
            outcomes = self.cargo_mutants(stratum, names, stage)
            names = []
            for name, outcome in outcomes.items():
                if outcome["result"] == "missed" and stage != stratum.stages[-1]:
                    names.append(name)
                else:
                    self.keep(
                        {"name": name, "package": stratum.package, "tests": stage.label, **outcome}
                    )

    def keep(self, result: dict) -> None:
        result["commit"] = self.commit
        self.results[result["name"]] = result
        with self.results_file.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{result['result']:>8}  {result['seconds']:5.1f} s  {result['name']}", flush=True)

    def cargo_mutants(
        self, stratum: Stratum, names: list[str], stage: Stage
    ) -> dict[str, dict]:
        run(["git", "-C", str(self.tree), "checkout", "--quiet", "--force", "."])
        run(["git", "-C", str(self.tree), "clean", "-fdq"])
        chosen = [f"--re=^{escaped(name)}$" for name in names]
        command = [
            *("cargo", "mutants", "--in-place", "--baseline=skip"),
            *("--colors=never", "--no-times", "--build-timeout=900", f"--timeout={self.timeout}"),
            *("-p", stratum.package, *(f"--file={file}" for file in stratum.files)),
            *(f"--output={self.work}", *stage.arguments, *chosen),
        ]
        if stage.test_arguments:
            command += ["--", "--", *stage.test_arguments]
        # Its exit code says whether mutants were missed; what counts is in the file.
        subprocess.run(
            command, cwd=self.tree, env=self.environment, stdout=subprocess.DEVNULL, check=False
        )
        report = self.work / "mutants.out"
        found = {}
        for outcome in json.loads((report / "outcomes.json").read_text())["outcomes"]:
            name = outcome["scenario"]["Mutant"]["name"]
            found[name] = {
                "result": SUMMARIES[outcome["summary"]],
                "seconds": sum(phase["duration"] for phase in outcome["phase_results"]),
                "failed": failing_test(report / outcome["log_path"]),
            }
        return found


def failing_test(log: Path) -> str | None:
    for line in log.read_text(errors="replace").splitlines():
        # As nextest says it, then as the test programs do.
        found = re.match(r"\s+(?:FAIL|SIG\w+|TIMEOUT) \[.*?\]\s+(?:\(.*?\)\s+)?(.*)", line)
        found = found or re.match(r"---- (\S+) stdout ----", line)
        if found:
            return found.group(1)
    return None


def escaped(name: str) -> str:
    """For Rust's regular expressions, which know fewer escapes than Python's."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", name)


def run(command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, check=True, text=True, **options)


def share_of(stratum: Stratum, count: int) -> int:
    return round(stratum.share * count / sum(one.share for one in STRATA))


def sample(
    campaign: Campaign, stratum: Stratum, seed: int, wanted: int, batch: int
) -> tuple[int, list[str]]:
    """All mutants' number, and the names of those tested: the first in the seed's order, until `wanted` have run."""
    names = campaign.mutants(stratum)
    random.Random(f"{seed} {stratum.package}").shuffle(names)
    taken: list[str] = []
    print(f"\n{stratum.package}: {len(names)} mutants, {wanted} to test", flush=True)
    while True:
        ran = sum(campaign.results[name]["result"] != "unviable" for name in taken)
        more = names[len(taken) : len(taken) + min(batch, wanted - ran)]
        if not more:
            return len(names), taken
        campaign.test(stratum, more)
        taken += more


def report(campaign: Campaign, taken: dict[str, tuple[int, list[str]]]) -> None:
    columns = ("caught", "timeout", "missed", "unviable")
    print("\n| crate | mutants | tested | caught | timed out | missed | unviable | caught or timed out |")
    print("|---|---|---|---|---|---|---|---|")
    total = dict.fromkeys(("mutants", *columns), 0)
    for package, (number, names) in [*taken.items(), ("all", (0, []))]:
        if package == "all":
            counts = total
        else:
            results = [campaign.results[name]["result"] for name in names]
            counts = {"mutants": number, **{one: results.count(one) for one in columns}}
            total = {key: total[key] + counts[key] for key in total}
        noticed = counts["caught"] + counts["timeout"]
        tested = noticed + counts["missed"]
        share = f"{100 * noticed / tested:.1f}%" if tested else "-"
        numbers = [counts["mutants"], tested, *(counts[one] for one in columns)]
        print(f"| {package} | {' | '.join(map(str, numbers))} | {share} |")
    for kind in ("missed", "timeout"):
        print(f"\n{kind}:")
        for _, names in taken.values():
            for name in names:
                if campaign.results[name]["result"] == kind:
                    print(name)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--seed", type=int, default=17)
    arguments.add_argument("--count", type=int, default=300)
    arguments.add_argument("--only", help="the crate whose name contains this text")
    arguments.add_argument("--again", type=Path, help="a file with names of mutants, one per line")
    arguments.add_argument("--batch", type=int, default=15, help="mutants per start of cargo-mutants")
    arguments.add_argument("--timeout", type=int, default=120, help="seconds for the tests of one mutant")
    arguments.add_argument("--work", type=Path, default=ROOT / "target" / "mutants")
    given = arguments.parse_args()

    commit = run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], stdout=subprocess.PIPE).stdout.strip()
    given.work.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(given.work.resolve(), commit, given.timeout)
    campaign.clone()
    strata = [one for one in STRATA if given.only is None or given.only in one.package]
    began = time.monotonic()
    print(f"commit {commit[:10]}, seed {given.seed}")
    taken: dict[str, tuple[int, list[str]]] = {}
    for stratum in strata:
        if given.again:
            all_names = campaign.mutants(stratum)
            wanted = given.again.read_text().splitlines()
            names = [name for name in all_names if name in wanted]
            for start in range(0, len(names), given.batch):
                campaign.test(stratum, names[start : start + given.batch])
            taken[stratum.package] = (len(all_names), names)
        else:
            wanted_number = share_of(stratum, given.count)
            taken[stratum.package] = sample(
                campaign, stratum, given.seed, wanted_number, given.batch
            )
    report(campaign, taken)
    print(f"\n{time.monotonic() - began:.0f} s, commit {commit[:10]}, seed {given.seed}")


if __name__ == "__main__":
    sys.exit(main())
