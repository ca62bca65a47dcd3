"""What a trainer gets, without an engine; with one: the tests of `osmosis train serve`."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from osmosis_ai.trainer import TrainerClient, TrainerUnreachableError
from osmosis_ai.trainer.batch import from_json


def row(group: int, ids: list[int], **more: Any) -> dict[str, Any]:
    length = len(ids)
    return {
        "group": group,
        "row_index": group,
        "rollout_id": f"r{group}-0",
        "sample_id": "main",
        "row": "main/0",
        "ids": ids,
        "loss_mask": [0] + [1] * (length - 1),
        "logprobs": [0.0] + [-0.5] * (length - 1),
        "versions": [-1] + [3] * (length - 1),
        "temperatures": [1.0] * length,
        "reward": 1.0,
        "advantage": 0.5,
        **more,
    }


def test_a_batch_is_padded_on_the_right_and_acknowledged_by_its_number() -> None:
    acknowledged: list[int] = []
    body = {"number": 4, "version": 3, "rows": [row(1, [7, 8]), row(1, [7, 8, 9], field="new")]}
    batch = from_json(body, acknowledged.append)
    arrays = batch.arrays(pad_id=5, multiple_of=4)
    assert arrays.ids.tolist() == [[7, 8, 5, 5], [7, 8, 9, 5]]
    assert arrays.attention_mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert arrays.loss_mask.tolist() == [[0, 1, 0, 0], [0, 1, 1, 0]]
    assert arrays.versions.tolist() == [[-1, 3, -1, -1], [-1, 3, 3, -1]]
    assert arrays.temperatures.tolist()[0] == [1, 1, 1, 1]
    assert arrays.advantages.tolist() == [0.5, 0.5]
    batch.ack()
    assert acknowledged == [4]


def test_rows_are_found_by_their_group_in_order() -> None:
    rows = [row(2, [1, 2]), row(1, [3, 4]), row(2, [5, 6])]
    batch = from_json({"number": 1, "version": 0, "rows": rows}, lambda _: None)
    by_group = {group: [one.ids for one in rows] for group, rows in batch.groups().items()}
    assert by_group == {2: [[1, 2], [5, 6]], 1: [[3, 4]]}


def test_a_batch_without_rows_has_arrays_too() -> None:
    batch = from_json({"number": 1, "version": 0, "rows": []}, lambda _: None)
    assert batch.arrays().ids.shape == (0, 0)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSMOSIS_TRAINER_URL", raising=False)
    monkeypatch.delenv("OSMOSIS_CONTROL_KEY", raising=False)
    with pytest.raises(ValueError, match="OSMOSIS_TRAINER_URL"):
        TrainerClient()
    with pytest.raises(ValueError, match="OSMOSIS_CONTROL_KEY"):
        TrainerClient("http://127.0.0.1:1/v1")
    with pytest.raises(ValueError, match="not an http"):
        TrainerClient("127.0.0.1:1", "key")


def test_an_engine_that_is_not_there_is_an_error_that_says_so_and_not_the_key() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = TrainerClient(f"http://127.0.0.1:{port}/v1", "secret-key", retry_for=0.0)
    with pytest.raises(TrainerUnreachableError, match="is `osmosis train serve` running") as caught:
        client.version()
    assert "secret-key" not in f"{caught.value} {client!r}"
