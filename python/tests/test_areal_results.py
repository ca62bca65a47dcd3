"""What AReaL-style workflows return, read."""

from __future__ import annotations

import math
from typing import Any

import pytest

from osmosis_ai.areal.arrays import plain
from osmosis_ai.areal.io_struct import ModelResponse
from osmosis_ai.areal.results import (
    Episode,
    LastReward,
    Rejected,
    RewardsById,
    Sequence,
    read_agent_reward,
    read_episode,
)
from osmosis_ai.rollout.errors import InvalidRewardError, WorkflowReturnError

TOKENS = {"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1]}


class Tensor:
    """What torch's tensors have in common with what is read here: `tolist`."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def tolist(self) -> Any:
        return self._values


class TrackedTensor(Tensor):
    """As torch's tensors that have a gradient: only `tolist` can be called without a detour."""

    def __array__(self) -> Any:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def __float__(self) -> float:
        raise AssertionError("a warning of torch's for each number")


class Array:
    """Only the array protocol."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array__(self) -> Tensor:
        return Tensor(self._values)


def sequences(returned: Any) -> list[Sequence]:
    episode = read_episode(returned)
    assert isinstance(episode, Episode)
    return episode.sequences


def numpy_array(values: Any) -> Any:
    return pytest.importorskip("numpy").array(values)


def torch_tensor(values: Any) -> Any:
    return pytest.importorskip("torch", reason="several gigabytes").tensor(values)


def torch_tensor_with_gradient(values: Any) -> Any:
    tensor = torch_tensor(values)
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


LIBRARIES = [
    *(list, tuple, Tensor, TrackedTensor, Array, numpy_array),
    *(torch_tensor, torch_tensor_with_gradient),
]


@pytest.mark.parametrize("make", LIBRARIES)
def test_arrays_of_every_library_are_read_and_padding_is_cut(make: Any) -> None:
    returned = {
        "input_ids": make([[5, 6, 7, 8, 0], [9, 10, 0, 0, 0]]),
        "attention_mask": make([[True] * 4 + [False], [True, True, False, False, False]]),
        "loss_mask": make([[0, 0, 1, 1, 0], [0, 1, 0, 0, 0]]),
        "logprobs": make([[0.0, 0.0, -0.5, -0.25, 0.0], [0.0, -1.5, 0.0, 0.0, 0.0]]),
        "versions": make([[-1, -1, 3, 4, -1], [-1, 3, -1, -1, -1]]),
        "rewards": make([1.0, 0.5]),
    }
    assert sequences(returned) == [
        Sequence([5, 6, 7, 8], [False, False, True, True], [0, 0, -0.5, -0.25], [-1, -1, 3, 4], 1),
        Sequence([9, 10], [False, True], [0, -1.5], [-1, 3], 0.5),
    ]


@pytest.mark.parametrize("rewards", [1, True, 1.0, [1.0], [[1.0]], Tensor([1.0]), Tensor(1.0)])
@pytest.mark.parametrize("wrap", [lambda row: row, lambda row: [row]])
def test_one_sequence_may_come_without_a_batch(rewards: Any, wrap: Any) -> None:
    returned = {name: wrap(row) for name, row in TOKENS.items()}
    assert sequences({**returned, "rewards": rewards}) == [
        Sequence([5, 6, 7], None, None, None, 1.0)
    ]


def test_padding_before_the_sequence_is_cut_too() -> None:
    returned = {"input_ids": [0, 0, 5], "attention_mask": [0, 0, 1], "versions": [-1, -1, 2]}
    assert sequences(returned) == [Sequence([5], None, None, [2], None)]


def test_arrays_that_nothing_reads_are_named() -> None:
    episode = read_episode({**TOKENS, "multi_modal_input": [{}], "rewards": 1})
    assert isinstance(episode, Episode)
    assert episode.left_out == ["multi_modal_input"]


def test_none_rejects() -> None:
    assert read_episode(None) == Rejected()
    assert read_agent_reward(None) == Rejected()


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (1.0, "returned a value of type `float`; it must return a dict of arrays"),
        ({}, "`input_ids` is missing (there is nothing); `attention_mask` is missing"),
        ({"input_ids": [1]}, "`attention_mask` is missing (there is `input_ids`)"),
        ({**TOKENS, "attention_mask": [1, 1]}, "`attention_mask` is [1, 2], `input_ids` is [1, 3]"),
        ({**TOKENS, "logprobs": [[0.0] * 3] * 2}, "`logprobs` is [2, 3], `input_ids` is [1, 3]"),
        ({**TOKENS, "logprobs": [0.0, math.nan, 0.0]}, "`logprobs` holds `nan` at position 1"),
        ({**TOKENS, "logprobs": [0.0, -math.inf, 0]}, "`logprobs` holds `-inf` at position 1"),
        ({**TOKENS, "loss_mask": [0, 2, 0]}, "`loss_mask` holds `2` at position 1; a mask has"),
        ({**TOKENS, "attention_mask": [1, 0, 1]}, "sequence 0 has a gap inside"),
        ({**TOKENS, "attention_mask": [0, 0, 0]}, "sequence 0 keeps no token"),
        ({**TOKENS, "versions": [-1, 0, -2]}, "`versions` holds `-2` at position 2; -1 is the"),
        ({**TOKENS, "input_ids": [1, -5, 2]}, "`input_ids` holds `-5` at position 1, which is no"),
        ({**TOKENS, "input_ids": [1, 1.5, 2]}, "`input_ids` holds `1.5` at position 1, which is"),
        ({**TOKENS, "input_ids": "abc"}, "`input_ids`: a value of type `str` is no array"),
        ({**TOKENS, "input_ids": [[1, 2, 3], [4]]}, "`input_ids`: its rows differ in length"),
        ({**TOKENS, "input_ids": [[[1]]]}, "`input_ids` has 3 dimensions; it must be [B, T]"),
        ({"input_ids": [[]], "attention_mask": [[]]}, "`input_ids` is empty"),
        ({**TOKENS, "rewards": [1, 2]}, "`rewards` has 2 numbers for 1 sequences"),
        ({**TOKENS, "rewards": math.nan}, "`rewards`: a reward must be a finite number"),
        ({**TOKENS, "rewards": [[1, 2]]}, "`rewards` has 2 dimensions; it has one number per"),
        ({**TOKENS, "rewards": {"a": 1}}, "`rewards`: a value of type `dict` is no array"),
    ],
)
def test_unusable_arrays_are_told_apart(returned: Any, text: str) -> None:
    with pytest.raises(WorkflowReturnError) as raised:
        read_episode(returned)
    assert text in str(raised.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(WorkflowReturnError) as raised:
        read_episode({"input_ids": [1, -1], "logprobs": [math.nan, 0], "rewards": [1]})
    assert str(raised.value).count(";") == 2


class Interaction:
    def __init__(self, model_response: Any, reward: Any) -> None:
        self.model_response = model_response
        self.reward = reward


def test_interactions_become_sequences_with_their_ids() -> None:
    response = ModelResponse([1, 2], [3, 4], [-0.5, -0.25], [0, 1])
    returned = {"chat-1": Interaction(response, 1), "chat-2": Interaction(response, None)}
    assert sequences(returned) == [
        Sequence(
            input_ids=[1, 2, 3, 4],
            loss_mask=[False, False, True, True],
            logprobs=[0, 0, -0.5, -0.25],
            versions=[-1, -1, 0, 1],
            reward=reward,
            id=name,
        )
        for name, reward in (("chat-1", 1.0), ("chat-2", None))
    ]


def test_an_interaction_with_missing_logprobs_is_named() -> None:
    broken = ModelResponse([1, 2], [3, 4], [-0.5], [0, 1])
    with pytest.raises(
        WorkflowReturnError, match=r"interaction `chat-9`: .*`logprobs` is \[1, 3\]"
    ):
        read_episode({"chat-9": Interaction(broken, 1)})
    with pytest.raises(WorkflowReturnError, match=r"interaction `chat-9`: "):
        read_episode({"chat-9": Interaction(None, 1)})


@pytest.mark.parametrize(
    "returned", [1, 1.0, True, Tensor(1.0), Tensor([[1.0]])], ids=lambda v: type(v).__name__
)
def test_a_number_is_the_last_reward(returned: Any) -> None:
    assert read_agent_reward(returned) == LastReward(1.0)


def test_torch_numbers_are_numbers() -> None:
    torch = pytest.importorskip("torch", reason="several gigabytes")
    for kind in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert read_agent_reward(torch.tensor(0.5, dtype=kind)) == LastReward(0.5)
        assert read_agent_reward({"a": torch.tensor([0.5], dtype=kind)}) == RewardsById({"a": 0.5})
    assert read_agent_reward(torch.tensor([1.0], requires_grad=True)) == LastReward(1.0)
    assert read_agent_reward(torch.tensor(True)) == LastReward(1.0)
    assert plain([torch.tensor(1), torch.tensor(2)]) == [1, 2]
    assert plain(torch.tensor([[1, 2], [3, 4]]).T) == [[1, 3], [2, 4]]


def test_numpy_numbers_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    for number in (numpy.float32(1), numpy.int64(1), numpy.bool_(True), numpy.array([1.0])):
        assert read_agent_reward(number) == LastReward(1.0)


def test_rewards_by_completion_id() -> None:
    assert read_agent_reward({"a": 1, "b": Tensor(0.5)}) == RewardsById({"a": 1.0, "b": 0.5})


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("1", "`run` must return a finite number, a dict of them by completion id, or None"),
        (math.nan, "not `nan`"),
        ([1.0], "of type list"),
        (Tensor([1.0, 2.0]), "of type list"),
        (
            {"a": math.inf, "b": "x", 3: 1},
            "`a`: a reward must be a finite number between -1e15 and 1e15, not `inf`; `b`:",
        ),
        ({3: 1}, "`3` is no completion id"),
    ],
)
def test_other_grades_are_refused(returned: Any, text: str) -> None:
    with pytest.raises(InvalidRewardError) as raised:
        read_agent_reward(returned)
    assert text in str(raised.value)


def test_an_empty_dict_is_no_grade() -> None:
    with pytest.raises(WorkflowReturnError, match="return None to reject"):
        read_agent_reward({})
