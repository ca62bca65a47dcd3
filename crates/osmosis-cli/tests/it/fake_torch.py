"""Speaks as the torch trainer does, and learns nothing: `fake_torch.py FOLDER`.

Its weights are a number, that of its updates. FOLDER/die_update has it die in the next update, before
or after it has written its state.
"""

import json
import os
import pathlib
import shutil
import socket
import sys

FOLDER = pathlib.Path(sys.argv[1])
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["OSMOSIS_TRAINER_SOCKET"])
lines = connection.makefile("rb")
updates = 0


def note(line):
    with (FOLDER / "trained.txt").open("a") as file:
        file.write(line + "\n")


def send(message):
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive():
    line = lines.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def save(model, optimizer):
    shutil.rmtree(model, ignore_errors=True)
    pathlib.Path(model).mkdir(parents=True)
    pathlib.Path(model, "number").write_text(str(updates))
    pathlib.Path(model, "model.safetensors").write_text(str(updates))
    pathlib.Path(optimizer).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(optimizer).write_text(str(updates))


def dies(when):
    file = FOLDER / "die_update"
    if file.exists() and file.read_text() == when:
        file.unlink()
        note(f"dies {when}")
        os._exit(7)


def update(asked):
    global updates
    rows = asked["rows"]
    logprobs = [
        [logprob if weight else 0.0 for logprob, weight in zip(*columns, strict=True)]
        for columns in ((row["sampled_logprobs"], row["weights"]) for row in rows)
    ]
    dies("before")
    send({"progress": {"done": 1, "of": 1}})
    send({"logprobs": logprobs})
    if not receive()["accept"]:
        return None
    updates += 1
    save(asked["state"], asked["state"] + "/trainer/optimizer.safetensors")
    dies("after")
    note(f"update {updates}")
    report = dict.fromkeys(
        "loss entropy clip_fraction kl_to_sampled kl_to_reference mismatch_mean mismatch_max"
        " gradient_norm".split(),
        0.25,
    )
    return {**report, "behaviour_weight": None, "capped_fraction": None, "tokens": 6}


(FOLDER / "trainer.pid").write_text(str(os.getpid()))
send({"hello": {"protocol": 1, "versions": {"torch": "none"}}})
while True:
    asked = receive()
    call, answer = asked.pop("call"), None
    if call == "open":
        note(f"open lora={asked['lora'] is not None}")
        answer = {"parameters": 7, "trained": 7, "device": "cpu", "processes": 1}
    elif call == "update":
        answer = update(asked)
    elif call == "logprobs":
        answer = {"logprobs": [row["sampled_logprobs"] for row in asked["rows"]]}
    elif call == "save":
        save(asked["model"], asked["optimizer"])
    elif call == "restore":
        updates = int(pathlib.Path(asked["optimizer"]).read_text())
        assert updates == asked["updates"]
        note(f"restore {updates}")
    send({"ok": answer})
