"""What every agent of this folder is asked for, and what it gets for it."""

from abc import abstractmethod
from typing import Any, Literal

from pydantic import BaseModel, Field

from osmosis_ai.rollout import Grader, GraderContext


class Choice(BaseModel):
    """What was chosen."""

    colour: Literal["red", "green", "blue"]
    size: int = Field(ge=1, le=9)


class StrictChoice(Choice, extra="forbid"):
    """A choice with nothing beside it."""


class ChoiceGrader(Grader):
    """Rewards one size. An answer that does not follow the schema raises, and is not scored."""

    @abstractmethod
    def answer(self, messages: list[Any]) -> Any:
        """The structured answer at the end of a conversation, as JSON or as its value."""

    async def grade(self, ctx: GraderContext) -> None:
        answer = self.answer(ctx.sample.messages)
        if isinstance(answer, str):
            choice = StrictChoice.model_validate_json(answer, strict=True)
        else:
            choice = StrictChoice.model_validate(answer, strict=True)
        ctx.set_reward(1.0 if str(choice.size) == ctx.label else 0.0)
