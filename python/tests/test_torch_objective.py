"""The losses of the torch trainer, against values computed by hand.

They need torch: `cargo xtask torch` runs them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from osmosis_ai.trainer.torch.objective import Tally, Tokens  # noqa: E402
from osmosis_ai.trainer.torch.rows import Loss  # noqa: E402

CASES = Path(__file__).parents[2] / "crates/osmosis-core/fixtures/objectives.json"
LOSSES = json.loads(CASES.read_text())["losses"]


@pytest.mark.parametrize("case", LOSSES, ids=[case["name"] for case in LOSSES])
def test_a_loss_and_its_slopes_are_those_computed_by_hand(case: dict[str, Any]) -> None:
    tokens = [token for row in case["rows"] for token in row]

    def column(name: str) -> Any:
        return torch.tensor([token.get(name, 0.0) for token in tokens], dtype=torch.float64)

    def logprobs(name: str) -> Any:
        return column(name).log() if name in tokens[0] else None

    now, entropy = column("p_now").log().requires_grad_(), column("entropy").requires_grad_()
    rows = torch.tensor([place for place, row in enumerate(case["rows"]) for _ in row])
    sampled = logprobs("p_sampled")
    given = Tokens(
        rows,
        column("weight"),
        column("advantage"),
        sampled,
        logprobs("p_proximal"),
        logprobs("p_reference"),
    )
    tally = Tally(Loss.read(case["loss"]))
    assert tally.needs_entropy_gradient == ("entropy_slopes" in case)
    loss = tally.add(given, now, entropy)
    loss.backward()
    expected = [slope for row in case["slopes"] for slope in row]
    assert loss.item() == pytest.approx(case["value"], abs=1e-12)
    assert now.grad.tolist() == pytest.approx(expected, abs=1e-12)
    report = tally.report(0.0)
    assert report["loss"] == pytest.approx(case["value"], abs=1e-12)
    assert report["clip_fraction"] == pytest.approx(case["clip_fraction"], abs=1e-12)
    if "entropy_slopes" in case:
        expected = [slope for row in case["entropy_slopes"] for slope in row]
        assert entropy.grad.tolist() == pytest.approx(expected, abs=1e-12)
