"""A model server that costs next to nothing: the same answer to every call, whole or streamed.

The programs of this folder start it as a process of its own; it prints its port. `python mock_model.py WORDS` answers
with that many words, one chunk for each when it is streamed. Requests are not parsed beyond their length and
whether they ask for a stream, so that the clients are what is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys

STREAMED = (b'"stream":true', b'"stream": true')


def whole(words: list[str]) -> bytes:
    message = {"role": "assistant", "content": " ".join(words)}
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": usage(words),
        }
    ).encode()


def streamed(words: list[str]) -> bytes:
    def chunk(delta: dict, reason: str | None = None) -> dict:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"content": f" {word}" if place else word}) for place, word in enumerate(words)]
    chunks += [chunk({}, "stop"), {**chunk({}), "choices": [], "usage": usage(words)}]
    return b"".join(f"data: {json.dumps(item)}\n\n".encode() for item in chunks) + b"data: [DONE]\n\n"


def usage(words: list[str]) -> dict[str, int]:
    return {"prompt_tokens": 20, "completion_tokens": len(words), "total_tokens": 20 + len(words)}


def reply(kind: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (kind, len(body), body)


class Connection(asyncio.Protocol):
    def __init__(self, whole: bytes, streamed: bytes) -> None:
        self.whole, self.streamed, self.received = whole, streamed, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            lengths = [
                line[15:] for line in self.received[:end].split(b"\r\n") if line[:15].lower() == b"content-length:"
            ]
            total = end + 4 + (int(lengths[0]) if lengths else 0)
            if len(self.received) < total:
                return
            body, self.received = self.received[end + 4 : total], self.received[total:]
            asks_stream = any(said in body for said in STREAMED)
            self.transport.write(self.streamed if asks_stream else self.whole)  # type: ignore[attr-defined]


async def main(count: int) -> None:
    words = [f"word{place}" for place in range(count)]
    answers = reply(b"application/json", whole(words)), reply(b"text/event-stream", streamed(words))
    server = await asyncio.get_running_loop().create_server(lambda: Connection(*answers), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
