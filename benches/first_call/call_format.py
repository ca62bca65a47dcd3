"""The first reply to a question of `examples/calculator`, and its score. It needs no package, so TRL uses it, too."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any

INSTRUCTIONS = "Use the tool, then answer with the number alone."
MAX_TOKENS = 64
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Apply an operation to two integers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer"},
                "operation": {"type": "string"},
                "b": {"type": "integer"},
            },
            "required": ["a", "operation", "b"],
        },
    },
}
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.floordiv,
    "remainder": operator.mod,
    "larger": max,
    "smaller": min,
    "average": lambda a, b: (a + b) // 2,
}
CALL = re.compile(r"<tool_call>(.*)</tool_call>", re.DOTALL)


def score(text: str, label: str) -> float:
    """1 if the reply is one call of the tool whose result is the label, else 0.

    The rows are made so that no other operation and no other two numbers of the question give the label.
    """
    found = CALL.fullmatch(text.strip())
    if found is None:
        return 0.0
    try:
        call = json.loads(found[1])
        given = call["arguments"]
        a, b = given["a"], given["b"]
        if call["name"] != "calculate" or type(a) is not int or type(b) is not int:
            return 0.0
        return 1.0 if str(OPERATIONS[given["operation"]](a, b)) == label else 0.0
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return 0.0


def text_of(message: dict[str, Any]) -> str:
    """A reply as it was written: the gateway has read its calls out of the text."""
    text = message.get("content") or ""
    for call in message.get("tool_calls") or []:
        function = call["function"]
        text += (
            f'<tool_call>{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}</tool_call>'
        )
    return text
