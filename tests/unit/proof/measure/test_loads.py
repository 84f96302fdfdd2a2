"""Callers in several processes send all requests of a load."""

import json
from collections import Counter

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proof.measure import loads
from proof.measure.loads import Load, figures
from proof.measure.processes import Lost


def chat_server(requests: Counter[str], status: int = 200) -> TestServer:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        requests[body["model"]] += 1
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        # The role and the prompt, an event of one token, and one of the others.
        await response.write(b'data: {"content":"","prompt_token_ids":[1,2]}\n\n')
        for ids in (b"3", b",".join([b"4"] * (body["max_tokens"] - 1))):
            await response.write(b'data: {"content":"a","token_ids":[%b]}\n\n' % ids)
        usage = {"usage": {"completion_tokens": body["max_tokens"]}}
        await response.write(f"data: {json.dumps(usage, separators=(',', ':'))}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    return TestServer(app)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
async def test_all_requests_are_sent_and_measured(processes: int) -> None:
    requests: Counter[str] = Counter()
    load = Load(callers=4, requests=12, tokens=3, processes=processes)
    async with chat_server(requests) as server:
        answers = await loads.send(str(server.make_url("/v1")), ("a", "b"), load)
    assert requests == {"a": 6, "b": 6}
    assert len(answers) == 12
    assert {sum(count for _, count in answer.arrivals) for answer in answers} == {3}
    assert figures(answers)["tokens_per_s"] > 0


@pytest.mark.slow
async def test_a_refused_request_is_an_error() -> None:
    load = Load(callers=2, requests=4, tokens=3, processes=2)
    async with chat_server(Counter(), status=503) as server:
        with pytest.raises(Lost, match="503"):
            await loads.send(str(server.make_url("/v1")), ("a",), load)
