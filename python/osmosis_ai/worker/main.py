"""A worker process, from its first connection to its end."""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import Any, NoReturn

from osmosis_ai import project_snapshot
from osmosis_ai.rollout import runtime, workflow_kinds
from osmosis_ai.worker import debugging
from osmosis_ai.worker.children import Children
from osmosis_ai.worker.connection import (
    Connection,
    DisconnectedError,
    RefusedError,
    dial_control,
    dial_output,
)
from osmosis_ai.worker.frames import (
    ADDRESS_VARIABLE,
    TOKEN_ON_STDIN,
    TOKEN_VARIABLE,
    FrameError,
)
from osmosis_ai.worker.guard import go_on_behind_guard
from osmosis_ai.worker.loading import Rollout
from osmosis_ai.worker.output import Output
from osmosis_ai.worker.process import (
    IS_LINUX,
    close_input,
    die_with_parent,
    hide_from_other_processes,
    ignore_interrupts,
    read_input,
    reseed,
)
from osmosis_ai.worker.serving import Server
from osmosis_ai.worker.template import ChildStarts, Leave, Serve, Template

_EXIT_USAGE = 2
_EXIT_NO_ENGINE = 3


def main() -> NoReturn:
    """Runs the worker; never returns."""
    parent = os.getppid()
    address = os.environ.pop(ADDRESS_VARIABLE, "")
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not address or not token:
        _give_up(f"{ADDRESS_VARIABLE} and {TOKEN_VARIABLE} must be set", _EXIT_USAGE)
    if not debugging.enable_if_asked():
        hide_from_other_processes()
    if token == TOKEN_ON_STDIN:
        token = read_input()
    close_input()
    runtime.enter_worker()
    project_snapshot.install()
    for kind in workflow_kinds.registered():
        kind.prepare_process()
    die_with_parent(parent)
    ignore_interrupts()
    try:
        connection, frames = dial_control(address, token, ["fork"] if IS_LINUX else [])
        output = Output(dial_output(address, token))
    except (OSError, ValueError, RefusedError, DisconnectedError, FrameError) as error:
        _give_up(f"no connection to the engine at `{address}`: {error}", _EXIT_NO_ENGINE)
    faulthandler.enable(2)
    children = Children()
    try:
        then = Template(connection, children).run(frames)
    except (DisconnectedError, FrameError):
        _leave(output, 1)
    if isinstance(then, ChildStarts):
        _become_child(then, address, connection, output, children)
    if isinstance(then, Serve):
        _serve(connection, output, then.rollout, children, then.frames)
    assert isinstance(then, Leave)
    _leave(output, 0)


def _become_child(
    start: ChildStarts,
    address: str,
    inherited: Connection,
    output: Output,
    siblings: Children,
) -> NoReturn:
    try:
        go_on_behind_guard(start.template_pid)
        inherited.close()
        siblings.forget_all()
        reseed()
        connection, frames = dial_control(address, start.token, [])
        output.reconnect(dial_output(address, start.token))
    except (OSError, RefusedError, DisconnectedError, FrameError) as error:
        output.stderr.write(f"osmosis worker: no connection to the engine: {error}\n")
        _leave(output, _EXIT_NO_ENGINE)
    _serve(connection, output, start.rollout, Children(), frames)


def _serve(
    connection: Connection,
    output: Output,
    rollout: Rollout,
    children: Children,
    frames: list[Any],
) -> NoReturn:
    Server(connection, output, rollout, children).serve(frames)
    _leave(output, 0)


def _leave(output: Output, code: int) -> NoReturn:
    output.close()
    os._exit(code)


def _give_up(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"osmosis worker: {message}\n")
    sys.stderr.flush()
    os._exit(code)
