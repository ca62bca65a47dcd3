"""The parts of the torch trainer that need no torch. The rest runs in `cargo xtask torch`."""

import json
import socket
from pathlib import Path

import pytest

from osmosis_ai.trainer.torch.channel import Channel, ClosedError
from osmosis_ai.trainer.torch.errors import LearnerError
from osmosis_ai.trainer.torch.rows import Loss, Row, microbatches, read_rows
from osmosis_ai.trainer.torch.settings import Lora, Settings


def row(ids: list[int], **changes: object) -> Row:
    length = len(ids)
    columns = {
        "temperatures": [1.0] * length,
        "weights": [0.0] + [0.5] * (length - 1),
        "advantages": [1.0] * length,
        "sampled_logprobs": [-1.0] * length,
        **changes,
    }
    return Row(ids=ids, **columns)  # type: ignore[arg-type]


CLIPPED = Loss("clipped", clip_low=0.2, clip_high=0.2)


@pytest.mark.parametrize(
    ("bad", "loss", "message"),
    [
        (row([1, 9]), CLIPPED, "has token `9`"),
        (row([1] * 5), CLIPPED, "has 5 tokens"),
        (row([1, 2], temperatures=[1.0, 0.0]), CLIPPED, "temperature"),
        (row([1, 2], temperatures=[1.0]), CLIPPED, "2 ids and 1 `temperatures`"),
        (row([1, 2], weights=[1.0, 1.0]), CLIPPED, "first token"),
        (row([1, 2], advantages=[1.0]), CLIPPED, "2 ids and 1 `advantages`"),
        (row([1, 2], sampled_logprobs=[0.0, float("nan")]), CLIPPED, "not finite"),
        (row([1, 2]), Loss("decoupled"), "proximal_logprobs"),
        (row([1, 2]), Loss("clipped", kl_coef=0.1), "reference_logprobs"),
    ],
)
def test_rows_that_make_no_sense_are_refused(bad: Row, loss: Loss, message: str) -> None:
    def check() -> None:
        bad.check(3, vocabulary=9, context=4)
        bad.check_loss(3, loss)

    with pytest.raises(LearnerError, match=message) as refused:
        check()
    assert refused.value.kind == "invalid"
    assert str(refused.value).startswith("row 3 ")


def test_a_number_that_json_cannot_write_is_not_finite() -> None:
    [read] = read_rows([{**row([1, 2]).__dict__, "advantages": [1.0, None]}])
    read.check(0, 9, None)
    with pytest.raises(LearnerError, match="not finite"):
        read.check_loss(0, CLIPPED)


def test_microbatches_hold_every_row_once_and_no_more_tokens_than_allowed() -> None:
    lengths = [3, 50, 7, 7, 2, 30, 8, 120]
    rows = [row([1] * length) for length in lengths]
    batches = microbatches(rows, 64)
    assert sorted(place for batch in batches for place in batch) == list(range(len(rows)))
    for batch in batches:
        longest = max(lengths[place] for place in batch)
        assert len(batch) == 1 or len(batch) * longest <= 64
    assert batches == microbatches(rows, 64)
    assert len(batches) < len(rows)


def test_settings_have_the_defaults_of_the_config() -> None:
    settings = Settings.read({"model": "/m", "lr": 1e-4, "lora": {"rank": 8}})
    assert settings.lora == Lora(rank=8, alpha=16.0)
    assert settings.model == Path("/m")
    assert Settings.read({"model": "/m", "lr": 1e-4, "lora": None}).lora is None
    with pytest.raises(LearnerError, match="dtype"):
        Settings.read({"model": "/m", "lr": 1e-4, "dtype": "int4"})
    for loss, unknown in [
        ({"objective": "ppo"}, "objective `ppo`"),
        ({"objective": "clipped", "kl_estimator": "k1"}, "estimator `k1`"),
        ({"objective": "clipped", "of_tomorrow": 1.0}, "`of_tomorrow`"),
    ]:
        with pytest.raises(LearnerError, match=unknown):
            Loss.read(loss)


def test_messages_go_both_ways_until_the_other_side_has_gone(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen(1)
    channel = Channel(str(tmp_path / "s"))
    other, _ = listener.accept()
    channel.send({"hello": {"protocol": 1}})
    assert json.loads(other.recv(1000)) == {"hello": {"protocol": 1}}
    other.sendall(b'{"call": "open"}\n{"call": "cut')
    assert channel.receive() == {"call": "open"}
    other.close()
    with pytest.raises(ClosedError):
        channel.receive()
    with pytest.raises(ValueError, match="Out of range"):
        channel.send({"loss": float("nan")})
    listener.close()
