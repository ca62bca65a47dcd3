"""The model that is trained: loading it, adapters, and its files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from .errors import LearnerError, of_writing
from .settings import Settings

ADAPTER_FILE = "adapter_model.safetensors"
# Of a model folder, what text becomes ids by, and its chat template.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
# What one pass may take for its logits: 4 bytes each, and as much again for their gradient.
_LOGITS_PER_PASS = 1 << 27
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Policy:
    """A causal language model on one device, whole or frozen below adapters.

    With adapters, the frozen weights are in `dtype` and the adapters in float32. Without, the
    weights are in float32 and `dtype` is that of the computation.
    """

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings = settings
        self.device = device
        # The start of the adapters follows from the seed: a process that is started again has the
        # same ones.
        torch.manual_seed(settings.seed)
        lora = settings.lora
        weights = _DTYPES[settings.dtype] if lora else torch.float32
        model = _load(settings.model, weights)
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        self.context: int | None = getattr(
            model.config.get_text_config(), "max_position_embeddings", None
        )
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        if lora is not None:
            model = get_peft_model(
                model,
                LoraConfig(
                    task_type="CAUSAL_LM",
                    r=lora.rank,
                    lora_alpha=lora.alpha,
                    lora_dropout=lora.dropout,
                    target_modules=lora.target_modules or "all-linear",
                ),
            )
        self.model: Any = model.to(device)
        self.model.eval()
        self._reference: Any = None

    def trained(self) -> dict[str, torch.Tensor]:
        """The parameters that change, by name, in a fixed order."""
        return {
            name: parameter
            for name, parameter in sorted(self.model.named_parameters())
            if parameter.requires_grad
        }

    def tokens_per_pass(self) -> int:
        """Most tokens in one pass, padding included."""
        if self.settings.microbatch_tokens is not None:
            return self.settings.microbatch_tokens
        return min(max(_LOGITS_PER_PASS // self.vocabulary, 256), 16384)

    def logits(self, model: Any, ids: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
        """Logits of the next tokens, in float32."""
        reduced = self.settings.dtype == "bfloat16" and self.settings.lora is None
        with torch.autocast(self.device.type, torch.bfloat16, enabled=reduced):
            output = model(input_ids=ids, attention_mask=attention, use_cache=False)
        return output.logits.float()

    @contextlib.contextmanager
    def reference(self) -> Iterator[Any]:
        """The model that training started from."""
        if self.settings.lora is not None:
            with self.model.disable_adapter():
                yield self.model
            return
        if self._reference is None:
            start = _load(self.settings.model, torch.float32).to(self.device).eval()
            self._reference = start.requires_grad_(False)
        yield self._reference

    def save(self, folder: Path) -> None:
        """Writes a model folder that transformers, peft and vLLM open; on disk when this returns.

        The folder does not exist, or is empty, and appears whole or not at all.
        """
        partial = folder.with_name(f".{folder.name}.partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            if self.settings.lora is None:
                self.model.save_pretrained(partial)
            else:
                self._save_adapter(partial)
            self._copy_tokenizer(partial)
            for file in partial.iterdir():
                sync(file)
            sync(partial)
            if folder.exists():
                folder.rmdir()
            partial.rename(folder)
            sync(folder.parent)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise of_writing(error, f"the model can't be saved to `{folder}`") from error

    def _save_adapter(self, folder: Path) -> None:
        config = self.model.peft_config["default"]
        # As a path that others find, and not one of this machine's working directory.
        config.base_model_name_or_path = str(self.settings.model)
        config.inference_mode = True
        config.save_pretrained(folder)
        config.inference_mode = False
        tensors = get_peft_model_state_dict(self.model, save_embedding_layers=False)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(tensors, folder / ADAPTER_FILE, metadata={"format": "pt"})

    def _copy_tokenizer(self, folder: Path) -> None:
        for name in _TOKENIZER_FILES:
            file = self.settings.model / name
            if file.is_file() and not (folder / name).exists():
                shutil.copyfile(file, folder / name)

    def read(self, folder: Path) -> dict[str, torch.Tensor]:
        """The trained parameters in a folder that `save` wrote, checked, but not put in place."""
        try:
            if self.settings.lora is None:
                saved = dict(_load(folder, torch.float32).named_parameters())
            else:
                saved = load_file(folder / ADAPTER_FILE)
        except (OSError, ValueError, SafetensorError) as error:
            raise LearnerError("unreadable", f"`{folder}`: {error}") from error
        now = self.trained() if self.settings.lora is None else self._adapter()
        for name, parameter in now.items():
            found = saved.get(name)
            if found is None or found.shape != parameter.shape:
                raise LearnerError(
                    "unreadable", f"`{folder}`: `{name}` is missing or of another shape"
                )
            if not bool(torch.isfinite(found).all()):
                raise LearnerError(
                    "not_finite", f"`{folder}`: `{name}` has a number that is not finite"
                )
        return {name: saved[name].detach() for name in now}

    def put(self, parameters: dict[str, torch.Tensor]) -> None:
        """Puts parameters in place that `read` returned."""
        if self.settings.lora is None:
            trained = self.trained()
            with torch.no_grad():
                for name, tensor in parameters.items():
                    trained[name].copy_(tensor)
        else:
            set_peft_model_state_dict(self.model, parameters)

    def _adapter(self) -> dict[str, torch.Tensor]:
        return dict(get_peft_model_state_dict(self.model, save_embedding_layers=False))


def _load(folder: Path, dtype: torch.dtype) -> Any:
    if not (folder / "config.json").is_file():
        raise LearnerError("unreadable", f"`{folder}` has no `config.json`")
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError, json.JSONDecodeError) as error:
        raise LearnerError("unreadable", f"`{folder}` can't be opened: {error}") from error


def sync(path: Path) -> None:
    """Has a file or folder on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
