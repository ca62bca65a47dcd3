"""A run on several machines, disturbed again and again: nothing may be lost, doubled or different.

`cargo xtask bench cluster` (`-- --quick` for a look, `-- --scaling` for the cost per rollout with 1 to 4 nodes). It makes
machines out of network namespaces (`cluster_machines.py`): a PostgreSQL, a controller, 4 nodes. The policy is a script. While
the run goes on, faults come at random moments: nodes, the controller and PostgreSQL are killed and started again, machines
are cut off for up to a minute, processes are paused, and the clock of one node jumps. Afterwards each result is compared with
that of an undisturbed run on one machine. The seed is printed; `--seed N` repeats the faults, not their exact moments.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from cluster_machines import FAKETIME, DatabaseAwayError, Host, Network, Postgres, Process, network
from tables import print_table

# Two model calls; some rows pass, some don't, some raise.
PROJECT = '''
import asyncio, json
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

async def ask(rollout, text):
    host, port = rollout.chat_completions_url.split("/")[2].split(":")
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\nauthorization: Bearer "
        + rollout.api_key.encode() + b"\\r\\ncontent-type: application/json\\r\\ncontent-length: "
        + str(len(body)).encode() + b"\\r\\nconnection: close\\r\\n\\r\\n" + body
    )
    reply = await reader.read()
    writer.close()
    assert b"200 OK" in reply[:40], reply[:200]
    return json.loads(reply[reply.index(b"\\r\\n\\r\\n") + 4:])["choices"][0]["message"]["content"]

class Twice(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        said = ctx.prompt[-1]["content"]
        first = await ask(rollout, said)
        second = await ask(rollout, said + " again")
        if first.endswith("7"):
            raise ValueError(f"no luck with {first}")
        return [*ctx.prompt, {"role": "assistant", "content": first + "/" + second}]

class Digits(Grader):
    async def grade(self, ctx):
        first, _, second = ctx.sample.messages[-1]["content"].partition("/")
        ctx.set_reward((1.0 if first == ctx.label else 0.0) - 0.125 * (int(first) % 4) if second == "yes" else 0.0)
'''
SCRIPT = """
[[reply]]
when.last_user = 'again$'
text = "yes"
delay_ms = {delay}

[[reply]]
when.last_user = 'say (?<word>\\d+)$'
text = "{{word}}"
delay_ms = {delay}
"""
IN_FLIGHT = 16
# How often each is chosen.
FAULTS = {
    "kill a node": 12,
    "kill the controller": 6,
    "kill PostgreSQL": 5,
    "cut a node off": 12,
    "cut the controller off": 4,
    "pause a node": 7,
    "move a node's clock": 4,
}


class Bench:
    """The machines, and what runs on them."""

    def __init__(self, arguments: argparse.Namespace, net: Network, folder: pathlib.Path) -> None:
        self.osmosis = str(pathlib.Path(arguments.osmosis).resolve())
        self.folder = folder
        self.net = net
        self.database = Postgres(net.add("db"), folder / "postgres")
        self.controller_host = net.add("ctl")
        self.node_hosts = [net.add(f"n{number}") for number in range(1, 5)]
        self.nodes: dict[Host, Process] = {}
        self.controller: Process | None = None
        self.clock = folder / "clock"
        self.clock.write_text("+0\n")

    def workspace(self, name: str, rollouts: int, delay: int) -> pathlib.Path:
        root = self.folder / name
        rows = ({"user_prompt": f"say {i}", "ground_truth": str(i)} for i in range(rollouts))
        config = '[experiment]\nrollout = "twice"\nentrypoint = "main.py"\ndataset = "d"\nmodel_path = "script:p.toml"\n'
        for path, text in {
            "data/d.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
            "rollouts/twice/main.py": PROJECT,
            "p.toml": SCRIPT.format(delay=delay),
            "c.toml": config,
        }.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return root

    def start_controller(self, root: pathlib.Path, resume: bool) -> None:
        begin = ["eval", "resume", "r"] if resume else ["eval", "submit", "c.toml", "--name", "r", "--yes"]
        command = [self.osmosis, *begin, "--nodes-only", "--python", sys.executable, "--workers", "1"]
        command += ["--store", self.database.url, "--progress", "none"]
        log = self.folder / "controller.log"
        self.controller = self.controller_host.start(command, log, {}, cwd=root)

    def start_node(self, host: Host, root: pathlib.Path) -> None:
        token = (root / ".osmosis/evals/r/join-token").read_text().strip()
        environment = {
            "OSMOSIS_STORE": f"postgres://{self.database.host.address}:{self.database.port}/bench",
            "OSMOSIS_JOIN": token,
            "XDG_CACHE_HOME": str(self.folder / f"cache-{host.number}"),
        }
        if host is self.node_hosts[-1]:
            environment |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_CACHE_DURATION": "1",
            }
        command = [self.osmosis, "node", "--python", sys.executable, "--workers", "1", "--max-in-flight", str(IN_FLIGHT)]
        log = self.folder / f"node-{host.number}.log"
        self.nodes[host] = host.start(command, log, environment, cwd=self.folder)

    def wait_for_token(self, root: pathlib.Path) -> None:
        deadline = time.monotonic() + 120
        while not (root / ".osmosis/evals/r/join-token").exists() or self.done() is None:
            if time.monotonic() > deadline or (self.controller and self.controller.code is not None):
                raise SystemExit((self.folder / "controller.log").read_text()[-2000:])
            time.sleep(0.1)

    def done(self) -> int | None:
        """Rollouts with a result; `None` while nobody can say."""
        try:
            return int(self.database.sql("SELECT count(*) FROM osmosis.rollouts WHERE state = 'done'"))
        except DatabaseAwayError:
            return None

    def remove_run(self, root: pathlib.Path) -> None:
        store = f"postgres://postgres@/bench?host={self.database.folder}"
        command = [self.osmosis, "run", "rm", "r", "--yes", "--store", store]
        subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def undisturbed(self, root: pathlib.Path) -> float:
        """The same on one machine, in SQLite."""
        began = time.monotonic()
        command = [self.osmosis, "eval", "submit", "c.toml", "--name", "r", "--yes", "--python", sys.executable]
        command += ["--workers", "2", "--max-in-flight", "64", "--progress", "none"]
        log = self.folder / "undisturbed.log"
        process = self.controller_host.start(command, log, {}, cwd=root)
        if process.popen.wait() != 0:
            raise SystemExit(log.read_text()[-2000:])
        return time.monotonic() - began


class Campaign:
    """A run, and what happens to it."""

    def __init__(self, bench: Bench, root: pathlib.Path, rollouts: int, faults: int, seed: int) -> None:
        self.bench = bench
        self.root = root
        self.rollouts = rollouts
        self.random = random.Random(seed)
        kinds = list(FAULTS)
        # Each kind is among them, as often as it should be.
        exact = [kind for kind in kinds for _ in range(max(1, FAULTS[kind] * faults // sum(FAULTS.values())))]
        extra = self.random.choices(kinds, [FAULTS[kind] for kind in kinds], k=max(0, faults - len(exact)))
        self.faults = exact + extra
        self.random.shuffle(self.faults)
        del self.faults[faults:]
        self.happened: collections.Counter[str] = collections.Counter()
        # What is to be done later: when, what it is, what to call.
        self.later: list[tuple[float, str, object]] = []
        self.resumes = 0
        self.node_starts = 0
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        done = self.bench.done()
        shown = "?" if done is None else f"{done}"
        print(f"{time.monotonic() - self.began:7.1f} s {shown:>6} done: {text}", file=sys.stderr, flush=True)

    def run(self) -> float:
        bench = self.bench
        bench.start_controller(self.root, resume=False)
        bench.wait_for_token(self.root)
        for host in bench.node_hosts:
            bench.start_node(host, self.root)
        spacing = self.rollouts / (len(self.faults) + 2)
        next_fault = 0
        while True:
            time.sleep(0.25)
            self.do_what_is_due()
            done = bench.done()
            if done is not None and next_fault < len(self.faults) and done >= spacing * (next_fault + 0.5):
                self.disturb(self.faults[next_fault])
                next_fault += 1
                continue
            self.keep_running()
            if bench.controller is not None and bench.controller.code == 0:
                break
        for at, _, action in sorted(self.later, key=lambda each: each[0]):
            del at
            action()  # type: ignore[operator]
        if next_fault < len(self.faults):
            raise SystemExit(f"the run was over after {next_fault} of {len(self.faults)} faults")
        return time.monotonic() - self.began

    def keep_running(self) -> None:
        """As Slurm, Kubernetes or Ray would: what has ended is started again."""
        bench = self.bench
        waiting = {what for _, what, _ in self.later}
        controller = bench.controller
        if controller is not None and controller.code not in (None, 0) and "controller" not in waiting:
            self.say(f"the controller ended with {controller.code}, and is resumed")
            self.after(1.0, "controller", self.resume)
        over = bench.done() == self.rollouts
        for host, process in bench.nodes.items():
            if process.code is not None and f"node {host.number}" not in waiting and not over:
                self.after(self.random.uniform(0, 3), f"node {host.number}", lambda host=host: self.start_node(host))

    def resume(self) -> None:
        self.resumes += 1
        self.bench.start_controller(self.root, resume=True)

    def start_node(self, host: Host) -> None:
        self.node_starts += 1
        self.bench.start_node(host, self.root)

    def after(self, seconds: float, what: str, action: object) -> None:
        self.later.append((time.monotonic() + seconds, what, action))

    def do_what_is_due(self) -> None:
        now = time.monotonic()
        due = [each for each in self.later if each[0] <= now]
        self.later = [each for each in self.later if each[0] > now]
        for _, _, action in due:
            action()  # type: ignore[operator]

    def disturb(self, fault: str) -> None:
        bench = self.bench
        host = self.random.choice(bench.node_hosts)
        seconds = self.random.uniform(1, 60)
        waiting = {what for _, what, _ in self.later}
        self.happened[fault] += 1
        detail = ""
        if fault == "kill a node":
            bench.nodes[host].kill()
            detail = f"{host.number}"
        elif fault == "kill the controller" and bench.controller is not None:
            bench.controller.kill()
        elif fault == "kill PostgreSQL":
            bench.database.crash()
            # While it is away nobody can say how far the run is.
            seconds = self.random.uniform(0.5, 10)
            self.say(f"{fault} for {seconds:.0f} s")
            time.sleep(seconds)
            bench.database.start_again()
            return
        elif fault in ("cut a node off", "cut the controller off"):
            host = host if fault == "cut a node off" else bench.controller_host
            if f"cut {host.number}" not in waiting:
                silently = self.random.random() < 0.7
                host.cut(silently)
                self.after(seconds, f"cut {host.number}", host.mend)
                detail = f"{host.number} for {seconds:.0f} s{', silently' if silently else ''}"
        elif fault == "pause a node":
            process = bench.nodes[host]
            process.signal(signal.SIGSTOP)
            self.after(seconds, f"pause {host.number}", lambda: process.signal(signal.SIGCONT))
            detail = f"{host.number} for {seconds:.0f} s"
        else:
            moved = self.random.choice(["-7200", "+3600", "+864000", "-30", "+90", "+0"])
            bench.clock.write_text(f"{moved}\n")
            detail = f"by {moved} s"
        self.say(f"{fault} {detail}")


def results(root: pathlib.Path) -> dict[str, list[tuple[object, ...]]]:
    """What each rollout came to, without what may differ: times and attempts."""
    found: dict[str, list[tuple[object, ...]]] = collections.defaultdict(list)
    for line in (root / ".osmosis/evals/r/index.jsonl").read_text().splitlines():
        rollout = json.loads(line)
        what = (rollout["outcome"], rollout["reward"], rollout["error"], json.dumps(rollout["samples"]), rollout["model_calls"])
        found[rollout["rollout_id"]].append(what)
    return found


def campaign(bench: Bench, rollouts: int, faults: int, seed: int, delay: int) -> bool:
    print(f"seed {seed}: {rollouts} rollouts, {faults} faults")
    plain = bench.workspace("undisturbed", rollouts, 0)
    took_plain = bench.undisturbed(plain)
    expected = results(plain)
    root = bench.workspace("disturbed", rollouts, delay)
    disturbed = Campaign(bench, root, rollouts, faults, seed)
    took = disturbed.run()
    found = results(root)
    lost = [name for name in expected if name not in found or found[name][0][0] is None]
    doubled = [name for name, all_of_it in found.items() if len(all_of_it) > 1]
    different = [name for name in expected if name in found and found[name] != expected[name]]
    sql = bench.database.sql
    samples = int(sql("SELECT count(*) - count(DISTINCT rollout_id) FROM osmosis.samples"))
    without_calls = int(
        sql(
            "SELECT count(*) FROM osmosis.rollouts AS r WHERE NOT EXISTS (SELECT FROM osmosis.calls AS c "
            "WHERE c.run_id = r.run_id AND c.rollout_id = r.rollout_id AND c.attempt = r.attempt)"
        )
    )
    again = int(sql("SELECT count(*) FROM osmosis.rollouts WHERE attempt > 1"))
    kinds = collections.Counter(str(all_of_it[0][0]) for all_of_it in expected.values())
    print_table(["fault", "times"], [*disturbed.happened.items(), ["all", sum(disturbed.happened.values())]])
    print_table(
        ["", "undisturbed", "disturbed"],
        [
            ["seconds", f"{took_plain:.0f}", f"{took:.0f}"],
            ["rollouts", len(expected), len(found)],
            ["outcomes", dict(kinds), dict(collections.Counter(str(v[0][0]) for v in found.values()))],
            ["resumes of the controller", 0, disturbed.resumes],
            ["starts of nodes", 0, disturbed.node_starts + 4],
            ["claimed more than once", 0, again],
            ["lost", 0, len(lost)],
            ["doubled", 0, len(doubled) + samples],
            ["results without their calls", 0, without_calls],
            ["different from the undisturbed run", 0, len(different)],
        ],
    )
    for name in different[:5]:
        print(f"{name}: {found[name]} instead of {expected[name]}")
    return not (lost or doubled or different or samples or without_calls)


def scaling(bench: Bench, rollouts: int, rounds: int) -> None:
    """Processor time per rollout, of everything but starting and ending."""
    costs: dict[int, list[float]] = collections.defaultdict(list)
    rates: dict[int, list[float]] = collections.defaultdict(list)
    for number in range(rounds):
        counts = [1, 2, 3, 4] if number % 2 == 0 else [4, 3, 2, 1]
        for count in counts:
            root = bench.workspace(f"scaling-{number}-{count}", rollouts, 20)
            bench.start_controller(root, resume=False)
            bench.wait_for_token(root)
            for host in bench.node_hosts[:count]:
                bench.start_node(host, root)
            cost, rate = between(bench, rollouts, count)
            costs[count].append(cost)
            rates[count].append(rate)
            assert bench.controller is not None
            if bench.controller.popen.wait() != 0:
                raise SystemExit((bench.folder / "controller.log").read_text()[-2000:])
            for process in bench.nodes.values():
                process.popen.wait()
            bench.nodes.clear()
            bench.remove_run(root)
    one = statistics.median(costs[1])
    rows = []
    for count, found in sorted(costs.items()):
        cost = statistics.median(found)
        rows.append([count, f"{1000 * cost:.2f}", f"{cost / one:.3f}", f"{statistics.median(rates[count]):.0f}"])
    print_table(["nodes", "ms of processor per rollout, PostgreSQL included", "to 1 node", "rollouts/s"], rows)
    for count, found in sorted(costs.items()):
        print(f"{count} nodes: {', '.join(f'{1000 * cost:.2f}' for cost in found)}")
    print(f"{rollouts} rollouts of two model calls, medians of {rounds} rounds, {IN_FLIGHT} at once on each node")


def between(bench: Bench, rollouts: int, nodes: int) -> tuple[float, float]:
    """Processor seconds per rollout and rollouts per second, from when every node works to shortly before the end."""

    def reach(condition: str, count: int) -> tuple[float, float, int]:
        while int(bench.database.sql(f"SELECT coalesce(({condition}), 0)")) < count:
            if bench.controller is not None and bench.controller.code not in (None, 0):
                raise SystemExit((bench.folder / "controller.log").read_text()[-2000:])
            # Counting costs the server something, too.
            time.sleep(0.25)
        return bench.net.cpu_seconds(), time.monotonic(), bench.done() or 0

    least = f"SELECT min(done) FROM osmosis.members WHERE kind = 'node' HAVING count(*) = {nodes}"
    used_first, at_first, done_first = reach(least, 100)
    used_last, at_last, done_last = reach("SELECT sum(done) FROM osmosis.members", rollouts * 9 // 10)
    many = done_last - done_first
    return (used_last - used_first) / many, many / (at_last - at_first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--rollouts", type=int)
    parser.add_argument("--faults", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--delay", type=int, help="milliseconds that each model call takes")
    parser.add_argument("--quick", action="store_true", help="600 rollouts and 7 faults")
    parser.add_argument("--scaling", action="store_true", help="cost per rollout with 1 to 4 nodes, instead of faults")
    parser.add_argument("--rounds", type=int, default=3, help="with --scaling")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs")
    parser.add_argument("--markdown", action="store_true", help="what it prints is markdown in any case")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rollouts = arguments.rollouts or (600 if arguments.quick else 6000 if arguments.scaling else 20_000)
    faults = arguments.faults or (7 if arguments.quick else 50)
    delay = arguments.delay or (2000 if arguments.quick else 400)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="osmosis-cluster-"))
    # PostgreSQL is another user.
    folder.chmod(0o755)
    try:
        with network() as net:
            bench = Bench(arguments, net, folder)
            try:
                if arguments.scaling:
                    scaling(bench, rollouts, arguments.rounds)
                    ok = True
                else:
                    ok = campaign(bench, rollouts, faults, arguments.seed, delay)
            finally:
                bench.database.stop()
    finally:
        if arguments.keep:
            print(f"logs are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
