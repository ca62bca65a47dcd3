"""Opens what we write with other programs, and compares their numbers with ours.

Files of the example `model_files` (adapters, merged weights, GGUF), by transformers, peft and llama.cpp:

    cargo run --release -p osmosis-policy --example model_files MODEL DIR
    python benches/model_files.py DIR

It needs torch, transformers, peft and safetensors; the GGUF files are left out without llama-cpp-python.

A checkpoint of a run, as it is, by transformers and vLLM, and exported as GGUF by llama.cpp:

    python benches/model_files.py --checkpoint .osmosis/training/RUN/checkpoints/step_N \
        --osmosis target/release/osmosis --trainer-python ENV/bin/python --server-python ENV/bin/python \
        --llama-python ENV/bin/python

Without a folder after `--checkpoint`, `builtin/tiny` is trained for `--steps` first (`--agent-python` runs the agent).
The embedded policy samples answers, and the logprobs of their tokens are compared. Ends with 1 if a program can't open
the files, if a file of the checkpoint has changed afterwards, or if logprobs differ by more than 0.01.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

# What is too far apart for rounding, in nats.
FAR = 0.01
TRAINING = """
[experiment]
rollout = "first_call"
entrypoint = "main.py"
dataset = "train"
model_path = "builtin/tiny"

[training]
lr = 3e-4
n_samples_per_prompt = 8
rollout_batch_size = 16
updates_per_batch = 2
steps = {steps}
seed = 1
max_prompt_length = 512
max_response_length = 64
agent_workflow_timeout_s = 60
grader_timeout_s = 20

[checkpoints]
checkpoint_save_freq = {steps}
"""
# Logprobs by llama.cpp, and whether its tokenizer gives the ids of a text.
LLAMA = """
import json, sys
import numpy as np
from llama_cpp import GGML_TYPE_F32, Llama
# By default its cache has half floats, whatever the weights are.
kinds = {"type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32}
model = Llama(sys.argv[1], logits_all=True, n_ctx=512, n_threads=2, verbose=False, **kinds)
scored = []
for answer in json.load(sys.stdin):
    ids = answer["prompt"] + answer["ids"]
    model.reset()
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)], dtype=np.float64)
    most = logits.max(-1, keepdims=True)
    logprobs = logits - most - np.log(np.exp(logits - most).sum(-1, keepdims=True))
    first = len(answer["prompt"])
    scored.append([logprobs[first - 1 + place, one] for place, one in enumerate(answer["ids"])])
print(json.dumps(scored))
"""
# Whether transformers' tokenizer and chat template give the ids that our gateway sent to the model.
PROMPTS = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
same = 0
asked = json.load(sys.stdin)
for answer in asked:
    messages = [{"role": "user", "content": answer["question"]}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    same += tokenizer(text, add_special_tokens=False).input_ids == answer["prompt"]
print(f"{same} of {len(asked)}")
"""


def compare(name: str, theirs: Any, ours: Any) -> None:
    """Logits, of the same ids."""
    import numpy as np

    apart = np.abs(theirs - ours)
    agree = float((theirs.argmax(-1) == ours.argmax(-1)).mean())
    print(
        f"{name}: logits at most {apart.max():.2e} apart, {apart.mean():.2e} on average,"
        f" of sizes up to {np.abs(ours).max():.1f}; same likeliest token: {agree:.0%}"
    )


def example_files(folder: pathlib.Path) -> None:
    """What the example wrote."""
    import numpy as np

    ids = json.loads((folder / "ids.json").read_text())
    ours = np.fromfile(folder / "logits.bin", dtype="<f4").reshape(len(ids), -1)

    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def logits(model: torch.nn.Module) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].float().numpy()

    merged = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32)
    compare("transformers, merged folder", logits(merged), ours)
    tokenizer = AutoTokenizer.from_pretrained(folder / "merged")
    again = tokenizer(tokenizer.decode(ids), add_special_tokens=False).input_ids
    print(f"transformers, tokenizer: {'the same ids' if again == ids else 'other ids'}")

    config = json.loads((folder / "step_1" / "adapter_config.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    plain = logits(base)
    adapted = PeftModel.from_pretrained(base, folder / "step_1")
    compare("peft, adapters beside the base", logits(adapted), ours)
    print(f"(the base alone is {np.abs(plain - ours).max():.2e} apart)")

    try:
        from llama_cpp import GGML_TYPE_F32, Llama
    except ImportError:
        print("llama-cpp-python is not installed: GGUF files were not tried")
        return
    # By default its cache has half floats, whatever the weights are.
    settings = {"logits_all": True, "n_ctx": 256, "type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32, "verbose": False}
    for kind in ("f32", "f16"):
        model = Llama(str(folder / f"model-{kind}.gguf"), **settings)
        model.eval(ids)
        compare(f"llama.cpp, GGUF {kind}", np.array(model.scores[: len(ids)]), ours)
        text = tokenizer.decode(ids).encode()
        again = model.tokenize(text, add_bos=False, special=True)
        print(f"llama.cpp, tokenizer: {'the same ids' if again == ids else 'other ids'}")


def train(arguments: argparse.Namespace, folder: pathlib.Path) -> pathlib.Path:
    """A checkpoint of `builtin/tiny` after some steps."""
    from torch_trainer import ROOT

    shutil.copytree(ROOT / "examples/calculator/data", folder / "data")
    shutil.copytree(ROOT / "benches/first_call", folder / "rollouts/first_call")
    config = folder / "configs/training/tiny.toml"
    config.parent.mkdir(parents=True)
    config.write_text(TRAINING.format(steps=arguments.steps))
    command = [arguments.osmosis, "train", "submit", str(config), "--name", "tiny", "--json"]
    subprocess.run([*command, "--python", arguments.agent_python], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return folder / f".osmosis/training/tiny/checkpoints/step_{arguments.steps}"


def digests(folder: pathlib.Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def exported(arguments: argparse.Namespace, checkpoint: pathlib.Path, folder: pathlib.Path, kind: str) -> pathlib.Path:
    """The checkpoint as GGUF. If GGUF can't say how its tokenizer splits texts, with the rules of another one."""

    def export(source: pathlib.Path, to: pathlib.Path) -> subprocess.CompletedProcess[str]:
        command = [arguments.osmosis, "model", "export", source, "--to", to, "--format", "gguf", "--dtype", kind]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    (folder / "rollouts").mkdir(exist_ok=True)
    to = folder / f"gguf-{kind}"
    tried = export(checkpoint, to)
    if tried.returncode != 0:
        print(f"GGUF {kind}: {tried.stderr.strip().splitlines()[0]}")
        print(f"GGUF {kind}: exported with GPT-2's splitting rules instead; ids are compared, texts can't be")
        other = folder / f"other-rules-{kind}"
        shutil.copytree(checkpoint, other, ignore=shutil.ignore_patterns("trainer"))
        tokenizer = json.loads((other / "tokenizer.json").read_text())
        rules = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        (other / "tokenizer.json").write_text(json.dumps({**tokenizer, "pre_tokenizer": rules}))
        tried = export(other, to)
        if tried.returncode != 0:
            sys.exit(f"GGUF {kind}: {tried.stderr}")
    return next(to.glob("*.gguf"))


def checkpoint_files(arguments: argparse.Namespace) -> int:
    """A checkpoint of a run."""
    from logprobs import QUESTIONS, SCORE, of_vllm, sampled

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        checkpoint = pathlib.Path(arguments.checkpoint).resolve() if arguments.checkpoint else train(arguments, folder)
        before = digests(checkpoint)
        print(f"{len(before)} files: {', '.join(before)}")
        answers = sampled(arguments, str(checkpoint), temporary)
        for number, answer in enumerate(answers):
            answer["question"] = QUESTIONS[number % len(QUESTIONS)]
        text = json.dumps(answers)

        def ask(python: str, script: str, path: pathlib.Path) -> str:
            command = [python, "-c", script, str(path)]
            return subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True, text=True).stdout

        same = ask(arguments.trainer_python, PROMPTS, checkpoint)
        print(f"transformers: prompts with the same ids by its tokenizer and template: {same.strip()}")
        by = {"transformers, the folder": json.loads(ask(arguments.trainer_python, SCORE, checkpoint))}
        if arguments.server_python:
            by["vLLM, the folder"] = of_vllm(arguments, str(checkpoint), answers)
        if arguments.llama_python:
            for kind in ("f32", "f16"):
                file = exported(arguments, checkpoint, folder, kind)
                by[f"llama.cpp, GGUF {kind}"] = json.loads(ask(arguments.llama_python, LLAMA, file))
        changed = digests(checkpoint) != before
    tokens = sum(len(answer["ids"]) for answer in answers)
    print(f"{len(answers)} answers, {tokens} tokens; differences of logprobs from ours in nats")
    far = False
    for name, scored in by.items():
        apart = [
            abs(a - b)
            for answer, theirs in zip(answers, scored, strict=True)
            for a, b in zip(answer["logprobs"], theirs, strict=True)
        ]
        print(f"{name:26} mean {sum(apart) / len(apart):.2e}, largest {max(apart):.2e}")
        # Half floats are meant to be apart.
        far = far or ("f16" not in name and max(apart) > FAR)
    print(f"files of the checkpoint: {'CHANGED' if changed else 'unchanged'}")
    return 1 if far or changed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="what the example `model_files` wrote")
    parser.add_argument("--checkpoint", nargs="?", const="", help="a run's checkpoint; without a folder one is made")
    parser.add_argument("--osmosis", type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--trainer-python", help="an interpreter that has transformers and torch")
    parser.add_argument("--server-python", help="an interpreter that has vllm; without it vLLM is left out")
    parser.add_argument("--llama-python", help="an interpreter that has llama_cpp; without it GGUF is left out")
    parser.add_argument("--agent-python", default=sys.executable, help="the interpreter of the agent that is trained")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--answers", type=int, default=32)
    arguments = parser.parse_args()
    if arguments.checkpoint is not None:
        if not (arguments.osmosis and arguments.trainer_python):
            parser.error("--checkpoint needs --osmosis and --trainer-python")
        return checkpoint_files(arguments)
    if arguments.folder is None:
        parser.error("which folder?")
    example_files(arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
