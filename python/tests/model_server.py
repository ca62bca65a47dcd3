"""A small OpenAI-compatible server: answers chat completions and keeps the requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """One request as it came over the wire."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def last(self) -> dict[str, Any]:
        return self.body["messages"][-1]


Answer = Callable[[Call], Awaitable[dict[str, Any]]]


_CUT = "cut off"


def text(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def tool_call(name: str, call_id: str = "call_1", **arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
        ],
    }


class ModelServer:
    """Answers each chat completion with the message that `answer` makes for it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.calls: list[Call] = []
        self.connections = 0

    async def __aenter__(self) -> ModelServer:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def samples(self) -> list[str]:
        return [call.headers["x-sample-id"] for call in self.calls]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                pairs = (line.split(": ", 1) for line in head[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                call = Call(head[0].split(" ")[1], headers, json.loads(body))
                self.calls.append(call)
                message = await self._answer(call)
                if "status" in message:
                    error = json.dumps({"error": {"message": message["message"]}}).encode()
                    _reply(writer, message["status"], "application/json", error)
                elif call.body.get("stream"):
                    _reply(writer, 200, "text/event-stream", _stream(message))
                else:
                    _reply(writer, 200, "application/json", json.dumps(_whole(message)).encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def _reply(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def cut_off(message: dict[str, Any]) -> dict[str, Any]:
    """The message as an answer that ends at the token limit."""
    return {**message, _CUT: True}


def _finish(message: dict[str, Any]) -> str:
    if message.get(_CUT):
        return "length"
    return "tool_calls" if message.get("tool_calls") else "stop"


def _whole(message: dict[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in message.items() if name != _CUT}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": said, "finish_reason": _finish(message)}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def _stream(message: dict[str, Any]) -> bytes:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
        }

    chunks = [chunk({"role": "assistant"})]
    content = message.get("content") or ""
    chunks += [chunk({"content": content[at : at + 3]}) for at in range(0, len(content), 3)]
    for index, call in enumerate(message.get("tool_calls") or []):
        chunks.append(chunk({"tool_calls": [{"index": index, **call}]}))
    chunks.append(chunk({}, _finish(message)))
    events = [f"data: {json.dumps(item)}\n\n" for item in chunks]
    return ("".join(events) + "data: [DONE]\n\n").encode()
