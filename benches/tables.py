"""Markdown tables, as `docs/benchmarks.md` has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print()
    for cells in [header, ["---"] * len(header), *rows]:
        print(f"| {' | '.join(str(cell) for cell in cells)} |")
    print(flush=True)
