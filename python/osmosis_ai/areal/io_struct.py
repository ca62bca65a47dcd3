"""What goes into the policy and comes out (`areal.api.io_struct`). Names as in AReaL 1.0.4."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from osmosis_ai.areal.cli_args import GenerationHyperparameters

StopReason = Literal["length", "stop", "tool_calls", "abort"]


def _new_id() -> str:
    return str(uuid.uuid4())


@dataclass
class ModelRequest:
    """Tokens to continue."""

    rid: str = field(default_factory=_new_id)
    input_ids: list[int] = field(default_factory=list)
    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    metadata: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    image_data: list[str] | None = field(default_factory=list)
    processor: Any = None
    vision_msg_vllm: list[Any] | None = None

    def copy(self) -> ModelRequest:
        """A request that can be changed without changing this one."""
        return ModelRequest(
            rid=self.rid,
            input_ids=list(self.input_ids),
            gconfig=self.gconfig.new(),
            metadata=dict(self.metadata),
            tokenizer=self.tokenizer,
            image_data=None if self.image_data is None else list(self.image_data),
            processor=self.processor,
            vision_msg_vllm=None if self.vision_msg_vllm is None else list(self.vision_msg_vllm),
        )


@dataclass
class ModelResponse:
    """The continuation, token by token: its log-probabilities and the versions that made it."""

    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_versions: list[int] = field(default_factory=list)
    stop_reason: StopReason = "stop"
    tokenizer: Any = None
    input_images: list[Any] = field(default_factory=list)
    processor: Any = None
    latency: float = float("inf")
    ttft: float = float("inf")
    itl: list[float] = field(default_factory=list)
    routed_experts: Any = None

    @property
    def input_len(self) -> int:
        """The number of prompt tokens."""
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        """The number of generated tokens."""
        return len(self.output_tokens)

    @property
    def end_with_stop(self) -> bool:
        """Whether the last token is one that the tokenizer ends or pads with."""
        return bool(self.output_tokens) and self.output_tokens[-1] in self._stop_tokens()

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """The generated tokens without the end and padding tokens after them."""
        stop = self._stop_tokens()
        if self.stop_reason in ("length", "abort") or not self.output_tokens:
            return self.output_tokens
        kept = len(self.output_tokens)
        while kept and self.output_tokens[kept - 1] in stop:
            kept -= 1
        if kept == len(self.output_tokens):
            raise ValueError(
                f"`stop_reason` is `{self.stop_reason}` but the last token "
                f"`{self.output_tokens[-1]}` is neither the tokenizer's end nor its padding token"
            )
        if kept == 0:
            raise ValueError("every output token is an end or padding token; nothing would be left")
        return self.output_tokens[:kept]

    def _stop_tokens(self) -> set[int]:
        if self.tokenizer is None:
            raise ValueError("the response has no tokenizer; give one to the ModelRequest")
        tokens = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        return tokens - {None}
