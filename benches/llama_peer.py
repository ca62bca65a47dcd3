"""A real OpenAI-compatible server behind the gateway: what agents see directly and through it.

It is a check rather than a measurement, with a server that nobody here wrote. It needs a Python with the
server and the client, and a small model:

    python -m venv /tmp/peer && /tmp/peer/bin/pip install 'llama-cpp-python[server]' openai
    /tmp/peer/bin/python benches/llama_peer.py --osmosis target/debug/osmosis --model SmolLM2.gguf

(The server builds from source, which takes some minutes.) Each line is one case: the same request goes to
the server and through `osmosis gateway`, greedily, and what the client reads must be equal. The calls that
the gateway recorded are counted at the end. With `--engine vllm` the gateway asks for token ids, which this
server does not know: nothing may change for the client.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

import openai

TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Return the product.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def question(**more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "Name three colours."}],
        "temperature": 0,
        "max_tokens": 24,
        **more,
    }


def whole(client: openai.OpenAI, **more: Any) -> Any:
    reply = client.chat.completions.create(**question(**more))
    return [reply.choices[0].model_dump(), reply.usage.model_dump() if reply.usage else None]


def stream(client: openai.OpenAI) -> Any:
    chunks = list(client.chat.completions.create(**question(stream=True)))
    return [chunk.choices[0].model_dump() for chunk in chunks if chunk.choices]


def tool(client: openai.OpenAI) -> Any:
    messages = [{"role": "user", "content": "What is 6 times 7?"}]
    choice = {"type": "function", "function": {"name": "multiply"}}
    reply = client.chat.completions.create(
        **question(messages=messages, tools=[TOOL], tool_choice=choice)
    )
    call = reply.choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    return [call.function.name, sorted(arguments)]


def logprobs(client: openai.OpenAI) -> Any:
    reply = client.chat.completions.create(**question(logprobs=True, top_logprobs=2))
    told = reply.choices[0].logprobs
    entries = told.content if told and told.content else []
    return [[entry.token, round(entry.logprob, 4)] for entry in entries]


def refused(client: openai.OpenAI) -> Any:
    try:
        client.chat.completions.create(**question(temperature="warm"))
    except openai.APIStatusError as error:
        return error.status_code
    return "answered"


CASES = {
    "whole": whole,
    "stream": stream,
    "forced tool": tool,
    "logprobs": logprobs,
    "json": lambda client: whole(client, response_format={"type": "json_object"}),
    "stop": lambda client: whole(client, stop=["\n"]),
    "bad request": refused,
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[Any]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("the server ended before it was ready")
        try:
            urllib.request.urlopen(url, timeout=1).read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit("the server was not ready after two minutes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--osmosis", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a small GGUF file")
    parser.add_argument("--engine", default="openai", help="what the gateway takes the server for")
    arguments = parser.parse_args()
    upstream = f"http://127.0.0.1:{free_port()}/v1"
    port = upstream.removesuffix("/v1").rsplit(":", 1)[1]
    options = [
        "--n_ctx",
        "2048",
        "--logits_all",
        "true",
        "--chat_format",
        "chatml-function-calling",
    ]
    command = [sys.executable, "-m", "llama_cpp.server", "--port", port, *options]
    server = subprocess.Popen(
        [*command, "--model", str(arguments.model)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        gateway = None
        try:
            wait_for(f"{upstream}/models", server)
            environment = {
                name: text for name, text in os.environ.items() if "PROXY" not in name.upper()
            }
            gateway = subprocess.Popen(
                [
                    *(arguments.osmosis.resolve(), "gateway", "--store", folder),
                    *("--upstream", upstream, "--engine", arguments.engine),
                ],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            said: dict[str, str] = {}
            while "OPENAI_API_KEY" not in said and (line := gateway.stdout.readline()):
                name, _, text = line.strip().partition("=")
                said[name] = text
            direct = openai.OpenAI(base_url=upstream, api_key="none", max_retries=0)
            through = openai.OpenAI(
                base_url=said["OPENAI_BASE_URL"], api_key=said["OPENAI_API_KEY"], max_retries=0
            )
            for name, case in CASES.items():
                outcomes = []
                # The first answer to a prompt differs in the last digits from those after it, which find
                # the prompt in the server's cache.
                for client in (direct, direct, through):
                    try:
                        outcomes.append(case(client))
                    except (openai.OpenAIError, TypeError, ValueError, AttributeError) as error:
                        outcomes.append(f"{type(error).__name__}: {str(error)[:160]}")
                _, directly, ours = outcomes
                same = directly == ours
                failed += not same
                shown = json.dumps(ours, ensure_ascii=False)[:110]
                print(f"{'same' if same else 'DIFFERENT':9} {name:12} {shown}")
                if not same:
                    print(
                        f"          directly:    {json.dumps(directly, ensure_ascii=False)[:300]}"
                    )
        finally:
            for process in (gateway, server):
                if process is not None:
                    process.terminate()
                    process.wait(timeout=30)
        with sqlite3.connect(pathlib.Path(folder) / "run.db") as database:
            calls = database.execute(
                "SELECT count(*), sum(prompt_tokens), sum(completion_tokens) FROM calls"
            ).fetchone()
        print("recorded: {} calls, {} prompt and {} completion tokens".format(*calls))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
