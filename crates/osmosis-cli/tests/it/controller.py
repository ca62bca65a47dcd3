"""A training controller in small: sends rollouts to a server and collects its callbacks."""

import asyncio
import json
import os
import sys

import httpx
from aiohttp import web

KEY, LLM_KEY = "controller-key-not-to-be-seen", "llm-key-not-to-be-seen"


class Controller:
    def __init__(self, server, model):
        self.server, self.model = server, model
        key = os.environ.get("ROLLOUT_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.AsyncClient(timeout=60, trust_env=False, headers=headers)
        self.told, self.news = [], asyncio.Condition()
        self.bodies = []
        self.runner = None
        self.port = 0

    async def listen(self, port=0):
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/{kind}/{id}", self.take)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def close(self):
        await self.runner.cleanup()

    async def take(self, request):
        assert request.headers["authorization"] == f"Bearer {KEY}", request.headers
        async with self.news:
            self.told.append((request.match_info["kind"], await request.json()))
            self.bodies.append((request.match_info["kind"], await request.text()))
            self.news.notify_all()
        return web.json_response({})

    def request(self, rollout_id, **more):
        return {
            "rollout_id": rollout_id,
            "initial_messages": [{"role": "user", "content": "What is 6 times 7?"}],
            "label": "42",
            "chat_completions_url": self.model,
            "controller_api_key": KEY,
            "llm_api_key": LLM_KEY,
            "completion_callback_url": f"http://127.0.0.1:{self.port}/completion/{rollout_id}",
            "grader_callback_url": f"http://127.0.0.1:{self.port}/grader/{rollout_id}",
            **more,
        }

    async def post(self, path, value):
        return await self.client.post(self.server + path, json=value)

    async def send(self, rollout_id, **more):
        answer = await self.post("/rollout", self.request(rollout_id, **more))
        return answer.status_code

    async def status(self, rollout_id):
        answer = await self.client.get(f"{self.server}/rollout/{rollout_id}/status")
        return answer.json()["status"]

    async def wait_for_status(self, rollout_id, status):
        while await self.status(rollout_id) != status:
            await asyncio.sleep(0.01)

    async def of(self, rollout_id):
        """Both callbacks of a rollout, by kind."""
        async with self.news:
            while True:
                found = {k: v for k, v in self.told if v["rollout_id"] == rollout_id}
                if len(found) == 2:
                    return found
                await self.news.wait()


async def whole(controller):
    await controller.listen()
    sent = await asyncio.gather(*(controller.send(f"r-{n}") for n in range(6)))
    told = [await controller.of(f"r-{n}") for n in range(6)]
    raising = await controller.send("raises", metadata={"do": "raise"})
    raised = await controller.of("raises")
    again = await controller.send("r-0")
    other = await controller.send("r-0", label="43")
    wrong = (await controller.post("/rollout", {"llm_api_key": ""})).status_code
    health = (await controller.client.get(controller.server + "/health")).json()
    return {
        "sent": sent + [raising],
        "told": told,
        "raised": raised,
        "again": again,
        "other": other,
        "wrong": wrong,
        "health": health,
        "status": await controller.status("r-0"),
        "unknown": await controller.status("nobody"),
        "order": [
            kind for kind, body in controller.told if body["rollout_id"] == "r-3"
        ],
    }


async def crowded(controller):
    await controller.listen()
    first, second = await controller.send("a-1"), await controller.send("a-2")
    await controller.wait_for_status("a-1", "running")
    refused = await controller.post("/rollout", controller.request("b-1"))
    cancelled = await controller.post("/rollout/cancel", {"ids": ["a-2", "nobody"]})
    waiting = await controller.of("a-2")
    all_of_them = await controller.post("/rollout/cancel", {"prefix": "a-"})
    running = await controller.of("a-1")
    return {
        "sent": [first, second],
        "refused": refused.status_code,
        "retry_after": refused.headers["retry-after"],
        "cancelled": cancelled.json()["dispositions"],
        "prefix": all_of_them.json()["dispositions"],
        "told": [waiting, running],
    }


async def away(controller):
    await controller.listen()
    await controller.close()
    sent = await controller.send("patient")
    await controller.wait_for_status("patient", "success")
    await controller.listen(controller.port)
    return {"sent": sent, "told": await controller.of("patient")}


async def drained(controller):
    await controller.listen()
    sent = await controller.send("last")
    print("sent", flush=True)
    return {"sent": sent, "told": await controller.of("last")}


async def keyed(controller):
    """The same with a key, and without."""
    await controller.listen()
    sent = await controller.send("keyed")
    told = await controller.of("keyed")
    refused = {}
    for name, headers in {
        "no key": {"authorization": ""},
        "text": {"content-type": "text/plain"},
        "page": {"origin": "https://evil.example"},
        "name": {"host": "evil.example"},
    }.items():
        body = json.dumps(controller.request(f"refused-{len(refused)}"))
        headers = {"content-type": "application/json", **headers}
        url = controller.server + "/rollout"
        answer = await controller.client.post(url, content=body, headers=headers)
        refused[name] = answer.status_code
        if answer.status_code == 202:
            await controller.of(answer.json()["rollout_id"])
    return {"sent": sent, "told": told, "refused": refused}


async def sent(controller):
    await controller.listen()
    answer = await controller.post("/rollout", controller.request("sent"))
    return {"status": answer.status_code, "text": answer.text}


async def over_restarts(controller):
    """Sends rollouts to a server that is killed again and again, and waits for every callback."""
    await controller.listen()
    ids = [f"k-{n}" for n in range(int(os.environ["ROLLOUTS"]))]

    async def send(rollout_id):
        while True:
            try:
                status = await controller.send(rollout_id)
            except httpx.TransportError:
                status = None
            if status == 202:
                print("accepted", flush=True)
                return
            await asyncio.sleep(0.02)

    async def tell():
        told = 0
        while True:
            async with controller.news:
                await controller.news.wait_for(lambda: len(controller.told) > told)  # noqa: B023
                new, told = len(controller.told) - told, len(controller.told)
            for _ in range(new):
                print("told", flush=True)

    telling = asyncio.ensure_future(tell())
    await asyncio.gather(*(send(rollout_id) for rollout_id in ids))
    print("all accepted", flush=True)
    for rollout_id in ids:
        await controller.of(rollout_id)
    telling.cancel()
    bodies = {}
    for kind, text in controller.bodies:
        bodies.setdefault((kind, json.loads(text)["rollout_id"]), set()).add(text)
    statuses = [v["status"] for k, v in controller.told if k == "grader"]
    return {
        "ids": len(ids),
        "told": len(controller.told),
        "distinct": sorted({len(texts) for texts in bodies.values()}),
        "kinds": len(bodies),
        "statuses": sorted(set(statuses)),
    }


async def lost_key(controller):
    """A server that is started again with another state key."""
    await controller.listen()
    sent = await controller.send("waits")
    await controller.wait_for_status("waits", "running")
    print("running", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    status = await controller.status("waits")
    again = (await controller.post("/rollout", controller.request("waits"))).json()[
        "status"
    ]
    return {
        "sent": sent,
        "status": status,
        "again": again,
        "told": await controller.of("waits"),
    }


async def main(scenario, server, model):
    result = await asyncio.wait_for(globals()[scenario](Controller(server, model)), 120)
    print(json.dumps(result), flush=True)


asyncio.run(main(*sys.argv[1:]))
