"""The strict format of an order, and how a reply is scored. It needs no package, so that other trainers can use it too."""

import re

INSTRUCTIONS = 'Write the order as "QUANTITY x ITEM -> CITY" and nothing else. Example: 4 x blue mug -> Oslo'
# The longest order of the datasets takes about 15 tokens of SmolLM2; what is longer has gone astray.
MAX_TOKENS = 32
ORDER = re.compile(r"(?P<quantity>\d+) x (?P<item>[^\n>]+) -> (?P<city>[^\n>]+)")


def score(text: str, label: str) -> float:
    """0 outside the format; else a quarter for the format and one for each right field."""
    written, wanted = ORDER.fullmatch(text), ORDER.fullmatch(label)
    if wanted is None:
        raise ValueError(f"the row's ground_truth is no order: {label!r}")
    if written is None:
        return 0.0
    right = sum(written[field] == wanted[field] for field in ("quantity", "item", "city"))
    return (1 + right) / 4
