"""What can become of a reward other than its value."""

from __future__ import annotations

from osmosis_ai.rollout.errors import OsmosisError


class RewardError(OsmosisError):
    """There is no reward. Never turned into a number."""

    kind = "reward_failed"


class RewardTimeout(RewardError, TimeoutError):
    """The function ran for longer than its `timeout_seconds`; its process was killed."""

    kind = "reward_timeout"


class RewardCrash(RewardError, RuntimeError):
    """The process of the function ended, as often as it was tried."""

    kind = "reward_crash"


class RewardRaised(RewardError, RuntimeError):
    """The function raised something that can't leave its process, or returned such a value."""

    kind = "reward_raised"


class RewardNotPicklable(RewardError, TypeError):
    """The function or an argument can't be sent to another process."""

    kind = "reward_not_picklable"


class RewardTraceback(Exception):
    """Where in its own process the function raised; the cause of what the caller gets."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"
