"""Tests of examples/customer_gateway.py, in front of the proxy and of a scripted upstream."""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from demo_model import ANSWERS
from support import ROOT
from support.processes.background import HUNG_S, wait_until
from support.processes.servers import KEY, LocalEndpoint, ServerProcess, start_server
from support.volume import read_receipts

KEYS = {"acme": "sk-of-acme", "zeta": "sk-of-zeta"}
COUNT: Any = [{"role": "user", "content": "Count to ten."}]
# Longer than a block of the prefix cache.
LONG: Any = [{"role": "user", "content": "Count to ten. " * 100}]
CHAT = "/v1/chat/completions"
MAX_BODY_BYTES = 1_000_000
UNLISTED = (
    *("/v1/files", "/v1/batches", "/v1/fine_tuning/jobs", "/v1/files/file-1/content"),
    *("/v1/chat/completions/../../files", "/v1/v1/files", "//v1/files", "/metrics"),
    *("/v1/%66iles", "/v2/local/run", "/v2/local/purge-queue", "/v1/llm/fine-tunes", "/"),
)
# Bodies with the status of their refusal.
REFUSED_BODIES = {
    b"[]": 400,
    b"{": 400,
    b"[" * 100_000: 400,
    b"\xff": 400,
    b'{"model": "of-zeta"}': 404,
    b'{"model": ["demo"]}': 404,
    b'{"x": "' + b"x" * MAX_BODY_BYTES + b'"}': 413,
}


@contextmanager
def customer_gateway(upstream_url: str, folder: Path) -> Iterator[ServerProcess]:
    """Start the gateway for two customers on a free port; terminate it at the end of the block."""
    customers = {
        name: {"sha256": hashlib.sha256(key.encode()).hexdigest(), "models": ["demo", f"of-{name}"]}
        for name, key in KEYS.items()
    }
    (folder / "customers.json").write_text(json.dumps(customers))
    environ = {
        "PATH": os.environ["PATH"],
        "CUSTOMERS": str(folder / "customers.json"),
        "UPSTREAM_URL": upstream_url,
        "UPSTREAM_KEY": KEY,
        "PORT": "0",
    }
    command = [sys.executable, str(ROOT / "examples" / "customer_gateway.py")]
    with start_server(command, environ, folder / "gateway") as gateway:
        yield gateway
    assert "Traceback" not in gateway.output


def openai_of(customer: str, gateway: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEYS[customer], max_retries=0)


# In front of the proxy, an endpoint and the real engine:


@pytest.fixture
def gateway(proxy: ServerProcess, tmp_path: Path) -> Iterator[ServerProcess]:
    with customer_gateway(proxy.url, tmp_path) as running:
        yield running


def test_a_receipt_and_the_prefix_cache_name_the_customer_whatever_the_caller_writes(
    gateway: ServerProcess, make_endpoint: LocalEndpoint
) -> None:
    def customers_receipts() -> list[dict[str, Any]]:
        receipts = read_receipts(make_endpoint.log.parent / "volume")
        return [receipt for receipt in receipts if receipt.get("user") in KEYS]

    claim = {"cache_salt": "zeta", "metadata": {"user_id": "zeta"}}
    with openai_of("acme", gateway) as acme, openai_of("zeta", gateway) as zeta:
        for client in (acme, acme, zeta):
            claim["cache_salt"] = "acme" if client is zeta else "zeta"
            client.chat.completions.create(
                model="demo", messages=LONG, max_tokens=1, user="somebody", extra_body=claim
            )
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEYS["acme"]) as messenger:
        messenger.messages.create(
            model="demo", messages=LONG, max_tokens=1, metadata={"user_id": "zeta"}
        )
    wait_until(lambda: len(customers_receipts()) == 4)
    receipts = sorted(customers_receipts(), key=lambda receipt: receipt["created"])
    assert [receipt["user"] for receipt in receipts] == ["acme", "acme", "zeta", "acme"]
    cached = [receipt["tokens"]["cached"] > 0 for receipt in receipts]
    assert cached == [False, True, False, True]


def test_openais_client_gets_whole_and_streamed_answers(gateway: ServerProcess) -> None:
    expected = ANSWERS["Count to ten."]
    with openai_of("acme", gateway) as client:
        create = client.chat.completions.create
        whole = create(model="demo", messages=COUNT, temperature=0)
        stream = create(model="demo", messages=COUNT, temperature=0, stream=True)
        pieces = [event.choices[0].delta.content or "" for event in stream]
        with pytest.raises(openai.BadRequestError, match="temperature"):
            create(model="demo", messages=COUNT, temperature=-1)
    assert whole.choices[0].message.content == "".join(pieces) == expected
    assert len([piece for piece in pieces if piece]) > 1


# In front of a scripted upstream:

on_the_upstreams_loop = pytest.mark.asyncio(loop_scope="module")


class Upstream:
    """A server that records requests. Its answers wait, after the first event of a stream."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.may_continue = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((request.path_qs, dict(request.headers), body))
        if body.get("n") == 0:
            headers = {"Retry-After": "7", "x-request-id": "r1"}
            return web.json_response({"error": {"message": "full"}}, status=503, headers=headers)
        try:
            return await self._answer(request, streamed=bool(body.get("stream")))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _answer(self, request: web.Request, streamed: bool) -> web.StreamResponse:
        if not streamed:
            await self.may_continue.wait()
            return web.json_response({"choices": []})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [], "id": "1"}\n\n')
        await self.may_continue.wait()
        await response.write(b'data: {"choices": [], "id": "2"}\n\ndata: [DONE]\n\n')
        return response


@dataclass(frozen=True)
class Front:
    """A gateway in front of a scripted upstream, with a client of the customer acme."""

    gateway: ServerProcess
    upstream: Upstream
    client: openai.AsyncOpenAI


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_front(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    upstream, app = Upstream(), web.Application(client_max_size=2 * MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", upstream.handle)
    async with TestServer(app, handler_cancellation=True) as server:
        with customer_gateway(str(server.make_url("")), tmp_path_factory.mktemp("g")) as gateway:
            url = f"{gateway.url}/v1"
            async with openai.AsyncOpenAI(
                base_url=url, api_key=KEYS["acme"], max_retries=0
            ) as client:
                yield Front(gateway, upstream, client)


@pytest.fixture
def front(running_front: Front) -> Front:
    running_front.upstream.reset()
    return running_front


@on_the_upstreams_loop
async def test_the_upstream_gets_the_customer_and_nothing_of_the_caller_but_the_body(
    front: Front,
) -> None:
    front.upstream.may_continue.set()
    await front.client.chat.completions.create(
        model="of-acme",
        messages=COUNT,
        user="zeta",
        extra_headers={"x-receipt": "1", "X-Runpod-Worker-Id": "w", "Cookie": "c=1"},
        extra_query={"offset": 1},
        extra_body={"cache_salt": "zeta", "receipt": True, "priority": -9, "seed": 5},
    )
    ((path, headers, body),) = front.upstream.requests
    customer = {"user": "acme", "cache_salt": "acme"}
    assert (path, body) == (CHAT, {"model": "of-acme", "messages": COUNT, "seed": 5, **customer})
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert not {"x-receipt", "X-Runpod-Worker-Id", "Cookie"} & headers.keys()
    assert KEYS["acme"] not in str(headers)


@on_the_upstreams_loop
async def test_an_event_arrives_before_the_next_one_exists(front: Front) -> None:
    stream = await front.client.chat.completions.create(model="demo", messages=COUNT, stream=True)
    async with asyncio.timeout(HUNG_S):
        assert (await anext(stream)).id == "1"
        front.upstream.may_continue.set()
        assert [event.id async for event in stream] == ["2"]


async def send_head(
    front: Front, method: str, path: str, more: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the head of a request, with a path that no client would send."""
    port = int(front.gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    key = f"x-api-key: {KEYS['acme']}\r\n"
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: h\r\n{key}{more}\r\n".encode())
    return reader, writer


@on_the_upstreams_loop
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_disconnect_cancels_the_request(front: Front, streamed: bool) -> None:
    body = json.dumps({"messages": COUNT, "stream": streamed})
    reader, writer = await send_head(front, "POST", CHAT, f"Content-Length: {len(body)}\r\n")
    writer.write(body.encode())
    async with asyncio.timeout(HUNG_S):
        if streamed:
            await reader.readuntil(b"data: ")
        while not front.upstream.requests:
            await asyncio.sleep(0.01)
        assert not front.upstream.cancelled.is_set()
        writer.close()
        await front.upstream.cancelled.wait()


@on_the_upstreams_loop
@pytest.mark.parametrize("key", ["sk-of-other", hashlib.sha256(b"sk-of-acme").hexdigest()])
async def test_a_wrong_key_is_refused(front: Front, key: str) -> None:
    wrong = front.client.with_options(api_key=key)
    with pytest.raises(openai.AuthenticationError) as caught:
        await wrong.chat.completions.create(model="demo", messages=COUNT)
    error = {"type": "authentication_error", "param": None, "code": 401}
    message = "The request carries no key, or a wrong one."
    assert caught.value.body == {"message": message, **error}
    with pytest.raises(openai.AuthenticationError):
        await wrong.models.list()
    async with ClientSession() as session, session.post(f"{front.gateway.url}{CHAT}") as keyless:
        assert keyless.status == 401
    assert front.upstream.requests == []


@on_the_upstreams_loop
async def test_a_route_that_is_not_listed_is_not_found(front: Front) -> None:
    for method, path in product(("GET", "POST", "DELETE"), UNLISTED):
        reader, writer = await send_head(front, method, path, "Connection: close\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        found = head.split()[1], json.loads(body)["error"]["code"]
        assert found == (b"404", 404), (method, path)
    assert front.upstream.requests == []


@on_the_upstreams_loop
async def test_a_body_is_refused(front: Front) -> None:
    headers = {"Authorization": f"Bearer {KEYS['acme']}"}
    async with ClientSession(front.gateway.url, headers=headers) as session:
        for content, status in REFUSED_BODIES.items():
            async with session.post(CHAT, data=content) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, error["code"]) == (status, status), content[:20]
    assert front.upstream.requests == []


@on_the_upstreams_loop
async def test_a_customer_sees_only_their_models(front: Front) -> None:
    assert [model.id async for model in front.client.models.list()] == ["demo", "of-acme"]
    assert front.upstream.requests == []


@on_the_upstreams_loop
async def test_an_error_of_the_upstream_is_passed_on(front: Front) -> None:
    with pytest.raises(openai.InternalServerError, match="full") as caught:
        await front.client.completions.create(model="demo", prompt="", n=0)
    assert caught.value.response.headers["retry-after"] == "7"
    assert (caught.value.status_code, caught.value.request_id) == (503, "r1")


def test_without_an_upstream_the_status_is_502(tmp_path: Path) -> None:
    with (
        customer_gateway("http://127.0.0.1:9", tmp_path) as gateway,
        openai_of("acme", gateway) as client,
        pytest.raises(openai.InternalServerError, match="not available") as caught,
    ):
        client.chat.completions.create(model="demo", messages=COUNT)
    assert caught.value.status_code == 502
