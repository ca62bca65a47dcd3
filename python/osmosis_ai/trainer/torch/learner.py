"""Updates: passes over microbatches, one step of AdamW, and its state on disk."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from .errors import LearnerError, of_writing
from .objective import Tally, Tokens
from .policy import Policy, sync
from .ranks import Ranks
from .rows import Loss, Row, microbatches
from .settings import Settings

Progress = Callable[[int, int], None]
Accept = Callable[[list[list[float]]], bool]
_COLUMNS = ("advantages", "sampled_logprobs", "proximal_logprobs", "reference_logprobs")


class Learner:
    """A policy and its optimizer. Equal calls give equal numbers on one kind of machine."""

    def __init__(self, settings: Settings, ranks: Ranks) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.settings = settings
        self.ranks = ranks
        self.policy = Policy(settings, ranks.device)
        self.trained = self.policy.trained()
        self.optimizer = self._new_optimizer()
        self.updates = 0

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            list(self.trained.values()),
            lr=self.settings.lr,
            betas=self.settings.betas,
            eps=self.settings.epsilon,
            # The reward says which way to go; decay would only pull away from the start model.
            weight_decay=0.0,
        )

    def update(
        self, rows: list[Row], loss: Loss, accept: Accept, progress: Progress
    ) -> dict[str, float | int | None] | None:
        """One step over all rows; none when the logprobs before it are not accepted."""
        self._check(rows)
        for index, row in enumerate(rows):
            row.check_loss(index, loss)
        if not any(weight != 0 for row in rows for weight in row.weights):
            raise LearnerError("invalid", f"no token of {len(rows)} rows has a weight")
        drops = self.settings.lora is not None and self.settings.lora.dropout > 0
        # With dropout, a pass that learns has other logprobs than the sampler's.
        logprobs = self._weighted(rows, self.logprobs(rows)) if drops else None
        tally = Tally(loss)
        # Dropout repeats when an update is repeated.
        torch.manual_seed(self.settings.seed + 1_000_003 * (self.updates + 1))
        self.policy.model.train(drops)
        try:
            seen = self._passes(rows, tally, progress)
            self.ranks.add_up([p.grad for p in self.trained.values() if p.grad is not None])
            tally.replace(self.ranks.gather(tally.sums()))
            if not accept(logprobs or self._merged(rows, seen)):
                return None
            norm = self._step()
        finally:
            self.policy.model.eval()
            self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return tally.report(norm)

    def _passes(self, rows: list[Row], tally: Tally, progress: Progress) -> dict[int, list[float]]:
        """Forward and backward over this process's share; the logprobs of its rows, by place."""
        batches = microbatches(rows, self.policy.tokens_per_pass())
        seen: dict[int, list[float]] = {}
        for number, places in enumerate(batches):
            if number % self.ranks.count != self.ranks.rank:
                continue
            batch = [rows[place] for place in places]
            logprobs, entropy = self._logprobs_of(
                self.policy.model, batch, entropy_gradient=tally.needs_entropy_gradient
            )
            weights = _padded([row.weights for row in batch], self.ranks.device)
            weighted = weights != 0
            columns = [self._column(batch, name, weighted) for name in _COLUMNS]
            advantages, sampled, proximal, reference = columns
            if advantages is None or sampled is None:
                raise LearnerError("invalid", "rows have no advantages")
            of_rows = weighted.nonzero()[:, 0]
            tokens = Tokens(of_rows, weights[weighted], advantages, sampled, proximal, reference)
            added = tally.add(tokens, logprobs[weighted].double(), entropy[weighted].double())
            added.backward()
            shown = torch.where(weighted, logprobs.detach(), 0.0).tolist()
            for place, row, values in zip(places, batch, shown, strict=True):
                seen[place] = values[: len(row.ids)]
            progress(number + 1, len(batches))
        return seen

    def _step(self) -> float:
        norm = float(
            torch.nn.utils.clip_grad_norm_(
                list(self.trained.values()), self.settings.max_gradient_norm
            )
        )
        if not math.isfinite(norm):
            raise LearnerError("not_finite", f"the gradient's norm is `{norm}`")
        self.optimizer.step()
        return norm

    @torch.no_grad()
    def logprobs(self, rows: list[Row], of_start: bool = False) -> list[list[float]]:
        """Logprobs of each token given those before it; of the start model when asked."""
        self._check(rows)
        batches = microbatches(rows, self.policy.tokens_per_pass())
        seen: dict[int, list[float]] = {}
        for number, places in enumerate(batches):
            if number % self.ranks.count != self.ranks.rank:
                continue
            batch = [rows[place] for place in places]
            if of_start:
                with self.policy.reference() as model:
                    logprobs, _ = self._logprobs_of(model, batch)
            else:
                logprobs, _ = self._logprobs_of(self.policy.model, batch)
            for place, row, values in zip(places, batch, logprobs.tolist(), strict=True):
                seen[place] = values[: len(row.ids)]
        return self._merged(rows, seen)

    def _merged(self, rows: list[Row], seen: dict[int, list[float]]) -> list[list[float]]:
        everything: dict[int, list[float]] = {}
        for part in self.ranks.gather(seen):
            everything.update(part)
        return [everything[place] for place in range(len(rows))]

    @staticmethod
    def _weighted(rows: list[Row], logprobs: list[list[float]]) -> list[list[float]]:
        return [
            [
                value if weight != 0 else 0.0
                for value, weight in zip(values, row.weights, strict=True)
            ]
            for row, values in zip(rows, logprobs, strict=True)
        ]

    def _logprobs_of(
        self, model: Any, batch: list[Row], entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprob and entropy at each place of padded rows; 0 at the first."""
        device = self.ranks.device
        length = max(len(row.ids) for row in batch)
        ids = torch.zeros(len(batch), length, dtype=torch.long)
        attention = torch.zeros(len(batch), length, dtype=torch.long)
        for place, row in enumerate(batch):
            ids[place, : len(row.ids)] = torch.tensor(row.ids)
            attention[place, : len(row.ids)] = 1
        ids, attention = ids.to(device), attention.to(device)
        temperatures = _padded([row.temperatures for row in batch], device, 1.0).float()
        logits = self.policy.logits(model, ids, attention)[:, :-1]
        distribution = torch.log_softmax(logits / temperatures[:, 1:, None], dim=-1)
        chosen = distribution.gather(-1, ids[:, 1:, None]).squeeze(-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
            entropy = -(distribution.exp() * distribution).sum(-1)
        first = torch.zeros(len(batch), 1, device=device)
        return torch.cat([first, chosen], 1), torch.cat([first, entropy], 1)

    def _column(self, batch: list[Row], name: str, weighted: torch.Tensor) -> torch.Tensor | None:
        columns = [getattr(row, name) for row in batch]
        if any(column is None for column in columns):
            return None
        return _padded(columns, self.ranks.device)[weighted]

    def _check(self, rows: list[Row]) -> None:
        if not rows:
            raise LearnerError("invalid", "there are no rows")
        for index, row in enumerate(rows):
            row.check(index, self.policy.vocabulary, self.policy.context)

    def save(self, model: Path, optimizer: Path) -> None:
        """Writes the model's folder and the optimizer's file; on disk when this returns."""
        if self.ranks.is_first:
            self.policy.save(model)
            try:
                self._save_optimizer(optimizer)
            except OSError as error:
                shutil.rmtree(model, ignore_errors=True)
                raise of_writing(error, f"the state can't be saved to `{optimizer}`") from error
        self.ranks.wait()

    def _save_optimizer(self, file: Path) -> None:
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.trained.items():
            state = self.optimizer.state.get(parameter)
            if state:
                for part in ("exp_avg", "exp_avg_sq"):
                    tensors[f"{part}.{name}"] = state[part].detach().cpu().contiguous()
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.partial")
        save_file(tensors, partial, metadata={"updates": str(self.updates), "format": "pt"})
        sync(partial)
        os.replace(partial, file)
        sync(file.parent)

    def restore(self, model: Path, optimizer: Path, updates: int) -> None:
        """Goes on where `save` was called, after that many updates."""
        parameters = self.policy.read(model)
        try:
            tensors = load_file(optimizer)
        except (OSError, SafetensorError) as error:
            raise LearnerError("unreadable", f"`{optimizer}`: {error}") from error
        for name, parameter in self.trained.items() if updates else ():
            for part in ("exp_avg", "exp_avg_sq"):
                found = tensors.get(f"{part}.{name}")
                if found is None or found.shape != parameter.shape:
                    message = f"`{optimizer}`: `{part}.{name}` is missing or of another shape"
                    raise LearnerError("unreadable", message)
        self.policy.put(parameters)
        self.optimizer = self._new_optimizer()
        for name, parameter in self.trained.items() if updates else ():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(float(updates)),
                "exp_avg": tensors[f"exp_avg.{name}"].to(self.ranks.device),
                "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(self.ranks.device),
            }
        self.updates = updates


def _padded(columns: list[list[float]], device: torch.device, padding: float = 0.0) -> torch.Tensor:
    length = max(len(column) for column in columns)
    padded = torch.full((len(columns), length), padding, dtype=torch.float64)
    for place, column in enumerate(columns):
        padded[place, : len(column)] = torch.tensor(column, dtype=torch.float64)
    return padded.to(device)
