"""What can go wrong between user code and the engine, told so that a person can fix it."""

from __future__ import annotations


class OsmosisError(Exception):
    """Base of the errors this package raises; `kind` is the stable name in reports."""

    kind: str | None = None


class NoRolloutContextError(OsmosisError, RuntimeError):
    """The policy model was called where no rollout is running."""


class NoSessionError(OsmosisError, RuntimeError):
    """A model call could not be attributed to a sample."""


class NoModelError(OsmosisError, RuntimeError):
    """An agent of the rollout has no model, and the framework's own default has no key."""


class ForeignSessionError(OsmosisError, RuntimeError):
    """A session was used in a rollout it is not registered with."""


class NoSampleError(OsmosisError):
    """The workflow ended without anything that could be graded."""

    kind = "no_sample"


class WorkflowReturnError(OsmosisError, TypeError):
    """`run` returned something that is neither messages nor an output."""

    kind = "invalid_return"


class InvalidRewardError(OsmosisError, ValueError):
    """A reward that is not a finite number."""

    kind = "invalid_reward"


class UngradedSampleError(OsmosisError):
    """`grade` ended and a kept sample has no reward."""

    kind = "ungraded_sample"


class InvalidSampleIdError(OsmosisError, ValueError):
    """A sample name that the engine can't carry."""

    kind = "invalid_sample_id"


class NotJsonError(OsmosisError, ValueError):
    """A value that JSON can't say."""

    kind = "not_json"


class ResultTooLargeError(OsmosisError, ValueError):
    """A result that is over the frame limit."""

    kind = "result_too_large"
