"""Logprobs of the same token ids, by the embedded policy, vLLM and transformers, side by side.

    python benches/logprobs.py --osmosis target/release/osmosis --trainer-python ENV/bin/python \
        --server-python ENV/bin/python [--model DIR]

The embedded policy samples answers (temperature 1) behind `osmosis gateway`; their ids and logprobs
are what the others are compared with. vLLM scores them as prompts, transformers in one pass. All in
float32, on the CPU. Without `--model` the weights are those of `builtin/tiny`.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

from torch_trainer import MODEL, ROOT

QUESTIONS = ["What is 12 plus 30?", "What is 7 times 8?", "Which is larger, 4 or 9?", "hello"]
SCORE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
scored = []
with torch.no_grad():
    for answer in json.load(sys.stdin):
        ids = torch.tensor([answer["prompt"] + answer["ids"]])
        logprobs = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        scored.append(logprobs[len(answer["prompt"]) - 1 :].tolist())
print(json.dumps(scored))
"""


def ask(url: str, body: dict[str, Any], key: str = "none") -> dict[str, Any]:
    """One request."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def sampled(args: argparse.Namespace, model: str, folder: str) -> list[dict[str, Any]]:
    """Answers of the embedded policy, with their ids and logprobs."""
    command = [args.osmosis, "gateway", "--model", model, "--json", "--listen", "127.0.0.1:0"]
    command += ["--store", folder]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=folder)
    answers = []
    try:
        assert gateway.stdout is not None
        text = b""
        while not text.endswith(b"\n}\n"):
            line = gateway.stdout.readline()
            if not line:
                sys.exit(f"`osmosis gateway` ended: {text.decode()}")
            text += line
        served = json.loads(text)["resource"]
        url, key = served["url"], served["api_key"]
        for number in range(args.answers):
            question = QUESTIONS[number % len(QUESTIONS)]
            body = {
                "model": "osmosis-rollout",
                "messages": [{"role": "user", "content": question}],
                "max_tokens": 48,
                "temperature": 1.0,
                "seed": number,
                "logprobs": True,
                "return_token_ids": True,
            }
            reply = ask(f"{url}/chat/completions", body, key)
            choice = reply["choices"][0]
            logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
            answers.append(
                {
                    "prompt": reply["prompt_token_ids"],
                    "ids": choice["token_ids"],
                    "logprobs": logprobs,
                }
            )
    finally:
        gateway.terminate()
        gateway.wait()
    return answers


def of_vllm(args: argparse.Namespace, model: str, answers: list[dict[str, Any]]) -> list[list[float]]:
    """Scored as prompts by a server of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [args.server_python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", "m", "--port", str(port), "--host", "127.0.0.1"]
    command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            while True:
                if server.poll() is not None:
                    log.seek(0)
                    sys.exit(f"vLLM ended with {server.returncode}:\n{log.read().decode()[-3000:]}")
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5).close()
                    break
                except (urllib.error.URLError, OSError):
                    time.sleep(0.5)
            scored = []
            for answer in answers:
                ids = answer["prompt"] + answer["ids"]
                body = {"model": "m", "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
                reply = ask(f"{url}/v1/completions", body)
                entries = reply["choices"][0]["prompt_logprobs"][len(answer["prompt"]) :]
                pairs = zip(answer["ids"], entries, strict=True)
                scored.append([entry[str(token)]["logprob"] for token, entry in pairs])
            return scored
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--osmosis", required=True)
    parser.add_argument("--trainer-python", required=True)
    parser.add_argument("--server-python", required=True)
    parser.add_argument("--model", help="a model folder that all three open")
    parser.add_argument("--answers", type=int, default=32)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        model = args.model
        if model is None:
            model = f"{temporary}/tiny"
            tiny = ROOT / "crates/osmosis-policy/builtin/tiny.safetensors"
            subprocess.run([args.trainer_python, "-c", MODEL, tiny, model], check=True)
        model = str(pathlib.Path(model).resolve())
        answers = sampled(args, model, temporary)
        scoring = [args.trainer_python, "-c", SCORE, model]
        output = subprocess.run(scoring, input=json.dumps(answers).encode(), stdout=subprocess.PIPE, check=True)
        by = {
            "embedded": [answer["logprobs"] for answer in answers],
            "transformers": json.loads(output.stdout),
            "vLLM": of_vllm(args, model, answers),
        }
    tokens = sum(map(len, by["embedded"]))
    print(f"{len(answers)} answers, {tokens} tokens; differences of logprobs in nats")
    print(f"{'':26} {'mean':>10} {'largest':>10}")
    names = list(by)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            apart = [
                abs(a - b)
                for left, right in zip(by[one], by[other], strict=True)
                for a, b in zip(left, right, strict=True)
            ]
            mean = sum(apart) / len(apart)
            print(f"{one + ' and ' + other:26} {mean:10.2e} {max(apart):10.2e}")


if __name__ == "__main__":
    sys.exit(main())
