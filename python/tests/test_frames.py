import json
from pathlib import Path

import msgpack
import pytest

from osmosis_ai.worker import frames

FIXTURES = Path(__file__).resolve().parents[2] / "crates" / "osmosis-core" / "fixtures" / "frames"
GOLDEN = sorted(FIXTURES.glob("*.msgpack"))


def test_there_are_golden_frames():
    assert GOLDEN, f"no golden frames in {FIXTURES}"


def test_every_frame_type_has_a_golden_frame():
    seen = {type(frames.decode_body(path.read_bytes())) for path in GOLDEN}
    assert seen == set(frames._TAGS)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_frame_is_read_and_written_alike(path: Path):
    body = path.read_bytes()
    frame = frames.decode_body(body)
    assert frames.encode_body(frame) == body
    assert msgpack.unpackb(body) == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa3run\x01", b"\x81\xa5nope!\x80", b"\x80"])
def test_garbage_is_a_frame_error(body: bytes):
    with pytest.raises(frames.FrameError):
        frames.decode_body(body)


def test_frames_are_split_at_any_boundary():
    sent = [frames.Cancel(1), frames.Shutdown(), frames.Fork("t")]
    data = b"".join(frames.encode(frame) for frame in sent)
    for size in (1, 2, 3, 7, len(data)):
        buffer, got = bytearray(), []
        for start in range(0, len(data), size):
            buffer += data[start : start + size]
            got += frames.split_frames(buffer)
        assert got == sent
        assert not buffer


def test_a_length_over_the_limit_is_refused_before_anything_is_read():
    with pytest.raises(frames.FrameError, match="over the limit"):
        frames.split_frames(bytearray(b"\xff\xff\xff\xff"))


def test_fields_from_the_future_are_ignored():
    body = msgpack.packb({"cancel": {"task": 4, "later": True}})
    assert frames.decode_body(body) == frames.Cancel(4)


def test_text_that_is_not_unicode_still_leaves_the_process():
    frame = frames.TaskFailed(1, frames.Failure("agent_error", "E", "bad \ud800 text"))
    assert frames.decode_body(frames.encode_body(frame)).failure.message == "bad \\ud800 text"
