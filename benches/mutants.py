"""Measures the tests: a seeded sample of the mutants that `cargo-mutants` makes, and which of them no test notices.

    cargo install cargo-mutants --locked
    python3 benches/mutants.py --seed 17 --count 300

Works on a clone of the last commit in `target/mutants`, so uncommitted changes take no part. Each crate's mutants are put
into an order given by the seed, and taken from the front until the crate's share has run; mutants that don't compile are
counted apart and replaced.

A compilation per mutant costs more than its tests. So the mutants of a crate are built into one program: a mutated
function has all its variants in it, and the variable `MUTANT` chooses one. What can't be built that way (constants, and
whatever the compiler rejects) is built alone; if that fails too, it is not viable. A mutant that the quick tests miss is
run again with all tests of its crate. `--plain` builds every mutant alone; `--quick` leaves out the tests that are not
quick; `--again FILE` runs the mutants named in FILE instead of a sample (after mending the tests).
"""

import argparse
import collections
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STORE = "crates/osmosis-store-sqlite/src"
SWITCH = """
#[doc(hidden)]
#[allow(warnings, clippy::all)]
pub(crate) fn mutant_switch() -> u32 {
    static MUTANT: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *MUTANT.get_or_init(|| std::env::var("MUTANT").map_or(0, |text| text.parse().unwrap_or(0)))
}
"""


@dataclass(frozen=True)
class Stratum:
    package: str
    # Of 300 mutants. Crates that build quickly get most.
    share: int
    files: tuple[str, ...] = ()
    # Tests whose names contain one of these are not among the quick ones.
    slow: tuple[str, ...] = ()
    # Whether integration tests are among the quick ones.
    integration: bool = False


STRATA = [
    Stratum(
        "osmosis-core",
        135,
        slow=("simulation_tests", "properties", "run_numbers::tests::r", "order_of_arrival"),
    ),
    Stratum("osmosis-tokens", 75),
    Stratum(
        "osmosis-store-sqlite",
        45,
        tuple(f"{STORE}/{file}" for file in ("queue.rs", "lock.rs", "rollouts.rs")),
        slow=("the_file_is_what_was_appended", "tiny_batches", "killed", "crash"),
        integration=True,
    ),
    Stratum(
        "osmosis-train",
        45,
        slow=("raises_the_reward", "reward_rises", "killed_at_any_moment"),
        integration=True,
    ),
]

Mutant = dict[str, Any]


class Campaign:
    def __init__(self, work: Path, commit: str, given: argparse.Namespace) -> None:
        self.work = work
        self.tree = work / "tree"
        self.commit = commit
        self.timeout: int = given.timeout
        self.plain: bool = given.plain
        self.quick: bool = given.quick
        self.results: dict[str, dict[str, Any]] = {}
        self.environment = {
            **os.environ,
            # Tests draw the same cases for every mutant, and leave nothing behind for the next.
            "PROPTEST_RNG_SEED": "17",
            "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
            "PROPTEST_MAX_SHRINK_ITERS": "0",
            "INSTA_UPDATE": "no",
            "INSTA_FORCE_PASS": "0",
            "INSTA_WORKSPACE_ROOT": str(self.tree),
            "CARGO_TARGET_DIR": str(work / "build"),
        }

    def clone(self) -> None:
        if not self.tree.exists():
            run(["git", "clone", "--quiet", "--shared", str(ROOT), str(self.tree)])
        run(["git", "-C", str(self.tree), "fetch", "--quiet", str(ROOT), self.commit])
        self.restore()

    def restore(self) -> None:
        git = ["git", "-C", str(self.tree)]
        run([*git, "checkout", "--quiet", "--force", "--detach", self.commit])
        run([*git, "clean", "-fdq"])

    def mutants(self, stratum: Stratum) -> dict[str, Mutant]:
        files = [f"--file={file}" for file in stratum.files]
        command = ["cargo", "mutants", "--list", "--json", "-p", stratum.package, *files]
        done = run(command, cwd=self.tree, env=self.environment, stdout=subprocess.PIPE)
        return {mutant["name"]: mutant for mutant in json.loads(done.stdout)}

    def test(self, stratum: Stratum, mutants: list[Mutant]) -> None:
        self.restore()
        crate = Crate(self, stratum)
        left = mutants if self.plain else crate.test_together(mutants)
        self.restore()
        for mutant in left:
            crate.test_alone(mutant)

    def keep(self, name: str, result: str, seconds: float, how: str) -> None:
        self.results[name] = {"result": result, "seconds": seconds, "how": how}
        with (self.work / "results.jsonl").open("a") as file:
            line = {"commit": self.commit, "name": name, **self.results[name]}
            file.write(json.dumps(line) + "\n")
        print(f"{result:>8}  {seconds:5.1f} s  {name}  ({how})", flush=True)


class Crate:
    """Builds mutants of one crate and runs its tests on them."""

    def __init__(self, campaign: Campaign, stratum: Stratum) -> None:
        self.campaign = campaign
        self.tree = campaign.tree
        self.stratum = stratum
        self.folder = campaign.tree / "crates" / stratum.package
        self.originals: dict[str, str] = {}
        self.limits: dict[str, float] = {}

    def test_together(self, mutants: list[Mutant]) -> list[Mutant]:
        """All in one build. Those that could not be built are handed back."""
        numbered = {number: mutant for number, mutant in enumerate(mutants, 1)}
        library = self.folder / "src" / "lib.rs"
        usable = {
            number: mutant
            for number, mutant in numbered.items()
            if mutant["function"]
            and self.tree / mutant["file"] != library
            and not any(has_within(mutant, other) for other in mutants)
        }
        library.write_text(library.read_text() + SWITCH)
        while True:
            self.write(usable)
            messages, built = self.cargo("--lib")
            if built:
                break
            refused = self.refused(messages)
            if not refused:
                raise SystemExit("the build fails, and not because of a mutant")
            usable = {n: mutant for n, mutant in usable.items() if n not in refused}
        messages, built = self.cargo()
        missed = usable
        for label, commands in self.stages(messages):
            result, seconds = self.run(0, commands, 1800)
            if result != "missed":
                raise SystemExit(f"{label}: they fail without any mutant")
            print(f"without a mutant: {label} take {seconds:.1f} s", flush=True)
            # On a busy machine, tests that are only slow must not count as a mutant that hangs.
            limit = self.limits[label] = max(self.campaign.timeout, 5 * seconds)
            left = {}
            for number, mutant in missed.items():
                result, seconds = self.run(number, commands, limit)
                if result == "missed":
                    left[number] = mutant
                    print(f"          {seconds:5.1f} s  {mutant['name']}  ({label})", flush=True)
                else:
                    self.campaign.keep(mutant["name"], result, seconds, label)
            missed = left
        for mutant in missed.values():
            self.campaign.keep(mutant["name"], "missed", seconds, label)
        return [mutant for number, mutant in numbered.items() if number not in usable]

    def test_alone(self, mutant: Mutant) -> None:
        """In a build of its own."""
        path = self.tree / mutant["file"]
        original = path.read_text()
        path.write_text(with_one(original, mutant))
        began = time.monotonic()
        _, viable = self.cargo("--lib")
        if viable:
            messages, _ = self.cargo()
            for label, commands in self.stages(messages):
                limit = self.limits.get(label, 5 * self.campaign.timeout)
                result, seconds = self.run(0, commands, limit)
                if result != "missed":
                    break
            self.campaign.keep(mutant["name"], result, seconds, f"{label}, alone")
        else:
            seconds = time.monotonic() - began
            self.campaign.keep(mutant["name"], "unviable", seconds, "alone")
        path.write_text(original)

    def stages(self, messages: list[dict[str, Any]]) -> list[tuple[str, list[list[str]]]]:
        """What is run on a mutant, until it is noticed: a name and commands."""
        kinds = [["lib"], ["test"]] if self.stratum.integration else [["lib"]]
        programs = [
            message["executable"]
            for message in messages
            if message.get("executable") and message["target"]["kind"] in kinds
        ]
        skipped = [argument for text in self.stratum.slow for argument in ("--skip", text)]
        stages = [("quick tests", [[program, "--quiet", *skipped] for program in programs])]
        if not self.campaign.quick:
            stages.append(("all tests", [["cargo", "nextest", "run", "-p", self.stratum.package]]))
        return stages

    def run(self, number: int, commands: list[list[str]], timeout: float) -> tuple[str, float]:
        """Each of the commands, until one of them notices the mutant."""
        began = time.monotonic()
        for command in commands:
            environment = {**self.campaign.environment, "MUTANT": str(number)}
            if command[0] != "cargo":
                # Cargo sets it itself; if it came from outside, build scripts that read it would run again.
                environment["CARGO_MANIFEST_DIR"] = str(self.folder)
            with subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            ) as process:
                try:
                    code = process.wait(timeout)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    return "timeout", time.monotonic() - began
            if code != 0:
                return "caught", time.monotonic() - began
        return "missed", time.monotonic() - began

    def cargo(self, *arguments: str) -> tuple[list[dict[str, Any]], bool]:
        command = ["cargo", "test", "--no-run", "--message-format=json", "--quiet"]
        done = subprocess.run(
            [*command, "-p", self.stratum.package, *arguments],
            cwd=self.tree,
            env=self.campaign.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        return [json.loads(line) for line in done.stdout.splitlines()], done.returncode == 0

    def write(self, usable: dict[int, Mutant]) -> None:
        by_file: dict[str, dict[int, Mutant]] = collections.defaultdict(dict)
        for number, mutant in usable.items():
            by_file[mutant["file"]][number] = mutant
        for file in {*by_file, *self.originals}:
            path = self.tree / file
            original = self.originals.setdefault(file, path.read_text())
            path.write_text(with_variants(original, by_file[file]))

    def refused(self, messages: list[dict[str, Any]]) -> set[int]:
        """The mutants that the errors of the compiler point to."""
        found: set[int] = set()
        for message in messages:
            if message["reason"] != "compiler-message" or message["message"]["level"] != "error":
                continue
            spans = message["message"]["spans"]
            for span in sorted(spans, key=lambda span: not span["is_primary"]):
                if span["file_name"] in self.originals:
                    lines = (self.tree / span["file_name"]).read_text().splitlines()
                    numbers = variants_at(lines[: span["line_start"]])
                    found |= numbers
                    if numbers:
                        break
        return found


def places(text: str) -> Callable[[dict[str, Any]], tuple[int, int]]:
    """Turns spans of lines and columns into those of the text."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def offsets(span: dict[str, Any]) -> tuple[int, int]:
        start, end = (
            starts[span[at]["line"] - 1] + span[at]["column"] - 1 for at in ("start", "end")
        )
        return start, end

    return offsets


def with_one(text: str, mutant: Mutant) -> str:
    """The source with one mutant in place of the original."""
    first, last = places(text)(mutant["span"])
    replacement = mutant["replacement"]
    if mutant["genre"] == "FnValue":
        function = mutant["function"]
        start, last = places(text)(function["span"])
        first = body_of(text, start, function["function_name"].rsplit("::", 1)[-1])
        replacement = f"{{ {replacement} }}"
    return f"{text[:first]} {replacement} {text[last:]}"


def with_variants(text: str, mutants: dict[int, Mutant]) -> str:
    """The source with a `match` in each mutated function, which has its original body and all its variants."""
    offsets = places(text)
    functions: dict[tuple[int, int, str], list[int]] = collections.defaultdict(list)
    for number, mutant in mutants.items():
        function = mutant["function"]
        start, end = offsets(function["span"])
        functions[start, end, function["function_name"]].append(number)
    # From the end, so that the places before stay what they are.
    for (start, end, name), numbers in sorted(functions.items(), reverse=True):
        opening = body_of(text, start, name.rsplit("::", 1)[-1])
        arms = []
        for number in numbers:
            mutant = mutants[number]
            first, last = offsets(mutant["span"])
            if mutant["genre"] == "FnValue":
                body = f"{{ {mutant['replacement']} }}"
            else:
                body = f"{text[opening:first]} {mutant['replacement']} {text[last:end]}"
            arms.append(f"{number} => //VARIANT {number}\n{body}\n//END\n")
        arms.append(f"_ => //VARIANT\n{text[opening:end]}\n//END\n")
        every = " ".join(map(str, numbers))
        head = f"{{ match crate::mutant_switch() {{ //VARIANT {every}\n"
        text = text[:opening] + head + "".join(arms) + "} }" + text[end:]
    return text


def has_within(mutant: Mutant, other: Mutant) -> bool:
    """Whether the function of the one has that of the other inside."""
    if mutant["file"] != other["file"] or not other["function"]:
        return False
    (outer_start, outer_end), (inner_start, inner_end) = (
        [(place["line"], place["column"]) for place in (span["start"], span["end"])]
        for span in (one["function"]["span"] for one in (mutant, other))
    )
    same = (outer_start, outer_end) == (inner_start, inner_end)
    return not same and outer_start <= inner_start and inner_end <= outer_end


def body_of(text: str, start: int, name: str) -> int:
    """Where the body of a function begins whose documentation or signature begins at `start`."""
    for found in re.finditer(rf"\bfn\s+{re.escape(name)}\b", text[start:]):
        line = text[text.rfind("\n", 0, start + found.start()) + 1 : start + found.start()]
        if "//" in line:
            continue
        depth, place = 0, start + found.end()
        while text[place] != "{" or depth:
            depth += (text[place] in "([") - (text[place] in ")]")
            place += 1
        return place
    raise SystemExit(f"there is no function `{name}` where one should be")


def variants_at(lines: Iterable[str]) -> set[int]:
    """The variants whose code the last of these lines is in; all of a function where it is their `match`."""
    for line in reversed(list(lines)):
        if line.startswith("//END"):
            return set()
        found = re.search(r"//VARIANT([ \d]*)$", line)
        if found:
            return {int(number) for number in found.group(1).split()}
    return set()


def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=True, text=True, **options)


def sample(campaign: Campaign, stratum: Stratum, seed: int, wanted: int) -> tuple[int, list[str]]:
    """The number of all mutants, and the names of the first in the seed's order, until `wanted` have run."""
    mutants = campaign.mutants(stratum)
    names = sorted(mutants)
    random.Random(f"{seed} {stratum.package}").shuffle(names)
    taken: list[str] = []
    print(f"\n{stratum.package}: {len(names)} mutants, {wanted} to run", flush=True)
    while True:
        ran = sum(campaign.results[name]["result"] != "unviable" for name in taken)
        more = names[len(taken) : len(taken) + wanted - ran]
        if not more:
            return len(names), taken
        campaign.test(stratum, [mutants[name] for name in more])
        taken += more


def report(campaign: Campaign, taken: dict[str, tuple[int, list[str]]]) -> None:
    columns = ("caught", "timeout", "missed", "unviable")
    print("\n| crate | mutants | run | caught | timed out | missed | unviable | noticed |")
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
        ran = noticed + counts["missed"]
        share = f"{100 * noticed / ran:.1f}%" if ran else "-"
        numbers = [counts["mutants"], ran, *(counts[one] for one in columns)]
        print(f"| {package} | {' | '.join(map(str, numbers))} | {share} |")
    for kind in ("missed", "timeout"):
        print(f"\n{kind}:")
        for _, names in taken.values():
            for name in names:
                if campaign.results[name]["result"] == kind:
                    print(name)


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--seed", type=int, default=17)
    arguments.add_argument("--count", type=int, default=300)
    arguments.add_argument("--commit", default="HEAD", help="what to test")
    arguments.add_argument("--only", help="the crate whose name contains this text")
    arguments.add_argument("--again", type=Path, help="a file with names of mutants, one per line")
    arguments.add_argument("--plain", action="store_true", help="one compilation per mutant")
    arguments.add_argument("--quick", action="store_true", help="the quick tests only")
    arguments.add_argument("--timeout", type=int, default=120, help="seconds per mutant, at least")
    arguments.add_argument("--work", type=Path, default=ROOT / "target" / "mutants")
    given = arguments.parse_args()

    name = ["git", "-C", str(ROOT), "rev-parse", f"{given.commit}^{{commit}}"]
    head = run(name, stdout=subprocess.PIPE)
    commit = head.stdout.strip()
    given.work.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(given.work.resolve(), commit, given)
    campaign.clone()
    began = time.monotonic()
    print(f"commit {commit[:10]}, seed {given.seed}")
    shares = sum(stratum.share for stratum in STRATA)
    taken: dict[str, tuple[int, list[str]]] = {}
    for stratum in STRATA:
        if given.only and given.only not in stratum.package:
            continue
        if given.again:
            mutants = campaign.mutants(stratum)
            names = [name for name in given.again.read_text().splitlines() if name in mutants]
            if names:
                campaign.test(stratum, [mutants[name] for name in names])
            taken[stratum.package] = (len(mutants), names)
        else:
            wanted = round(stratum.share * given.count / shares)
            taken[stratum.package] = sample(campaign, stratum, given.seed, wanted)
    report(campaign, taken)
    print(f"\n{time.monotonic() - began:.0f} s, commit {commit[:10]}, seed {given.seed}")


if __name__ == "__main__":
    main()
