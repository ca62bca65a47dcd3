"""Chat messages as datasets write them, in the content blocks of Strands."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def as_messages(messages: list[Any]) -> list[dict[str, Any]]:
    """The messages in Strands' shape, copied; those that have it already stay as they are."""
    return [_message(message) for message in messages]


def as_prompt(prompt: Any) -> Any:
    """What `invoke_async` was given, with chat messages in Strands' shape."""
    if isinstance(prompt, list) and prompt and all(_is_message(item) for item in prompt):
        return as_messages(prompt)
    return prompt


def as_json(value: Any) -> Any:
    """A copy that JSON can say: the bytes of images and documents become base64 text."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return value


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and "role" in item


def _message(message: dict[str, Any]) -> dict[str, Any]:
    if not _is_message(message):
        raise TypeError(f"a message must be a dict with a `role`, not `{message!r:.80}`")
    if message["role"] == "tool":
        return {"role": "user", "content": [{"toolResult": _tool_result(message)}]}
    content = message.get("content")
    blocks = _blocks(content)
    for call in message.get("tool_calls") or []:
        function = call["function"]
        blocks.append(
            {
                "toolUse": {
                    "toolUseId": call["id"],
                    "name": function["name"],
                    "input": json.loads(function.get("arguments") or "{}"),
                }
            }
        )
    # What else Strands keeps beside role and content stays.
    kept = {k: v for k, v in message.items() if k != "tool_calls"}
    return {**copy.deepcopy(kept), "content": blocks}


def _tool_result(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "toolUseId": message.get("tool_call_id", ""),
        "status": "success",
        "content": _blocks(message.get("content")),
    }


def _blocks(content: Any) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"text": content}]
    return [_block(part) for part in content]


def _block(part: Any) -> Any:
    if isinstance(part, str):
        return {"text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS:
        return {"text": part["text"]}
    if kind == "image_url":
        return {"image": _image(part["image_url"])}
    if kind is not None:
        raise ValueError(f"a message part of type `{kind}` has no counterpart in Strands")
    return copy.deepcopy(part)


def _image(image: Any) -> dict[str, Any]:
    url = image["url"] if isinstance(image, dict) else image
    head, separator, data = url.partition(";base64,")
    if not separator or not head.startswith("data:image/"):
        raise ValueError(
            f"image `{url[:60]}`: Strands takes images as `data:image/…;base64,…`, not by address"
        )
    return {
        "format": head.removeprefix("data:image/"),
        "source": {"bytes": base64.b64decode(data)},
    }
