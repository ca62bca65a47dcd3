"""Runs on a real Ray cluster of two machines: a training, then an evaluation during which one
machine dies. `cargo xtask ci` runs this.

    python tests/ray_cluster.py --osmosis PROGRAM

The machines are network namespaces with addresses of their own (`benches/cluster_machines.py`), or,
where those can't be made, loopback addresses. Everything that is started ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benches"))

from cluster_machines import Host, Loopback, Network, Postgres, Process

ROLLOUTS = 150
PROJECT = """
import asyncio
from osmosis_ai.rollout import AgentWorkflow, Grader

class Slow(AgentWorkflow):
    async def run(self, ctx):
        await asyncio.sleep(0.5)
        return [*ctx.prompt, {"role": "assistant", "content": ctx.prompt[-1]["content"][4:]}]

class Exact(Grader):
    async def grade(self, ctx):
        said = ctx.sample.messages[-1]["content"]
        ctx.set_reward(1.0 if said == ctx.label and int(said) % 3 else 0.0)
"""
CONFIG = """
[experiment]
rollout = "slow"
entrypoint = "main.py"
dataset = "d"
model_path = "script:p.toml"
"""

# Asks the model, which samples at the controller. Needs no packages of its own.
LEARNER = """
import asyncio, json
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class Short(AgentWorkflow):
    async def run(self, ctx):
        rollout = get_rollout_context()
        # Long enough for both machines to get some.
        await asyncio.sleep(0.3)
        host, port = rollout.chat_completions_url.split("/")[2].split(":")
        body = json.dumps({"model": "m", "messages": ctx.prompt, "max_tokens": 12}).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\nauthorization: Bearer "
            + rollout.api_key.encode()
            + b"\\r\\ncontent-type: application/json\\r\\ncontent-length: "
            + str(len(body)).encode() + b"\\r\\nconnection: close\\r\\n\\r\\n" + body
        )
        reply = await reader.read()
        writer.close()
        assert b"200 OK" in reply[:40], reply[:200]
        message = json.loads(reply[reply.index(b"\\r\\n\\r\\n") + 4:])["choices"][0]["message"]
        return [*ctx.prompt, message]

class Checksum(Grader):
    async def grade(self, ctx):
        ctx.set_reward(sum(map(ord, str(ctx.sample.messages[-1]["content"]))) % 5 / 4)
"""
STEPS = 3
TRAINING = f"""
[experiment]
rollout = "short"
entrypoint = "main.py"
dataset = "d"
model_path = "builtin/tiny"

[training]
steps = {STEPS}
rollout_batch_size = 3
n_samples_per_prompt = 4
lr = 1e-3
seed = 5

[checkpoints]
checkpoint_save_freq = {STEPS}
"""


def until(what: str, condition: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"after {seconds:g} s still not: {what}")
        time.sleep(0.1)
    return found


class Cluster:
    """A head and a worker of Ray, a PostgreSQL, and a workspace."""

    def __init__(self, net: Network | Loopback, folder: Path, osmosis: str) -> None:
        self.net = net
        self.folder = folder
        self.osmosis = osmosis
        self.database = Postgres(net.add("db"), folder / "postgres")
        self.head, self.worker = net.add("head"), net.add("worker")
        self.port = free_port(self.head)
        # What Ray and its workers see: where the program is, and a Python for the project.
        self.environment = {
            "OSMOSIS_BIN": osmosis,
            "VIRTUAL_ENV": sys.prefix,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": f"{self.head.address}:{self.port}",
            # Paths of sockets have a limit.
            "RAY_TMPDIR": "/tmp",
        }

    def start_ray(self, host: Host, *arguments: str) -> Process:
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *(f"--node-ip-address={host.address}", "--num-cpus=1", "--disable-usage-stats"),
            # One folder for each: they share a file system, unlike real machines.
            *arguments,
        ]
        environment = {k: v for k, v in self.environment.items() if k != "RAY_ADDRESS"}
        return host.start(command, self.folder / f"ray-{host.number}.log", environment)

    def start_head(self) -> Process:
        temporary = f"/tmp/osm-ray-{os.getpid()}-h"
        return self.start_ray(
            self.head,
            *("--head", f"--port={self.port}", f"--temp-dir={temporary}"),
            *("--include-dashboard=false", "--object-store-memory=80000000"),
        )

    def start_worker(self) -> Process:
        address = f"--address={self.head.address}:{self.port}"
        temporary = f"/tmp/osm-ray-{os.getpid()}-w"
        return self.start_ray(
            self.worker, address, f"--temp-dir={temporary}", "--object-store-memory=80000000"
        )

    def workspace(self, name: str = "workspace") -> Path:
        root = self.folder / name
        rows = ({"user_prompt": f"say {i}", "ground_truth": str(i)} for i in range(ROLLOUTS))
        for path, text in {
            "data/d.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
            "rollouts/slow/main.py": PROJECT,
            "p.toml": "[[reply]]\ntext = 'x'\n",
            "c.toml": CONFIG,
            "rollouts/short/main.py": LEARNER,
            "t.toml": TRAINING,
        }.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return root

    def submit(self, root: Path) -> Process:
        command = [self.osmosis, "eval", "submit", "c.toml", "--name", "r", "--yes"]
        command += ["--progress", "none"]
        return self._on_ray(command, "controller", root)

    def train(self, root: Path) -> Process:
        return self._on_ray(self._training(), "trainer", root)

    def train_here(self, root: Path) -> Process:
        """The same without a cluster and without a database."""
        command = [*self._training(), "--python", sys.executable]
        return self.head.start(command, self.folder / "alone.log", self.environment, cwd=root)

    def _training(self) -> list[str]:
        return [self.osmosis, "train", "submit", "t.toml", "--name", "t"]

    def _on_ray(self, command: list[str], log: str, root: Path) -> Process:
        command += ["--store", self.database.url, "--max-in-flight", "4"]
        command += ["--cluster", "ray", "--ray-python", sys.executable, "--workers", "1"]
        return self.head.start(command, self.folder / f"{log}.log", self.environment, cwd=root)

    def owners(self) -> int:
        """Nodes that hold or have finished rollouts."""
        return int(self._of_evaluation("count(DISTINCT member_id)", "attempt > 0"))

    def nodes(self) -> list[int]:
        """Processes that are an `osmosis node`."""
        found = []
        for pid in self.net.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if len(words) > 1 and words[0].endswith(b"osmosis") and words[1] == b"node":
                    found.append(pid)
        return found

    def count(self, condition: str) -> int:
        return int(self._of_evaluation("count(*)", condition))

    def _of_evaluation(self, what: str, condition: str) -> str:
        runs = "SELECT run_id FROM osmosis.runs WHERE kind = 'evaluation'"
        return self.database.sql(
            f"SELECT {what} FROM osmosis.rollouts WHERE run_id IN ({runs}) AND {condition}"
        )

    def log(self, name: str = "controller") -> str:
        return (self.folder / f"{name}.log").read_text()

    def ended(self, process: Process, log: str, seconds: float = 120) -> None:
        until(f"{log} ends", lambda: process.code is not None, seconds)
        if process.code != 0:
            raise SystemExit(f"{log} ended with {process.code}:\n{self.log(log)}")


def free_port(host: Host) -> int:
    # Machines of their own have all ports to themselves.
    if host.namespace:
        return 6379
    with socket.socket() as probe:
        probe.bind((host.address, 0))
        return int(probe.getsockname()[1])


def weights(root: Path) -> bytes:
    checkpoint = root / f".osmosis/training/t/checkpoints/step_{STEPS}"
    return (checkpoint / "model.safetensors").read_bytes()


def check_training(cluster: Cluster, root: Path, say: Callable[[str], None]) -> None:
    """Rollouts on the machines, the learner at the controller: the weights are those of one."""
    alone = cluster.workspace("alone")
    here = cluster.train_here(alone)
    trainer = cluster.train(root)
    cluster.ended(here, "alone")
    cluster.ended(trainer, "trainer")
    done = "SELECT count(*), count(done_by), count(DISTINCT done_by) FROM osmosis.rollouts"
    rollouts, finished, members = map(int, cluster.database.sql(done).split("|"))
    assert rollouts == finished == STEPS * 12, (rollouts, finished)
    controllers = "SELECT count(*) FROM osmosis.members WHERE kind = 'controller' AND done > 0"
    assert int(cluster.database.sql(controllers)) == 0, "the controller ran rollouts itself"
    assert weights(root) == weights(alone), "other weights than on one machine"
    until("no node of the training is left", lambda: not cluster.nodes(), 20)
    say(f"a training of {STEPS} steps on {members} nodes has the weights of one machine")


def check(cluster: Cluster) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s: {text}", flush=True)

    root = cluster.workspace()
    cluster.start_head()
    head = (cluster.head.address, cluster.port)
    until("the head of Ray listens", lambda: cluster.head.reaches(*head))
    cluster.start_worker()
    until("the second machine joined", lambda: "Ray runtime started" in cluster.log("ray-2"))
    check_training(cluster, root, say)
    controller = cluster.submit(root)

    def both_work() -> bool:
        if controller.code is not None:
            raise SystemExit(f"the controller ended with {controller.code}:\n{cluster.log()}")
        if cluster.log().count(" joined") == 0:
            return False
        return cluster.count("state = 'done'") > 0 and cluster.owners() >= 2

    until("both machines run rollouts", both_work)
    say("both machines run rollouts")
    token = (root / ".osmosis/evals/r/join-token").read_text().strip()
    for pid in cluster.net.processes():
        with contextlib.suppress(OSError):
            assert token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes(), pid

    for pid in cluster.net.processes(cluster.worker):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    say("the second machine is dead")
    cluster.ended(controller, "controller")
    say("the run is complete")
    index = (root / ".osmosis/evals/r/index.jsonl").read_text().splitlines()
    rewards = {line["row_index"]: line["reward"] for line in map(json.loads, index)}
    assert len(index) == ROLLOUTS == len(rewards), (len(index), len(rewards))
    assert all(reward == (1.0 if row % 3 else 0.0) for row, reward in rewards.items())
    again = cluster.count("attempt > 1")
    assert again > 0, "the machine that died held nothing"
    log = cluster.log()
    assert "left: Ray reports the machine dead" in log, log
    until("no node is left", lambda: not cluster.nodes(), 20)
    say(f"{ROLLOUTS} results, {again} of them after the machine had died; no node is left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--loopback", action="store_true", help="don't make namespaces")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="osmosis-ray-"))
    folder.chmod(0o755)
    net: Network | Loopback
    net = Loopback() if arguments.loopback or not Network.can_be_made() else Network()
    print(f"machines are {'network namespaces' if isinstance(net, Network) else 'processes'}")
    cluster = None
    try:
        cluster = Cluster(net, folder, str(Path(arguments.osmosis).resolve()))
        check(cluster)
    except BaseException:
        for file in sorted(folder.glob("*.log")):
            print(f"--- {file.name}\n{file.read_text()[-3000:]}", file=sys.stderr)
        raise
    finally:
        if cluster is not None:
            cluster.database.stop()
        net.remove()
        shutil.rmtree(folder, ignore_errors=True)
        for left in Path("/tmp").glob(f"osm-ray-{os.getpid()}-*"):
            shutil.rmtree(left, ignore_errors=True)


if __name__ == "__main__":
    main()
