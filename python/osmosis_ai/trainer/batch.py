"""What a trainer gets: training rows, as lists or as padded arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TrainingRow:
    """One path through the calls of a sample. All lists have the length of `ids`."""

    group: int
    """Rows of a group answered the same prompt; its number is unique in the run."""
    row_index: int
    """The dataset row that the group answered."""
    rollout_id: str
    sample_id: str
    row: str
    """`<sample>/<n>`, once in a rollout."""
    ids: list[int]
    loss_mask: list[int]
    """1 where the policy sampled the token and it is trained on in this row."""
    logprobs: list[float]
    """log-softmax(logits / temperature) when the token was sampled; 0 where it was not."""
    versions: list[int]
    """The policy version that sampled the token; -1 where it was not sampled."""
    temperatures: list[float]
    reward: float
    advantage: float


@dataclass(frozen=True)
class BatchArrays:
    """The rows of a batch side by side, padded on the right. Row `i` is `batch.rows[i]`."""

    ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    """1 where there is a token."""
    loss_mask: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int64]
    temperatures: NDArray[np.float32]
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    groups: NDArray[np.int64]


@dataclass(frozen=True)
class TrainingBatch:
    """Complete groups for one update."""

    number: int
    version: int
    """Of the policy when the batch was put together."""
    rows: list[TrainingRow]
    _acknowledge: Callable[[int], None] = field(repr=False, compare=False)

    def ack(self) -> None:
        """Says that the update is made and saved: this batch is never given out again."""
        self._acknowledge(self.number)

    def groups(self) -> dict[int, list[TrainingRow]]:
        """The rows by group, in order."""
        by_group: dict[int, list[TrainingRow]] = {}
        for row in self.rows:
            by_group.setdefault(row.group, []).append(row)
        return by_group

    def arrays(self, *, pad_id: int = 0, multiple_of: int = 1) -> BatchArrays:
        """The rows as numpy arrays, as long as the longest row or the next multiple of a number."""
        try:
            numpy = import_module("numpy")
        except ImportError:
            raise ImportError(
                "`arrays()` needs numpy: `pip install numpy`, or take the lists in `rows`"
            ) from None
        longest = max((len(row.ids) for row in self.rows), default=0)
        length = -(-longest // multiple_of) * multiple_of
        shape = (len(self.rows), length)

        def padded(name: str, dtype: Any, fill: float) -> Any:
            out = numpy.full(shape, fill, dtype=dtype)
            for at, row in enumerate(self.rows):
                values = getattr(row, name)
                out[at, : len(values)] = values
            return out

        def column(name: str, dtype: Any) -> Any:
            return numpy.array([getattr(row, name) for row in self.rows], dtype=dtype)

        lengths = numpy.array([len(row.ids) for row in self.rows], dtype=numpy.int64)
        there = numpy.arange(length)[None, :] < lengths.reshape(-1, 1)
        return BatchArrays(
            ids=padded("ids", numpy.int64, pad_id),
            attention_mask=there.astype(numpy.int64),
            loss_mask=padded("loss_mask", numpy.float32, 0),
            logprobs=padded("logprobs", numpy.float32, 0),
            versions=padded("versions", numpy.int64, -1),
            temperatures=padded("temperatures", numpy.float32, 1),
            rewards=column("reward", numpy.float32),
            advantages=column("advantage", numpy.float32),
            groups=column("group", numpy.int64),
        )


_COLUMNS = tuple(column.name for column in fields(TrainingRow))


def from_json(body: Mapping[str, Any], acknowledge: Callable[[int], None]) -> TrainingBatch:
    """A batch from the JSON of `/v1/training/batches`. Fields that are not known are left out."""
    rows = [TrainingRow(**{name: row[name] for name in _COLUMNS}) for row in body["rows"]]
    return TrainingBatch(body["number"], body["version"], rows, acknowledge)


def from_arrow(body: bytes, acknowledge: Callable[[int], None]) -> TrainingBatch:
    """A batch from an Arrow stream; needs `pyarrow`."""
    table = import_module("pyarrow.ipc").open_stream(body).read_all()
    about = table.schema.metadata
    columns = [table.column(name).to_pylist() for name in _COLUMNS]
    rows = [TrainingRow(*values) for values in zip(*columns, strict=True)]
    number, version = int(about[b"osmosis.batch"]), int(about[b"osmosis.version"])
    return TrainingBatch(number, version, rows, acknowledge)
