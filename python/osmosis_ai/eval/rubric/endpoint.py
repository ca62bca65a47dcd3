"""Where the judge is: the grader's own, or a model that is named in the call."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from osmosis_ai.eval.rubric.types import MissingAPIKeyError
from osmosis_ai.rollout.context import current_judge

# Prefix of a model: start of its variables, where it is otherwise, and whether it wants a key.
# The same providers as in `model_path`.
_PROVIDERS: dict[str, tuple[str, str | None, bool]] = {
    "openai": ("OPENAI", "https://api.openai.com/v1", True),
    "anthropic": ("ANTHROPIC", "https://api.anthropic.com/v1", True),
    "hosted_vllm": ("HOSTED_VLLM", None, False),
    "ollama": ("OLLAMA", "http://localhost:11434/v1", False),
    "lm_studio": ("LM_STUDIO", "http://localhost:1234/v1", False),
    "openrouter": ("OPENROUTER", "https://openrouter.ai/api/v1", True),
    "together_ai": ("TOGETHER", "https://api.together.xyz/v1", True),
    "groq": ("GROQ", "https://api.groq.com/openai/v1", True),
    "mistral": ("MISTRAL", "https://api.mistral.ai/v1", True),
    "deepseek": ("DEEPSEEK", "https://api.deepseek.com/v1", True),
    "gemini": ("GEMINI", "https://generativelanguage.googleapis.com/v1beta/openai", True),
    "xai": ("XAI", "https://api.x.ai/v1", True),
    "fireworks_ai": ("FIREWORKS", "https://api.fireworks.ai/inference/v1", True),
    "cerebras": ("CEREBRAS", "https://api.cerebras.ai/v1", True),
}
_CHAT_COMPLETIONS = "/chat/completions"


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible endpoint and the model to ask there."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """What requests are posted to."""
        base = self.base_url.rstrip("/")
        return base if base.endswith(_CHAT_COMPLETIONS) else base + _CHAT_COMPLETIONS


def resolve(model: str | None, base_url: str | None, api_key: str | None) -> Endpoint:
    """The grader's judge when nothing is named; otherwise what is named."""
    judge = current_judge()
    if model is None and base_url is None:
        if judge is None:
            raise MissingAPIKeyError(
                'there is no judge: name one in the config, `judge_model = "openai/MODEL"` in '
                '`[grader]`, or in the call, `evaluate_rubric(..., model="openai/MODEL")`'
            )
        return Endpoint(judge.base_url, judge.model, api_key or judge.api_key)
    if model is None:
        raise MissingAPIKeyError(f"`base_url` says where the judge is ({base_url}), but no `model`")
    provider, _, name = model.partition("/")
    if base_url is not None:
        # As for `model_path`: the prefix of a provider is no part of the model's name.
        known = provider in _PROVIDERS and name
        key = api_key or (_key_of(provider) if known else _variable("OPENAI_API_KEY"))
        return Endpoint(base_url, name if known else model, key)
    if provider in _PROVIDERS and name:
        return _at_provider(provider, name, api_key)
    base = _variable("OPENAI_BASE_URL")
    if base is None:
        raise MissingAPIKeyError(
            f"judge `{model}` needs `base_url`, the environment variable `OPENAI_BASE_URL` "
            "(in a run: pass it with `[secrets] optional`), or the "
            f"prefix of a provider ({', '.join(_PROVIDERS)})"
        )
    return Endpoint(base, model, api_key or _variable("OPENAI_API_KEY"))


def _at_provider(provider: str, name: str, api_key: str | None) -> Endpoint:
    prefix, default, needs_key = _PROVIDERS[provider]
    base = _variable(f"{prefix}_BASE_URL") or default
    if base is None:
        raise MissingAPIKeyError(
            f"judge `{provider}/{name}` needs the environment variable `{prefix}_BASE_URL` "
            "(in a run: pass it with `[secrets] optional`)"
        )
    key = api_key or _key_of(provider)
    if needs_key and key is None:
        raise MissingAPIKeyError(
            f"judge `{provider}/{name}` needs a key: pass `api_key`, or set `{prefix}_API_KEY` "
            "(in a run: pass it with `[secrets] optional`, or name the judge in `[grader]` instead)"
        )
    return Endpoint(base, name, key)


def _key_of(provider: str) -> str | None:
    return _variable(f"{_PROVIDERS[provider][0]}_API_KEY")


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None
