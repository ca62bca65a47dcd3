"""A guest that does as it is told, however bad. Standard library only.

How it starts is in `GUEST_START`; what a task does is the first word of its prompt.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time


def pack(value):
    if value is None:
        return b"\xc0"
    if value is True:
        return b"\xc3"
    if value is False:
        return b"\xc2"
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value)
    if isinstance(value, str):
        raw = value.encode()
        return b"\xdb" + struct.pack(">I", len(raw)) + raw
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        parts = [pack(k) + pack(v) for k, v in value.items()]
        return b"\xdf" + struct.pack(">I", len(parts)) + b"".join(parts)
    raise TypeError(value)


class Unpacker:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def text(self, count):
        return self.take(count).decode()

    def array(self, count):
        return [self.value() for _ in range(count)]

    def map(self, count):
        return {self.value(): self.value() for _ in range(count)}

    def value(self):
        tag = self.take(1)[0]
        if tag <= 0x7F:
            return tag
        if tag <= 0x8F:
            return self.map(tag & 0x0F)
        if tag <= 0x9F:
            return self.array(tag & 0x0F)
        if tag <= 0xBF:
            return self.text(tag & 0x1F)
        if tag >= 0xE0:
            return tag - 256
        simple = {0xC0: None, 0xC2: False, 0xC3: True}
        if tag in simple:
            return simple[tag]
        numbers = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q"}
        numbers |= {0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
        if tag in numbers:
            return self.number(numbers[tag])
        sized = {
            0xD9: (self.text, "B"),
            0xDA: (self.text, "H"),
            0xDB: (self.text, "I"),
            0xDC: (self.array, "H"),
            0xDD: (self.array, "I"),
            0xDE: (self.map, "H"),
            0xDF: (self.map, "I"),
        }
        read, form = sized[tag]
        return read(self.number(form))


START = os.environ.get("GUEST_START", "")
TOKEN = os.environ["OSMOSIS_WORKER_TOKEN"]
if TOKEN == "stdin":
    TOKEN = sys.stdin.read()


class Connection:
    def __init__(self, token, channel):
        kind, _, where = os.environ["OSMOSIS_WORKER_ADDR"].partition(":")
        if kind == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(where)
        else:
            host, _, port = where.rpartition(":")
            self.socket = socket.create_connection((host, int(port)))
        self.lock = threading.Lock()
        self.hello(token, channel)

    def hello(self, token, channel):
        self.send(
            "hello",
            protocol=99 if START == "wrong_protocol" else 1,
            sdk="test guest",
            features=["fork"] if os.environ.get("GUEST_FORK") else [],
            token=token,
            pid=os.getpid(),
            channel=channel,
        )

    def send(self, kind, **fields):
        body = pack({kind: fields})
        self.raw(struct.pack(">I", len(body)) + body)

    def raw(self, data):
        with self.lock:
            self.socket.sendall(data)

    def receive(self):
        head = self.exactly(4)
        if head is None:
            return None, None
        ((kind, fields),) = Unpacker(self.exactly(struct.unpack(">I", head)[0])).value().items()
        return kind, fields

    def exactly(self, count):
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                return None
            data += piece
        return data


def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(0.005)


class Guest:
    def __init__(self, token):
        self.control = Connection(token, "control")
        kind, fields = self.control.receive()
        if kind != "welcome":
            print("refused:", fields["reason"], flush=True)
            os._exit(8)
        self.output = Connection(token, "output")
        self.cancelled = {}

    def say(self, text):
        self.output.raw(text.encode())

    def main(self):
        while True:
            kind, fields = self.control.receive()
            if kind is None:
                os._exit(0)
            if kind == "shutdown":
                if os.environ.get("GUEST_STAYS"):
                    continue
                os._exit(0)
            elif kind == "load":
                self.project_path = fields["project_path"]
                self.load()
            elif kind == "fork":
                self.fork(fields["token"])
            elif kind == "cancel":
                if not os.environ.get("GUEST_SILENT"):
                    self.control.send("loop_unblocked")
                self.cancelled[fields["task"]].set()
            else:
                self.cancelled[fields["task"]] = threading.Event()
                threading.Thread(target=self.task, args=(kind, fields), daemon=True).start()

    def load(self):
        killed_at("killed_while_loading")
        if START == "load_fails":
            problem = {"code": "import_failed", "message": "no", "hint": None, "traceback": None}
            self.control.send("load_failed", problems=[problem])
            return
        if START == "hangs_in_load":
            print("still importing", flush=True)
            return
        found = {"name": "W", "file": "main.py", "line": 1, "config": None, "max_concurrent": None}
        self.control.send(
            "loaded",
            manifest={
                "workflow": found,
                "grader": found,
                "warnings": [],
                "not_forkable": None if os.environ.get("GUEST_FORK") else "threads",
            },
        )
        if START == "dies_after_load":
            os._exit(9)

    def fork(self, token):
        if START == "fork_fails":
            self.control.send("fork_failed", token=token, message="not today")
            return
        if START == "template_dies_once" and not os.path.exists("died_once"):
            open("died_once", "w").close()
            os._exit(5)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            self.__init__(token)
            return
        self.control.send("forked", token=token, pid=pid)

        def reap():
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self.control.send(
                "child_exited",
                pid=pid,
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
            )

        threading.Thread(target=reap, daemon=True).start()

    def run_code(self, code, fields):
        scope = {"task": fields, "project": self.project_path}
        exec(code, scope)
        return scope.get("answer")

    def task(self, kind, fields):
        task, rollout = fields["task"], fields["rollout_id"]
        if kind == "grade":
            self.control.send("started", task=task)
            metadata = json.loads(fields["metadata"] or "{}")
            if "code" in metadata:
                self.run_code(metadata["code"], fields)
            samples = fields["samples"]
            for sample in samples:
                sample["reward"] = 1
            self.control.send("grade_done", task=task, samples=samples)
            return
        word, *arguments = json.loads(fields["prompt"])

        def done(value=None, task=task):
            sample = {"id": "main", "messages": json.dumps([value])}
            self.control.send("run_done", task=task, samples=[sample], metrics=None)

        if word == "never_start":
            return
        self.control.send("started", task=task)
        if word == "echo":
            done(arguments)
        elif word == "run_code":
            done(self.run_code(arguments[0], fields))
        elif word == "paths":
            done([self.project_path, fields["artifacts_dir"]])
        elif word == "pid":
            done(os.getpid())
        elif word == "grouped":
            done([os.getpid(), os.getpgid(0)])
        elif word == "gate":
            self.say(f"\x1e{rollout}\x1fat the gate {os.getpid()}\n")
            wait_for_file(arguments[0])
            done(os.getpid())
        elif word == "wait":
            self.say(f"\x1e{rollout}\x1fwaiting\n")
            self.cancelled[task].wait()
            self.control.send("task_cancelled", task=task)
        elif word == "answer_late":
            self.cancelled[task].wait()
            done("late")
        elif word == "ignore_cancel":
            self.say(f"\x1e{rollout}\x1fdeaf\n")
        elif word == "exit":
            os._exit(arguments[0])
        elif word == "answer_and_exit":
            done("last words")
            os._exit(0)
        elif word == "kill_parent":
            os.kill(os.getppid(), 9)
            os._exit(0)
        elif word == "signal":
            os.kill(os.getpid(), arguments[0])
        elif word == "close":
            self.control.socket.shutdown(socket.SHUT_WR)
        elif word == "garbage":
            self.control.raw(b"\x00\x00\x00\x03\xc1\xc1\xc1")
        elif word == "oversized":
            self.control.raw(b"\x7f\xff\xff\xff")
        elif word == "answer_twice":
            done(1)
            done(2)
        elif word == "answer_unknown":
            done(1, task=10**6)
        elif word == "hello_twice":
            self.control.hello(TOKEN, "control")
        elif word == "start_twice":
            self.control.send("started", task=task)
        elif word == "wrong_answer":
            self.control.send("grade_done", task=task, samples=[])
        elif word == "reject":
            self.control.send("rejected", task=task, reason="not today")
        elif word == "cancel_itself":
            self.control.send("task_cancelled", task=task)
        elif word == "fail":
            failure = {"category": "agent_error", "kind": "KeyError", "message": "'x'"}
            self.control.send("task_failed", task=task, failure=failure)
        elif word == "print":
            for _ in range(arguments[0]):
                self.say(f"\x1e{rollout}\x1f{arguments[1]}\n")
            done()
        elif word == "block_until":
            self.control.send("loop_blocked", blocked_ms=1500, stack="main.py:3")
            wait_for_file(arguments[0])
            self.control.send("loop_unblocked")
            done()
        elif word == "subprocess":
            child = subprocess.Popen(["sleep", "1000"])
            self.say(f"\x1e{rollout}\x1fchild {child.pid}\n")
            os._exit(1)
        elif word == "tell_token_and_exit":
            done([os.environ["OSMOSIS_WORKER_ADDR"], TOKEN])
            os._exit(0)
        elif word == "reuse_token":
            try:
                kind, _ = Connection(TOKEN, "control").receive()
            except OSError:
                kind = "closed"
            done(kind)


def killed_at(start):
    """Ends by a signal, the first time or each time."""
    if START == start or (START == f"{start}_once" and not os.path.exists("killed_once")):
        open("killed_once", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


killed_at("killed_at_start")
if START == "exits":
    print("cannot import name 'x'", file=sys.stderr, flush=True)
    os._exit(7)
if START == "never_dials":
    print("thinking", flush=True)
    time.sleep(1000)
if START == "noise_first":
    # Strangers at the door, which must harm nobody.
    for noise in [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x01\xc1", b"", b"\xff\xff\xff\xff"]:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(os.environ["OSMOSIS_WORKER_ADDR"].removeprefix("unix:"))
        stranger.sendall(noise)
        stranger.close() if noise else globals().setdefault("_kept", stranger)
    wrong = Connection("0" * 64, "control")
    assert wrong.receive()[0] == "refused"
if START == "is_robbed":
    os.chdir(os.environ["GUEST_FOLDER"])
    with open("stolen.part", "w") as file:
        json.dump([os.environ["OSMOSIS_WORKER_ADDR"], TOKEN], file)
    os.rename("stolen.part", "stolen")
    time.sleep(1000)
Guest(TOKEN).main()
