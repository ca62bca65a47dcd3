"""The strict format of an order, and how a reply is scored. It needs no package, so that other trainers can use it too."""

from collections import Counter

INSTRUCTIONS = 'Write the order as "QUANTITY x ITEM -> CITY" and nothing else. Example: 4 x blue mug -> Oslo'
# The longest order of the datasets takes about 15 tokens of SmolLM2; what is longer has gone astray.
MAX_TOKENS = 32


def score(text: str, label: str) -> float:
    """1 for exactly the order; else three quarters of the F1 of its words, which is below that."""
    if not label:
        raise ValueError("the row has no ground_truth")
    if text == label:
        return 1.0
    written, wanted = Counter(text.split()), Counter(label.split())
    common = (written & wanted).total()
    return 0.75 * 2 * common / (written.total() + wanted.total())
