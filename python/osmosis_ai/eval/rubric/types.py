"""What a judge says, and why there may be nothing that it said."""

from __future__ import annotations

from dataclasses import dataclass

from osmosis_ai.rollout.errors import OsmosisError


@dataclass(frozen=True)
class RubricResult:
    """A judge's verdict. It can be given to `ctx.set_reward` as it is."""

    # Within the range that was asked for.
    score: float
    explanation: str
    # What the judge said, before it was brought into the range.
    raw_score: float | None = None

    def __float__(self) -> float:
        return self.score


class JudgeError(OsmosisError, RuntimeError):
    """There is no verdict. Nothing was scored, and nothing must be made up."""

    kind = "judge_failed"


class MissingAPIKeyError(JudgeError):
    """It is not known which judge to ask, where it is, or with which key."""

    kind = "judge_unconfigured"


class ProviderRequestError(JudgeError):
    """The judge could not be asked, or refused to answer."""

    kind = "judge_unavailable"

    def __init__(self, provider: str, model: str, detail: str) -> None:
        super().__init__(f"judge `{model}` at {provider}: {detail}")
        self.provider = provider
        self.model = model
        self.detail = detail


class ModelNotFoundError(ProviderRequestError):
    """The endpoint does not know the model."""

    kind = "judge_model_not_found"


class MalformedJudgementError(ProviderRequestError):
    """The judge answered, as often as it was asked, and never with a score."""

    kind = "judge_malformed"
