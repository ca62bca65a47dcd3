"""Trains `builtin/tiny`'s weights with `[trainer] kind = "torch"`: real torch, peft and vLLM, on the CPU.

    python benches/torch_trainer.py --osmosis target/release/osmosis \
        --trainer-python ENV/bin/python --server-python ENV/bin/python [--weights lora|full] [--steps N] \
        [--dtype float32|bfloat16]

`cargo xtask torch` makes the environments and runs this. Prints the rewards on held-out rows, greedy
and sampled, before and after, and the times. Ends with 1 when nothing was learned, or when something
is left running.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Writes a model folder of the file that the program has inside.
MODEL = """
import pathlib, sys
from safetensors import safe_open
from safetensors.torch import save_file
source, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True)
with safe_open(source, "pt") as file:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_text(file.metadata()[name])
    tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
"""
CONFIG = """
[experiment]
rollout = "calculator"
entrypoint = "main.py"
dataset = "train"
model_path = "./models/tiny"

[training]
lr = {lr}
n_samples_per_prompt = 8
rollout_batch_size = 16
updates_per_batch = 2
steps = {steps}
seed = 1
eval_dataset = "held_out"
max_prompt_length = 512
max_response_length = 256
agent_workflow_timeout_s = 120
grader_timeout_s = 20
max_staleness = {staleness}
{lora}
[checkpoints]
eval_interval = {steps}
checkpoint_save_freq = {steps}

[trainer]
kind = "torch"
python = "{trainer}"
# A request with a seed whose prompt is read in parts ends vLLM 0.32 on the CPU: "CPU Generator does not use offset".
server_command = [
    "{server}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{{model}}", "--enforce-eager",
    "--no-enable-chunked-prefill",
]
dtype = "{dtype}"
devices = {devices}
"""
LORA = "[training.lora]\nrank = 16\nalpha = 32\n"


def workspace(folder: pathlib.Path, args: argparse.Namespace) -> None:
    """The calculator example, with the model as a folder."""
    shutil.copytree(ROOT / "examples/calculator", folder, dirs_exist_ok=True)
    tiny = ROOT / "crates/osmosis-policy/builtin/tiny.safetensors"
    model = folder / "models/tiny"
    subprocess.run([args.trainer_python, "-c", MODEL, tiny, model], check=True)
    lora = args.weights == "lora"
    text = CONFIG.format(
        lr=args.lr or (3e-3 if lora else 3e-4),
        steps=args.steps,
        staleness=args.max_staleness,
        lora=LORA if lora else "",
        trainer=args.trainer_python,
        server=args.server_python,
        dtype=args.dtype,
        devices=json.dumps(["cpu"] * args.processes),
    )
    (folder / "configs/training/torch.toml").write_text(text)


def callers() -> set[str]:
    """This process and those that started it: they may name the folder."""
    found, process = set(), str(os.getpid())
    while process != "0":
        found.add(process)
        process = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
    return found


def left_running(folder: pathlib.Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found, not_ours = [], callers()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in line and process.name not in not_ours:
            found.append(line)
    return found


def line(name: str, numbers: dict[str, Any]) -> str:
    """A row of the table."""
    cells = []
    for decoding in ("sampled", "greedy"):
        mean, interval = numbers[decoding]["mean"], numbers[decoding]["ci95"]
        shown = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        cells.append(f"{mean:.3f}{shown}")
    return f"{name:8} {cells[0]:28} {cells[1]}"


def main() -> int:
    """Runs it and prints the numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--trainer-python", required=True)
    parser.add_argument("--server-python", required=True)
    parser.add_argument("--weights", choices=["lora", "full"], default="lora")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--agent-python", help="the interpreter of the agents; without it the run makes an environment")
    parser.add_argument("--max-staleness", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, help="where the workspace is made and kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or pathlib.Path(temporary)
        workspace(folder, args)
        command = [args.osmosis, "train", "submit", "configs/training/torch.toml", "--json", "--name", "torch"]
        if args.agent_python:
            command += ["--python", args.agent_python]
        began = time.monotonic()
        ran = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")},
            stdout=subprocess.PIPE,
            check=False,
        )
        seconds = time.monotonic() - began
        run = folder / ".osmosis/training/torch"
        if ran.returncode != 0:
            print(ran.stdout.decode()[-2000:])
            for log in ("server.log", "trainer.log"):
                if (run / log).exists():
                    print(f"--- {log}\n{(run / log).read_text()[-3000:]}")
            return 1
        report = json.loads(ran.stdout)["resource"]
        steps = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
        print(f"{args.weights}, {args.dtype}, {args.steps} steps, {seconds:.0f} s; by phase: {report['seconds']}")
        print(f"{'':8} {'sampled':28} greedy")
        print(line("before", report["before"]))
        print(line("after", report["after"]))
        mismatch = [step["logprob_mismatch/max"] for step in steps if step.get("logprob_mismatch/max") is not None]
        print(f"largest difference of logprobs, vLLM and torch: {max(mismatch, default=float('nan')):.2e}")
        left = left_running(folder)
        print(f"left running: {left or 'nothing'}")
        learned = report["after"]["sampled"]["mean"] > report["before"]["sampled"]["mean"] + 0.05
        return 0 if learned and not left else 1


if __name__ == "__main__":
    sys.exit(main())
