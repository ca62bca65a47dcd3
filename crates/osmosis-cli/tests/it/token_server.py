"""A server that takes and gives token ids as SGLang documents it. Prints its port.

Every token is sampled by weights of its own, the first by version 3. A prompt that begins with 99 gets
no answer; the file in the arguments says when its caller left. With a second argument, answers differ,
and nothing is said about versions.
"""

import asyncio
import json
import pathlib
import random
import sys

from aiohttp import web


async def models(request):
    return web.json_response({"data": [{"id": "m", "max_model_len": 500}]})


async def generate(request):
    asked = await request.json()
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    if asked["input_ids"][0] == 99:
        pathlib.Path(sys.argv[1], "arrived").touch()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pathlib.Path(sys.argv[1], "left").touch()
            raise
    varied = len(sys.argv) > 2
    told = []
    for place in range(asked["sampling_params"]["max_new_tokens"]):
        token = random.randrange(40, 80) if varied else 40 + place
        told.append([-0.5, token, None])
        last = place == asked["sampling_params"]["max_new_tokens"] - 1
        meta = {
            "completion_tokens": len(told),
            "output_token_logprobs": told,
            "finish_reason": {"type": "length"} if last else None,
            "weight_version": "default" if varied else str(3 + place),
        }
        await reply.write(b"data: " + json.dumps({"meta_info": meta}).encode() + b"\n\n")
    await reply.write(b"data: [DONE]\n\n")
    return reply


async def main():
    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.sleep(3600)


asyncio.run(main())
