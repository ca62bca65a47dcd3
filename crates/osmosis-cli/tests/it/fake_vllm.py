"""A server with the routes of vLLM that training uses: `fake_vllm.py FOLDER --port N ...`.

Each answer is six digits that no other answer has. What is in the file `number` beside the weights
that answered is written to FOLDER/answers.jsonl with the ids, and each order about weights to
FOLDER/orders.txt. The file FOLDER/die has it die at the next completion, before or after the first
token.
"""

import json
import os
import pathlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = pathlib.Path(sys.argv[1])
OPTIONS = dict(zip(sys.argv[2::1], [*sys.argv[3::1], ""], strict=True))
ZERO = 22  # the id of the digit 0
LOCK = threading.Lock()
state = {"adapters": {}, "weights": OPTIONS["--model"], "paused": False}


def number_in(folder):
    file = pathlib.Path(folder, "number")
    return int(file.read_text()) if file.exists() else 0


def note(line):
    with LOCK, (FOLDER / "orders.txt").open("a") as file:
        file.write(line + "\n")


def next_answer(number):
    with LOCK:
        file = FOLDER / "answers.jsonl"
        count = len(file.read_text().splitlines()) if file.exists() else 0
        ids = [ZERO + int(digit) for digit in f"{count:06d}"]
        with file.open("a") as out:
            out.write(json.dumps({"ids": ids, "number": number}) + "\n")
    return ids


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        models = [{"id": "policy", "max_model_len": 512}]
        models += [{"id": name, "max_model_len": None} for name in state["adapters"]]
        self.reply(200, {"data": models} if self.path == "/v1/models" else {})

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        asked = json.loads(self.rfile.read(length) or b"{}")
        path = self.path
        if path == "/v1/completions":
            return self.complete(asked)
        if path == "/v1/load_lora_adapter":
            name, folder = asked["lora_name"], asked["lora_path"]
            if name in state["adapters"]:
                return self.reply(400, {"error": "it is loaded already"})
            # As it is now: the folder may go.
            state["adapters"][name] = number_in(folder)
            note(f"load {name} {number_in(folder)}")
        elif path == "/v1/unload_lora_adapter":
            del state["adapters"][asked["lora_name"]]
            note(f"unload {asked['lora_name']}")
        elif path.startswith("/pause?mode=wait"):
            state["paused"] = True
            note("pause")
        elif path == "/collective_rpc":
            assert state["paused"] and asked["method"] == "osmosis_reload_weights", asked
            state["weights"] = asked["kwargs"]["weights_path"]
            note(f"reload {number_in(state['weights'])}")
        elif path == "/reset_prefix_cache":
            note("reset")
        elif path == "/resume":
            state["paused"] = False
            note("resume")
        else:
            return self.reply(404, {})
        return self.reply(200, {})

    def complete(self, asked):
        if state["paused"]:
            note("asked while paused")
        model = asked["model"]
        number = number_in(state["weights"]) if model == "policy" else state["adapters"][model]
        die = FOLDER / "die"
        when = die.read_text() if die.exists() else ""
        if when == "before":
            die.unlink(missing_ok=True)
            os._exit(3)
        ids = next_answer(number)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for place, token in enumerate(ids):
            choice = {
                "text": "x",
                "token_ids": [token],
                "logprobs": {"tokens": [f"token_id:{token}"], "token_logprobs": [-0.5]},
                "finish_reason": "length" if place == len(ids) - 1 else None,
            }
            self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            self.wfile.flush()
            if when == "within":
                die.unlink(missing_ok=True)
                os._exit(3)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
        return None


(FOLDER / "server.pid").write_text(str(os.getpid()))
note("start")
ThreadingHTTPServer((OPTIONS["--host"], int(OPTIONS["--port"])), Handler).serve_forever()
