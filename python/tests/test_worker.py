"""The real worker process against a small engine."""

import asyncio
import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from osmosis_ai.worker.frames import (
    Cancel,
    ChildExited,
    Fork,
    Forked,
    ForkFailed,
    GradeDone,
    LoadFailed,
    LoopBlocked,
    LoopUnblocked,
    RunDone,
    Sample,
    Shutdown,
    Started,
    TaskCancelled,
    TaskFailed,
    encode,
)
from tests.engine import Engine, grade_task, loaded_worker, run_task

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need a POSIX system")

GRADER = """
from osmosis_ai.rollout import *

class G(Grader):
    async def grade(self, ctx):
        for name in ctx.samples:
            ctx.set_sample_reward(name, 1)
"""


def workflow(body: str, before: str = "") -> str:
    """An entrypoint whose `run` has this body."""
    indented = "\n".join(f"        {line}" for line in body.strip("\n").split("\n"))
    return (
        f"{GRADER}\n{before}\nclass W(AgentWorkflow):\n    async def run(self, ctx):\n{indented}\n"
    )


def grader(body: str) -> str:
    indented = "\n".join(f"        {line}" for line in body.strip("\n").split("\n"))
    return (
        "from osmosis_ai.rollout import *\n"
        "class W(AgentWorkflow):\n    async def run(self, ctx):\n        return ctx.prompt\n"
        f"class G(Grader):\n    async def grade(self, ctx):\n{indented}\n"
    )


ECHO = workflow("return ctx.prompt")


async def test_a_row_becomes_a_sample_and_a_sample_a_reward(tmp_path: Path):
    async with loaded_worker(tmp_path, ECHO) as (worker, process, _):
        assert worker.hello.protocol == 1
        assert worker.hello.pid == process.pid
        assert worker.hello.sdk.startswith("osmosis_ai ")
        assert ("fork" in worker.hello.features) == sys.platform.startswith("linux")
        done = await worker.run([{"role": "user", "content": "é"}])
        assert isinstance(done, RunDone)
        (sample,) = done.samples
        assert sample == Sample(id="main", messages='[{"role":"user","content":"é"}]')
        graded = await worker.answer(grade_task(done.samples))
        assert graded == GradeDone(
            graded.task, [Sample(id="main", messages=sample.messages, reward=1.0)]
        )


async def test_the_context_carries_the_row_and_never_the_key_of_the_worker(tmp_path: Path):
    source = workflow(
        """
import os
names = [n for n in os.environ if n.startswith("OSMOSIS_WORKER")]
rollout = get_rollout_context()
ctx.artifacts_dir.joinpath("made").write_text("x")
return [{"metadata": ctx.metadata, "env": names, "config": ctx.config, "id": rollout.rollout_id,
         "url": rollout.base_url, "key": rollout.api_key, "cwd": os.getcwd(),
         "in": input_is_empty()}]
""",
        before="import sys\ndef input_is_empty(): return sys.stdin.read() == ''",
    )
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        artifacts = tmp_path / "a" / "b"
        done = await worker.run(
            metadata='{"b":1}',
            rollout_id="r7-0",
            url="http://h/v1/chat/completions",
            api_key="secret",
            artifacts_dir=str(artifacts),
        )
        assert json.loads(done.samples[0].messages) == [
            {
                "metadata": {"b": 1},
                "env": [],
                "config": None,
                "id": "r7-0",
                "url": "http://h/v1",
                "key": "secret",
                "cwd": str(tmp_path / "project"),
                "in": True,
            }
        ]
        assert (artifacts / "made").read_text() == "x"


async def test_a_folder_for_files_is_made_when_user_code_asks_for_it(tmp_path: Path):
    body = """
return [{"made": bool(ctx.prompt) and ctx.artifacts_dir.is_dir()}]
"""
    async with loaded_worker(tmp_path, workflow(body)) as (worker, _, _engine):
        folder = tmp_path / "files" / "r0-0"
        done = await worker.run([], artifacts_dir=str(folder))
        assert json.loads(done.samples[0].messages) == [{"made": False}]
        assert not folder.parent.exists(), "nobody asked"
        done = await worker.run([{"a": 1}], artifacts_dir=str(folder))
        assert json.loads(done.samples[0].messages) == [{"made": True}]
        assert folder.parent.is_dir()
        assert not folder.exists(), "nothing was left in it"


async def test_messages_go_back_from_the_grader_as_they_came(tmp_path: Path):
    source = grader("""
sample = ctx.sample
assert sample.label == ctx.label == "42"
assert sample.messages == [{"n": 1.5}]
sample.messages.append({"grader": "was here"})
sample.metrics["score"] = 2
ctx.set_reward(True)
""")
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        done = await worker.answer(grade_task(label="42"))
        assert done.samples == [
            Sample(id="main", messages='[{"n":1.50}]', reward=1.0, metrics='{"score":2}')
        ]


@pytest.mark.parametrize(
    ("body", "category", "kind", "message"),
    [
        ("raise ValueError('no such city')", "validation_error", "ValueError", "no such city"),
        ("raise KeyError('k')", "agent_error", "KeyError", "'k'"),
        ("raise TimeoutError('slow')", "timeout", "TimeoutError", "slow"),
        ("import sys; sys.exit(3)", "agent_error", "SystemExit", "3"),
        ("raise KeyboardInterrupt", "agent_error", "KeyboardInterrupt", ""),
        ("import asyncio; raise asyncio.CancelledError", "agent_error", "CancelledError", ""),
        ("return None", "agent_error", "no_sample", "registered no sample source"),
        ("return []", "agent_error", "no_sample", "registered no sample source"),
        ("return 7", "validation_error", "invalid_return", "type `int`"),
        ("return [{}, 'x']", "validation_error", "invalid_return", "item 1"),
        (
            "return [{}, {}, {'content': [object()]}]",
            "validation_error",
            "not_json",
            "messages[2].content[0]: object of type object",
        ),
        (
            "return [{'p': float('nan')}]",
            "validation_error",
            "not_json",
            "messages[0].p: `nan` is not a JSON number",
        ),
        (
            "return AgentWorkflowOutput(messages=[{}], metrics={'m': {1, 2}})",
            "validation_error",
            "not_json",
            "metrics.m: object of type set",
        ),
        (
            "return [{'content': 'x' * 70_000_000}]",
            "validation_error",
            "result_too_large",
            "over the limit",
        ),
    ],
)
async def test_user_code_that_goes_wrong_fails_its_task_alone(
    tmp_path: Path, body: str, category: str, kind: str, message: str
):
    source = workflow(f"if ctx.metadata is None:\n    {body}\nreturn ctx.prompt")
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        answer = await worker.run()
        assert isinstance(answer, TaskFailed), answer
        assert (answer.failure.category, answer.failure.kind) == (category, kind)
        assert message in answer.failure.message
        assert isinstance(await worker.run(metadata="{}"), RunDone)


async def test_a_traceback_shows_user_frames_and_not_ours(tmp_path: Path):
    source = workflow("return deeper()", before="def deeper():\n    return 1 / 0")
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        trace = (await worker.run()).failure.traceback
        assert "in run\n    return deeper()" in trace
        assert "ZeroDivisionError: division by zero" in trace
        assert "osmosis_ai" not in trace


async def test_exit_in_a_task_that_user_code_started_does_not_end_the_worker(tmp_path: Path):
    source = workflow("""
import asyncio, sys
async def leave():
    sys.exit(1)
await asyncio.create_task(leave())
""")
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        assert (await worker.run()).failure.kind == "SystemExit"
        assert (await worker.run()).failure.kind == "SystemExit"


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("pass", "ungraded_sample", "`main`, `other`"),
        ("ctx.set_sample_reward('main', 1)", "ungraded_sample", "`other`"),
        ("ctx.samples.clear()", "ungraded_sample", "`main`, `other`"),
        ("ctx.set_sample_reward('nope', 1)", "ValueError", "no sample `nope`"),
        ("ctx.set_sample_reward('main', float('nan'))", "invalid_reward", "`nan`"),
        ("ctx.samples['main'].reward = float('inf')", "invalid_reward", "`inf`"),
        ("ctx.set_sample_reward('main', '1')", "invalid_reward", "type str"),
        ("ctx.set_reward(1)", "ValueError", "exactly one sample"),
        ("raise RuntimeError('judge is down')", "RuntimeError", "judge is down"),
    ],
)
async def test_a_grade_that_is_none_fails_with_its_reason(
    tmp_path: Path, body: str, kind: str, message: str
):
    samples = [Sample(id="main", messages="[]"), Sample(id="other", messages="[]")]
    async with loaded_worker(tmp_path, grader(body)) as (worker, _, _engine):
        answer = await worker.answer(grade_task(samples))
        assert isinstance(answer, TaskFailed), answer
        assert answer.failure.kind == kind
        assert message in answer.failure.message


async def test_rewards_of_turns_go_to_the_engine_beside_the_samples(tmp_path: Path):
    source = grader("""
ctx.set_reward(1)
if ctx.turn_count():
    ctx.set_turn_rewards([0.25] * (ctx.turn_count() - bool(ctx.label)))
""")
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        done = await worker.answer(grade_task(turns={"main": 2}))
        assert done.turn_rewards == {"main": [0.25, 0.25]}
        assert done.samples[0].extra_fields is None
        done = await worker.answer(grade_task(turns={"main": 0}))
        assert done.turn_rewards is None
        answer = await worker.answer(grade_task(turns={"main": 2}, label="one too few"))
        assert isinstance(answer, TaskFailed), answer
        assert "sample `main` has 2 turns, and got rewards for 1" in answer.failure.message


async def test_numbers_of_numpy_are_rewards_and_a_removed_sample_needs_none(tmp_path: Path):
    pytest.importorskip("numpy")
    source = grader("""
import numpy
ctx.set_sample_reward("a", numpy.float32(0.5))
ctx.set_sample_reward("b", numpy.int64(2))
ctx.set_sample_reward("c", numpy.bool_(True))
ctx.samples["d"].remove_sample = True
""")
    samples = [Sample(id=name, messages="[]") for name in "abcd"]
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        done = await worker.answer(grade_task(samples))
        assert [(s.reward, s.remove_sample) for s in done.samples] == [
            (0.5, False),
            (2.0, False),
            (1.0, False),
            (None, True),
        ]


async def test_a_grade_that_an_agent_gives_itself_never_leaves_the_worker(tmp_path: Path):
    source = workflow(
        """
rollout = get_rollout_context()
rollout.register_sample_source("paid", Source(reward=1.0))
rollout.register_sample_source("gone", Source(remove_sample=True))
""",
        before="""
from osmosis_ai.rollout import RolloutSample, SampleSource
class Source(SampleSource):
    def __init__(self, **grade): self.grade = grade
    async def get_sample(self, name): return RolloutSample(id=name, messages=[{}], **self.grade)
""",
    )
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        done = await worker.run([])
        assert [(s.id, s.reward, s.remove_sample) for s in done.samples] == [
            ("paid", None, False),
            ("gone", None, False),
        ]


async def test_a_grader_sees_no_grade_and_what_it_leaves_alone_is_ungraded(tmp_path: Path):
    source = grader("""
assert [(s.reward, s.remove_sample) for s in ctx.samples.values()] == [(None, False)] * 3
ctx.samples["a"].reward = 0.5
if ctx.label == "all":
    ctx.samples["b"].remove_sample = True
    ctx.set_sample_reward("c", 0)
""")
    samples = [Sample(id=name, messages="[]", reward=1.0, remove_sample=True) for name in "abc"]
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        done = await worker.answer(grade_task(samples, label="all"))
        assert [(s.reward, s.remove_sample) for s in done.samples] == [
            (0.5, False),
            (None, True),
            (0.0, False),
        ]
        failed = await worker.answer(grade_task(samples))
        assert isinstance(failed, TaskFailed), failed
        assert failed.failure.kind == "ungraded_sample"
        assert "`b`, `c`" in failed.failure.message


async def test_tasks_run_side_by_side_and_a_cancelled_one_ends(tmp_path: Path):
    source = workflow("""
import asyncio
if ctx.metadata["wait"]:
    try:
        await asyncio.Event().wait()
    finally:
        print("cleaned up")
return ctx.prompt
""")
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        waiting = run_task(metadata='{"wait":true}', rollout_id="r1-0")
        worker.send(waiting)
        await worker.expect(Started, task=waiting.task)
        assert isinstance(await worker.run(metadata='{"wait":false}'), RunDone)
        worker.send(Cancel(waiting.task))
        worker.send(Cancel(999_999))
        assert await worker.expect(TaskCancelled) == TaskCancelled(waiting.task)
        await worker.printed("\x1er1-0\x1fcleaned up")
        assert isinstance(await worker.run(metadata='{"wait":false}'), RunDone)


async def test_a_task_that_is_cancelled_before_it_starts_answers(tmp_path: Path):
    source = workflow("import asyncio\nawait asyncio.Event().wait()")
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        for _ in range(3):
            task = run_task()
            worker.writer.write(encode(task) + encode(Cancel(task.task)))
            await worker.expect(TaskCancelled, task=task.task)


async def test_each_execution_has_its_own_instance_and_its_own_config(tmp_path: Path):
    source = workflow(
        """
self.config.seen.append(len(self.config.seen))
same = ctx.config is self.config
return [{"seen": ctx.config.seen, "same": same, "lock": ctx.config.lock is LOCK}]
""",
        before="""
import threading
from typing import Any
LOCK = threading.Lock()
class C(AgentWorkflowConfig):
    name: str = "c"
    seen: list = []
    lock: Any = None
config = C(lock=LOCK)
""",
    )
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        for _ in range(2):
            done = await worker.run()
            assert json.loads(done.samples[0].messages) == [
                {"seen": [0], "same": True, "lock": True}
            ]


async def test_printing_reaches_the_engine_tagged_with_its_rollout(tmp_path: Path):
    source = workflow(
        """
import asyncio, logging, subprocess, sys
print("one", end=" ")
await asyncio.sleep(0)
print("line")
print("to stderr", file=sys.stderr)
logging.getLogger("x").warning("a warning")
await asyncio.to_thread(print, "from a thread")
sys.stdout.buffer.write(b"bytes\\n")
subprocess.run([sys.executable, "-c", "print('child process')"])
print("l" * 20_000)
print("no newline at the end", end="")
return ctx.prompt
""",
        before="print('at import')\nprint('\\x1er9\\x1fforged')",
    )
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        first, second = run_task(rollout_id="ra"), run_task(rollout_id="rb")
        worker.send(first)
        worker.send(second)
        await worker.expect(RunDone, task=first.task)
        await worker.expect(RunDone, task=second.task)
        await worker.printed("at import")
        await worker.printed("\u241er9\x1fforged")
        await worker.printed("child process")
        for rollout in ("ra", "rb"):
            for line in (
                "one line",
                "to stderr",
                "a warning",
                "from a thread",
                "bytes",
                "l" * 8_000,
                "l" * 4_000,
                "no newline at the end",
            ):
                await worker.printed(f"\x1e{rollout}\x1f{line}")


async def test_a_blocked_loop_is_reported_with_its_stack(tmp_path: Path):
    source = workflow("import time\ntime.sleep(1.0)  # here\nreturn ctx.prompt")
    options = {"OSMOSIS_LOOP_BLOCKED_SECS": "0.2"}
    async with loaded_worker(tmp_path, source, **options) as (worker, _, _engine):
        task = run_task()
        worker.send(task)
        blocked = await worker.expect(LoopBlocked)
        assert blocked.blocked_ms >= 200
        assert blocked.task == task.task
        assert "time.sleep(1.0)  # here" in blocked.stack
        assert "osmosis_ai" not in blocked.stack
        await worker.expect(LoopUnblocked)
        await worker.expect(RunDone, task=task.task)


async def test_a_worker_with_a_blocked_loop_leaves_when_its_engine_is_gone(tmp_path: Path):
    source = workflow("import time\ntime.sleep(600)")
    options = {"OSMOSIS_LOOP_BLOCKED_SECS": "0.1"}
    async with loaded_worker(tmp_path, source, **options) as (worker, process, engine):
        worker.send(run_task())
        await worker.expect(LoopBlocked)
        engine.hang_up()
        assert await asyncio.wait_for(process.wait(), 30) != 0


@pytest.mark.parametrize("busy", [False, True])
async def test_a_worker_leaves_when_its_engine_is_gone(tmp_path: Path, busy: bool):
    source = workflow("import asyncio\nawait asyncio.Event().wait()")
    async with loaded_worker(tmp_path, source) as (worker, process, engine):
        if busy:
            worker.send(run_task())
            await worker.expect(Started)
        engine.hang_up()
        assert await asyncio.wait_for(process.wait(), 30) != 0


@pytest.mark.parametrize("busy", [False, True])
async def test_shutdown_leaves_with_code_zero(tmp_path: Path, busy: bool):
    source = workflow("""
import asyncio, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
try:
    await asyncio.Event().wait()
except asyncio.CancelledError:
    print("told to leave", end="")
    raise
""")
    async with loaded_worker(tmp_path, source) as (worker, process, _engine):
        if busy:
            worker.send(run_task(rollout_id="r5-0"))
            await worker.expect(Started)
        worker.send(Shutdown())
        assert await asyncio.wait_for(process.wait(), 30) == 0
        if busy:
            await worker.printed("\x1er5-0\x1ftold to leave")


async def test_a_crash_leaves_its_stack_in_the_output(tmp_path: Path):
    source = workflow("import ctypes\nctypes.string_at(0)")
    async with loaded_worker(tmp_path, source) as (worker, process, _engine):
        worker.send(run_task())
        assert await asyncio.wait_for(process.wait(), 30) == -signal.SIGSEGV
        await worker.printed("Fatal Python error: Segmentation fault")


async def test_modules_of_the_project_shadow_neither_the_worker_nor_the_sdk(tmp_path: Path):
    project = tmp_path / "project"
    project.mkdir()
    for name in ("asyncio", "json", "frames", "output", "main_helper"):
        (project / f"{name}.py").write_text(f"WHO = 'the project {name}'\n")
    source = workflow(
        "return [{'frames': frames.WHO, 'helper': main_helper.WHO}]",
        before="import frames, main_helper",
    )
    async with loaded_worker(tmp_path, source) as (worker, _, _engine):
        done = await worker.run()
        assert json.loads(done.samples[0].messages) == [
            {"frames": "the project frames", "helper": "the project main_helper"}
        ]


async def test_modules_of_the_worker_shadow_nobody_elses(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "serving.py").write_text("WHO = 'a package of that name'\n")
    source = workflow("return [{'serving': serving.WHO}]", before="import serving")
    options = {"PYTHONPATH": str(elsewhere)}
    async with loaded_worker(tmp_path, source, **options) as (worker, _, _engine):
        done = await worker.run()
        assert json.loads(done.samples[0].messages) == [{"serving": "a package of that name"}]


async def test_an_entrypoint_with_problems_is_refused_and_can_be_asked_again(tmp_path: Path):
    (tmp_path / "main.py").write_text("import sys\nsys.exit(1)\n")
    (tmp_path / "good.py").write_text(ECHO)
    async with Engine(tmp_path) as engine:
        worker, _ = await engine.start(tmp_path)
        worker.send(run_task(task=5))
        assert (await worker.expect(TaskFailed)).failure.kind == "not_loaded"
        answer = await worker.load(tmp_path)
        assert isinstance(answer, LoadFailed)
        assert [problem.code for problem in answer.problems] == ["exits_on_import"]
        loaded = await worker.load(tmp_path, "good.py")
        assert loaded.manifest.workflow.name == "W"
        assert loaded.manifest.grader.name == "G"
        assert await worker.load(tmp_path, "good.py") == loaded
        other = await worker.load(tmp_path, "main.py")
        assert [problem.code for problem in other.problems] == ["already_loaded"]
        assert isinstance(await worker.run(), RunDone)
        assert await worker.load(tmp_path, "good.py") == loaded


async def test_a_refused_worker_says_why_and_leaves(tmp_path: Path):
    async with Engine(tmp_path) as engine:
        engine.refuse = "wrong protocol"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).parent.parent / "osmosis_ai" / "worker" / "__main__.py"),
            env={
                **os.environ,
                "OSMOSIS_WORKER_ADDR": engine.address,
                "OSMOSIS_WORKER_TOKEN": "t",
            },
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 3
        assert b"wrong protocol" in errors


async def test_a_token_on_standard_input_is_taken_before_user_code_runs(tmp_path: Path):
    source = workflow("return [{'in': EMPTY, 'env': TOKENS}]", before=READS_INPUT)
    (tmp_path / "main.py").write_text(source)
    async with Engine(tmp_path) as engine:
        arrival = engine.expect_worker("the token")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).parent.parent / "osmosis_ai" / "worker" / "__main__.py"),
            cwd=tmp_path,
            env={
                **os.environ,
                "OSMOSIS_WORKER_ADDR": engine.address,
                "OSMOSIS_WORKER_TOKEN": "stdin",
            },
            stdin=asyncio.subprocess.PIPE,
        )
        engine.processes.append(process)
        assert process.stdin is not None
        process.stdin.write(b"the token")
        process.stdin.close()
        worker = await asyncio.wait_for(arrival, 30)
        await worker.load(tmp_path)
        done = await worker.run()
        assert json.loads(done.samples[0].messages) == [{"in": True, "env": []}]


READS_INPUT = """
import os, sys
EMPTY = sys.stdin.read() == "" and os.read(0, 1) == b""
TOKENS = [name for name in os.environ if name.startswith("OSMOSIS_WORKER")]
"""


async def test_a_worker_reaches_its_engine_over_tcp(tmp_path: Path):
    (tmp_path / "main.py").write_text(ECHO)
    async with Engine(tmp_path) as engine:
        server = await asyncio.start_server(engine._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        worker, _ = await engine.start(tmp_path, OSMOSIS_WORKER_ADDR=f"tcp:127.0.0.1:{port}")
        await worker.load(tmp_path)
        assert isinstance(await worker.run(), RunDone)
        server.close()


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")


@linux
async def test_a_template_forks_workers_that_dial_in(tmp_path: Path):
    source = workflow(
        "print('from child')\nreturn [{'n': random.random(), 'pid': os.getpid()}]",
        before="import os, random\nrandom.seed(7)",
    )
    async with loaded_worker(tmp_path, source) as (template, process, engine):
        answers = []
        pids = []
        for token in ("child-1", "child-2"):
            arrival = engine.expect_worker(token)
            template.send(Fork(token))
            forked = await template.expect(Forked)
            child = await asyncio.wait_for(arrival, 30)
            # What the template forked is the worker's guard, which leads their group.
            assert (forked.token, forked.pid) == (token, parent_of(child.hello.pid))
            assert forked.pid != process.pid
            assert child.hello.features == []
            assert os.getpgid(child.hello.pid) == os.getpgid(forked.pid) == forked.pid
            done = await child.run(rollout_id="r3-0")
            answers += json.loads(done.samples[0].messages)
            pids.append(child.hello.pid)
            await child.printed("\x1er3-0\x1ffrom child")
            assert "\x1er3-0\x1ffrom child" not in template.lines
            if token == "child-1":
                child.send(Shutdown())
                assert await template.expect(ChildExited) == ChildExited(forked.pid, 0, None)
        assert [answer["pid"] for answer in answers] == pids
        assert answers[0]["n"] != answers[1]["n"]
        os.kill(pids[1], signal.SIGKILL)
        assert await template.expect(ChildExited) == ChildExited(forked.pid, None, signal.SIGKILL)


@linux
async def test_the_guard_of_a_worker_adopts_its_orphans_and_holds_nothing(tmp_path: Path):
    leave = """
        answer, question = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(question, str(os.getpid()).encode())
                os.execvp("sleep", ["sleep", "1000"])
            os._exit(0)
        return [{"daemon": int(os.read(answer, 32))}]
    """
    source = workflow(textwrap.dedent(leave).strip(), before="import os")
    async with loaded_worker(tmp_path, source) as (template, _, engine):
        arrival = engine.expect_worker("child-1")
        template.send(Fork("child-1"))
        forked = await template.expect(Forked)
        child = await asyncio.wait_for(arrival, 30)
        done = await child.run(rollout_id="r3-0")
        daemon = json.loads(done.samples[0].messages)[0]["daemon"]
        try:
            assert parent_of(daemon) == forked.pid
            held = {os.readlink(entry) for entry in Path(f"/proc/{forked.pid}/fd").iterdir()}
            assert held == {"/dev/null"}
            os.kill(forked.pid, signal.SIGKILL)
            ended = ChildExited(forked.pid, None, signal.SIGKILL)
            assert await template.expect(ChildExited) == ended
        finally:
            os.kill(daemon, signal.SIGKILL)


def parent_of(pid: int) -> int:
    """Whose child a process is."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@linux
async def test_a_worker_can_not_be_traced_unless_it_is_debugged(tmp_path: Path):
    found = tmp_path / "dumpable"
    note = f"open({str(found)!r}, 'a').write(str(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)))"
    source = workflow("return ctx.prompt", before=f"import ctypes\n{note}")
    async with loaded_worker(tmp_path, source) as (_, _, engine):
        assert found.read_text() == "0"
        project = tmp_path / "project"
        debugged, _ = await engine.start(project, _OSMOSIS_DEBUG="1")
        await debugged.load(project)
        assert found.read_text() == "01"


@linux
async def test_forked_siblings_draw_different_numbers_of_numpy(tmp_path: Path):
    pytest.importorskip("numpy")
    source = workflow(
        "return [{'n': numpy.random.random()}]", before="import numpy\nnumpy.random.seed(7)"
    )
    # Its linear algebra starts threads, which would keep the template from forking.
    options = {"OPENBLAS_NUM_THREADS": "1"}
    drawn = set()
    async with loaded_worker(tmp_path, source, **options) as (template, _, engine):
        for token in ("one", "two"):
            arrival = engine.expect_worker(token)
            template.send(Fork(token))
            await template.expect(Forked, token=token)
            child = await asyncio.wait_for(arrival, 30)
            drawn.add((await child.run()).samples[0].messages)
    assert len(drawn) == 2


@linux
async def test_forked_workers_die_with_their_template(tmp_path: Path):
    async with loaded_worker(tmp_path, ECHO) as (template, process, engine):
        arrival = engine.expect_worker("child")
        template.send(Fork("child"))
        child = await asyncio.wait_for(arrival, 30)
        process.kill()
        await child.closed()
        deadline = time.monotonic() + 30
        while _alive(child.hello.pid) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert not _alive(child.hello.pid)


@linux
async def test_a_template_that_serves_forks_no_more(tmp_path: Path):
    async with loaded_worker(tmp_path, ECHO) as (worker, _, engine):
        arrival = engine.expect_worker("child")
        worker.send(Fork("child"))
        child = await asyncio.wait_for(arrival, 30)
        assert isinstance(await worker.run(), RunDone)
        worker.send(Fork("late"))
        assert (await worker.expect(ForkFailed)).token == "late"
        child.send(Shutdown())
        assert (await worker.expect(ChildExited)).code == 0


@linux
async def test_an_entrypoint_that_starts_a_thread_is_not_forkable(tmp_path: Path):
    source = (
        ECHO
        + "\nimport threading, time\n"
        + ("threading.Thread(target=time.sleep, args=(600,), name='poller', daemon=True).start()\n")
    )
    (tmp_path / "main.py").write_text(source)
    async with Engine(tmp_path) as engine:
        worker, _ = await engine.start(tmp_path)
        loaded = await worker.load(tmp_path)
        assert "poller" in loaded.manifest.not_forkable
        worker.send(Fork("t"))
        failed = await worker.expect(ForkFailed)
        assert (failed.token, "poller" in failed.message) == ("t", True)
        assert isinstance(await worker.run(), RunDone)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
