"""The worker protocol's frames, as in `osmosis_core::frame`.

A frame is a big-endian `u32` length and that many bytes of msgpack: a map with one key, the frame's
type, whose value is a map of its fields. User data crosses as JSON text.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgpack

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024
ADDRESS_VARIABLE = "OSMOSIS_WORKER_ADDR"
TOKEN_VARIABLE = "OSMOSIS_WORKER_TOKEN"
# The token is on standard input: other processes can read an environment.
TOKEN_ON_STDIN = "stdin"

_LENGTH = struct.Struct(">I")
# Fields that are left out, rather than nil, when they are None.
_OMITTED = {"omit_none": True}


class FrameError(Exception):
    """Bytes that are not a frame, or a frame that is too large to send."""


@dataclass(frozen=True)
class Sample:
    """What one source of a rollout produced, and what the grader scored."""

    id: str
    messages: str
    reward: float | None = field(default=None, metadata=_OMITTED)
    remove_sample: bool = False
    metrics: str | None = field(default=None, metadata=_OMITTED)
    extra_fields: str | None = field(default=None, metadata=_OMITTED)


@dataclass(frozen=True)
class Failure:
    """Something that went wrong in user code."""

    category: str
    kind: str
    message: str
    traceback: str | None = field(default=None, metadata=_OMITTED)


@dataclass(frozen=True)
class Found:
    """A class of the user's, and how many executions of it may run at once."""

    name: str
    file: str
    line: int
    config: str | None
    max_concurrent: int | None


@dataclass(frozen=True)
class Manifest:
    """What was found in the entrypoint."""

    workflow: Found
    grader: Found | None
    warnings: list[str]
    not_forkable: str | None
    # Set when the workflow takes whole rows and is its own grader.
    self_graded: bool | None = field(default=None, metadata=_OMITTED)
    # Warnings that matter only to whoever serves the project.
    serve_warnings: list[str] | None = field(default=None, metadata=_OMITTED)


@dataclass(frozen=True)
class Problem:
    """One reason why an entrypoint can't be used."""

    code: str
    message: str
    hint: str | None
    traceback: str | None


# From the worker.


@dataclass(frozen=True)
class Hello:
    """The first frame of a connection."""

    protocol: int
    sdk: str
    features: list[str]
    token: str
    pid: int
    channel: str


@dataclass(frozen=True)
class Loaded:
    """The entrypoint was imported and is fit to run."""

    manifest: Manifest


@dataclass(frozen=True)
class LoadFailed:
    """The entrypoint can't be used. All problems at once."""

    problems: list[Problem]


@dataclass(frozen=True)
class Forked:
    """A template process forked a worker, which will dial in on its own."""

    token: str
    pid: int


@dataclass(frozen=True)
class ForkFailed:
    """A template process could not fork."""

    token: str
    message: str


@dataclass(frozen=True)
class ChildExited:
    """A process forked by the template ended."""

    pid: int
    code: int | None
    signal: int | None


@dataclass(frozen=True)
class Started:
    """User code of the task starts executing now."""

    task: int


@dataclass(frozen=True)
class InteractionReward:
    """What a workflow says one model call was worth."""

    completion: str
    reward: float


@dataclass(frozen=True)
class RunDone:
    """The workflow returned."""

    task: int
    samples: list[Sample]
    metrics: str | None
    # From a workflow that is its own grader and rewards single model calls.
    interactions: list[InteractionReward] | None = field(default=None, metadata=_OMITTED)


@dataclass(frozen=True)
class GradeDone:
    """The grader returned; the samples carry rewards."""

    task: int
    samples: list[Sample]
    # Rewards of the single turns of samples, by sample id.
    turn_rewards: dict[str, list[float]] | None = field(default=None, metadata=_OMITTED)


@dataclass(frozen=True)
class Rejected:
    """The workflow declined to be scored."""

    task: int
    reason: str


@dataclass(frozen=True)
class TaskFailed:
    """User code raised."""

    task: int
    failure: Failure


@dataclass(frozen=True)
class TaskCancelled:
    """The task was cancelled on request and is over."""

    task: int


@dataclass(frozen=True)
class LoopBlocked:
    """The event loop has not turned for a while: where it hangs."""

    blocked_ms: int
    stack: str
    task: int | None


@dataclass(frozen=True)
class LoopUnblocked:
    """The event loop turns: again after a `LoopBlocked`, or to answer a `Cancel`."""


# To the worker.


@dataclass(frozen=True)
class Welcome:
    """The hello was accepted."""

    worker: int


@dataclass(frozen=True)
class Refused:
    """The hello was not accepted; the connection closes."""

    reason: str


@dataclass(frozen=True)
class Load:
    """Import the entrypoint and check it."""

    project_path: str
    entrypoint: str
    workflow: str
    grader: str


@dataclass(frozen=True)
class Fork:
    """To a template: fork a worker that dials in with this token."""

    token: str


@dataclass(frozen=True)
class Run:
    """Run the workflow on one row."""

    task: int
    rollout_id: str
    prompt: str
    metadata: str | None
    chat_completions_url: str
    api_key: str
    artifacts_dir: str | None
    # The whole row, for a workflow that is its own grader.
    row: str | None = field(default=None, metadata=_OMITTED)
    is_eval: bool | None = field(default=None, metadata=_OMITTED)
    # For clients that the workflow gives no address; what they ask is never trained on.
    other_api_key: str | None = field(default=None, repr=False, metadata=_OMITTED)


@dataclass(frozen=True)
class JudgeAccess:
    """A model that the grader may ask while it grades one rollout."""

    base_url: str
    api_key: str = field(repr=False)
    model: str


@dataclass(frozen=True)
class Grade:
    """Grade the samples of one rollout."""

    task: int
    rollout_id: str
    label: str | None
    samples: list[Sample]
    metadata: str | None
    artifacts_dir: str | None
    project_path: str
    judge: JudgeAccess | None = field(default=None, metadata=_OMITTED)
    # How many turns each sample has, by its id.
    turns: dict[str, int] | None = field(default=None, metadata=_OMITTED)


@dataclass(frozen=True)
class Cancel:
    """Cancel one task."""

    task: int


@dataclass(frozen=True)
class Shutdown:
    """Finish nothing, take nothing, leave."""


_FROM_WORKER: tuple[type[Any], ...] = (
    Hello,
    Loaded,
    LoadFailed,
    Forked,
    ForkFailed,
    ChildExited,
    Started,
    RunDone,
    GradeDone,
    Rejected,
    TaskFailed,
    TaskCancelled,
    LoopBlocked,
    LoopUnblocked,
)
_TO_WORKER: tuple[type[Any], ...] = (Welcome, Refused, Load, Fork, Run, Grade, Cancel, Shutdown)


def _tag(cls: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_TAGS: dict[type, str] = {cls: _tag(cls) for cls in (*_FROM_WORKER, *_TO_WORKER)}
_TYPES: dict[str, type[Any]] = {tag: cls for cls, tag in _TAGS.items()}


def encode_body(frame: Any) -> bytes:
    """The msgpack body of a frame, without its length."""
    body: bytes = msgpack.packb(
        {_TAGS[type(frame)]: _to_wire(frame)}, unicode_errors="backslashreplace"
    )
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return body


def encode(frame: Any) -> bytes:
    """A whole frame: length and body."""
    body = encode_body(frame)
    return _LENGTH.pack(len(body)) + body


def decode_body(body: bytes) -> Any:
    """Reads the msgpack body of a frame."""
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=True)
        ((tag, fields),) = message.items()
        return _from_wire(_TYPES[tag], fields)
    except Exception as error:
        raise FrameError(f"not a frame: {type(error).__name__}: {error}") from None


def split_frames(buffer: bytearray) -> list[Any]:
    """Takes the complete frames off the front of the buffer."""
    frames = []
    start = 0
    while len(buffer) - start >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(buffer, start)
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
        end = start + _LENGTH.size + length
        if len(buffer) < end:
            break
        frames.append(decode_body(bytes(buffer[start + _LENGTH.size : end])))
        start = end
    del buffer[:start]
    return frames


def _to_wire(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_wire(item) for item in value]
    cls: Any = type(value)
    if not hasattr(cls, "__dataclass_fields__"):
        return value
    wire = {}
    for name, omit_none, inner in _fields(cls):
        item = getattr(value, name)
        if item is not None or not omit_none:
            wire[name] = item if inner is None else _to_wire(item)
    return wire


def _from_wire(cls: Any, fields: dict[str, Any]) -> Any:
    # Fields that we do not know are ignored, as the other side ignores ours.
    values = {}
    for name, _, inner in _fields(cls):
        if name in fields:
            value = fields[name]
            if inner is not None and value is not None:
                value = (
                    [_from_wire(inner, item) for item in value]
                    if isinstance(value, list)
                    else _from_wire(inner, value)
                )
            values[name] = value
    return cls(**values)


@cache
def _fields(cls: Any) -> list[tuple[str, bool, type | None]]:
    """Name, whether None is left out, and the dataclass inside (also of a list's items)."""
    hints = typing.get_type_hints(cls)
    return [
        (f.name, bool(f.metadata.get("omit_none")), _dataclass_in(hints[f.name]))
        for f in dataclasses.fields(cls)
    ]


def _dataclass_in(hint: Any) -> type | None:
    if dataclasses.is_dataclass(hint):
        return typing.cast(type, hint)
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is list:
        for argument in typing.get_args(hint):
            found = _dataclass_in(argument)
            if found is not None:
                return found
    return None
