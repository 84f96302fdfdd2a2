"""The OpenAI path over HTTP, where nothing but the worker itself keeps requests out of it."""

import asyncio

import httpx
from support.engine.scripted import CHAT, HANG, ScriptedEngine, settings, tokens, until

from worker.concurrency import most_inside
from worker.serve.service import Service

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


async def test_a_request_beyond_the_most_is_refused_until_one_has_ended() -> None:
    with ScriptedEngine(HANG) as engine:
        engine.slots = 1
        most = most_inside(jobs=1, slots=1)
        service = Service(engine.engines, settings(MAX_CONCURRENCY="1"))
        transport = httpx.ASGITransport(service)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://worker") as http,
            asyncio.TaskGroup() as group,
        ):
            running = [group.create_task(http.post(CHAT, json=HELLO)) for _ in range(most)]
            assert await until(lambda: len(engine.generating) == most)
            engine.script = tuple(tokens("a"))
            for stream in (False, True):
                refused = await http.post(CHAT, json={**HELLO, "stream": stream})
                assert refused.status_code == 503
                assert refused.json()["error"]["retryable"]
                assert refused.headers["retry-after"] == "1"
            assert (await http.get("/health")).status_code == 200
            running[0].cancel()
            await asyncio.wait(running[:1])
            assert (await http.post(CHAT, json=HELLO)).status_code == 200
            for request in running:
                request.cancel()


async def test_a_request_to_a_model_that_is_set_aside_is_told_when_to_come_again() -> None:
    with ScriptedEngine(*tokens("a")) as engine:
        transport = httpx.ASGITransport(Service(engine.engines, settings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://worker") as http:
            async with engine.engines.aside(patience_s=0.1):
                refused = await http.post(CHAT, json=HELLO)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")
                assert (await http.get("/ping")).status_code == 200
                assert (await http.get("/health")).status_code == 503
            assert (await http.post(CHAT, json=HELLO)).status_code == 200
