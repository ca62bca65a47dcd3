"""The settings of one generation (`areal.api.cli_args`). Names and defaults are AReaL 1.0.4's."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

_LENGTH_NAMES = {
    "completions": "max_completion_tokens",
    "responses": "max_output_tokens",
    "openai-agents": "max_tokens",
}
# What OpenAI's own API has a parameter for, besides the two that change their name.
_OPENAI_NAMES = ("top_p", "temperature", "stop", "frequency_penalty")


@dataclass
class GenerationHyperparameters:
    """How the policy samples. `max_tokens` counts the prompt too, `max_new_tokens` does not."""

    n_samples: int = 1
    max_new_tokens: int = 16384
    min_new_tokens: int = 0
    max_tokens: int = 32768
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 100_000_000
    temperature: float = 1.0
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stop: list[str] | None = None
    frequency_penalty: float = 0.0
    lora_name: str = "default_lora"
    use_beam_search: bool = False

    def new(self, **changes: Any) -> GenerationHyperparameters:
        """A copy with some settings changed; no list is shared with this one."""
        copied: dict[str, Any] = {"stop_token_ids": list(self.stop_token_ids)}
        if self.stop is not None:
            copied["stop"] = list(self.stop)
        return dataclasses.replace(self, **{**copied, **changes})

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> GenerationHyperparameters:
        """A copy that also stops at the tokenizer's padding and end tokens."""
        stop = list(self.stop_token_ids)
        for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
            if token not in stop:
                stop.append(token)
        return self.new(stop_token_ids=stop)

    def to_openai_args_dict(
        self, exclude_args: list[str] | None = None, api_format: str = "completions"
    ) -> dict[str, Any]:
        """What OpenAI's API can say of this, under its own names."""
        length = _LENGTH_NAMES.get(api_format)
        if length is None:
            known = ", ".join(f"`{name}`" for name in _LENGTH_NAMES)
            raise ValueError(f"unknown `api_format` `{api_format}`; it is one of {known}")
        names = {"n_samples": "n", "max_new_tokens": length, **{n: n for n in _OPENAI_NAMES}}
        left_out = set(exclude_args or ())
        return {
            theirs: getattr(self, ours) for ours, theirs in names.items() if ours not in left_out
        }

    def to_openai_completions_args_dict(
        self, exclude_args: list[str] | None = None
    ) -> dict[str, Any]:
        """For `chat.completions.create`."""
        return self.to_openai_args_dict(exclude_args, "completions")

    def to_openai_responses_args_dict(
        self, exclude_args: list[str] | None = None
    ) -> dict[str, Any]:
        """For `responses.create`."""
        return self.to_openai_args_dict(exclude_args, "responses")

    def to_openai_agents_model_settings_dict(
        self, exclude_args: list[str] | None = None
    ) -> dict[str, Any]:
        """For `ModelSettings` of the OpenAI Agents SDK."""
        return self.to_openai_args_dict(exclude_args, "openai-agents")
