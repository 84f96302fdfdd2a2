"""A gateway for customers: each has a key of its own, and none of them the endpoint's key.

Needs `uvicorn`, `starlette` and `httpx2`, which this repository's client installs.
docs/customers.md has the commands, the file of the customers, and the gateway's limits.

CUSTOMERS is that file; UPSTREAM_URL the address of the proxy, or of a worker over HTTP, without
/v1; UPSTREAM_KEY its PROXY_API_KEY or SERVE_API_KEY; PORT is 8080 by default.
"""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

# Every other route is 404. Files, batches and fine-tunes have no owner: never add their routes.
ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages")
# A receipt has the operator's costs, and a priority overtakes other customers.
DROPPED_KEYS = ("priority", "receipt")
PASSED_HEADERS = ("content-type", "retry-after", "x-request-id", "x-should-retry")
ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 502: "api_error"}
MAX_BODY_BYTES = 1_000_000
MAX_REQUESTS = 500

_rows: dict[str, Any] = json.loads(Path(os.environ["CUSTOMERS"]).read_text())
CUSTOMERS = {row["sha256"]: (name, row["models"]) for name, row in _rows.items()}
UPSTREAM = httpx2.AsyncClient(
    base_url=os.environ["UPSTREAM_URL"],
    headers={"Authorization": f"Bearer {os.environ.get('UPSTREAM_KEY', 'none')}"},
    # A cold start takes minutes; a caller that doesn't want to wait disconnects.
    timeout=httpx2.Timeout(None, connect=5),
    limits=httpx2.Limits(max_connections=MAX_REQUESTS),
)


def find_customer(request: Request) -> tuple[str, list[str]]:
    """Return the name and the models of the customer who has the request's key."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    key = bearer or request.headers.get("x-api-key", "")
    # The time of this search depends only on the digest, from which a key can't be guessed.
    customer = CUSTOMERS.get(hashlib.sha256(key.encode()).hexdigest())
    if customer is None:
        raise HTTPException(401, "The request carries no key, or a wrong one.")
    return customer


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request. Of a repeated key only the last value is passed on."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY_BYTES:
            raise HTTPException(413, f"The body has more than {MAX_BODY_BYTES:,} bytes.")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise HTTPException(400, "The body is not a JSON object.")
    return body


async def send_upstream(request: Request, body: dict[str, Any]) -> httpx2.Response:
    """Return the response, whose body is not read yet; stop waiting if the caller disconnects."""
    # Only the path of the route and the checked body are passed on: no header and no query.
    content = json.dumps(body)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    sent = UPSTREAM.build_request("POST", request.url.path, content=content, headers=headers)
    response = None

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_for_disconnect)
        try:
            response = await UPSTREAM.send(sent, stream=True)
        except httpx2.TransportError as error:
            print(f"upstream: {error!r}")
        tasks.cancel_scope.cancel()
    if response is None:
        raise HTTPException(502, "The service is not available.")
    return response


async def read_parts(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the parts of a response as they arrive. Closing it early cancels the request."""
    try:
        async for part in response.aiter_raw():
            yield part
    finally:
        await response.aclose()


async def answer(request: Request) -> Response:
    name, models = find_customer(request)
    body = await read_body(request)
    if body.setdefault("model", models[0]) not in models:
        raise HTTPException(404, f"There is no such model; you can use {', '.join(models)}.")
    passed = {key: value for key, value in body.items() if key not in DROPPED_KEYS}
    response = await send_upstream(request, {**passed, "user": name, "cache_salt": name})
    headers = {key: response.headers[key] for key in PASSED_HEADERS if key in response.headers}
    return StreamingResponse(read_parts(response), response.status_code, headers)


async def list_models(request: Request) -> Response:
    # The upstream's list has the adapters of all customers, and would start a worker.
    _, models = find_customer(request)
    facts = {"object": "model", "created": 0, "owned_by": "operator"}
    return JSONResponse({"object": "list", "data": [{"id": id, **facts} for id in models]})


async def refuse(request: Request, error: Exception) -> Response:
    """Return an error that OpenAI's and Anthropic's clients understand."""
    assert isinstance(error, HTTPException)
    kind = ERROR_TYPES.get(error.status_code, "invalid_request_error")
    facts = {"message": error.detail, "type": kind, "param": None, "code": error.status_code}
    return JSONResponse({"type": "error", "error": facts}, error.status_code)


app = Starlette(
    routes=[
        *(Route(path, answer, methods=["POST"]) for path in ROUTES),
        Route("/v1/models", list_models),
    ],
    exception_handlers={HTTPException: refuse},
)

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8080")), limit_concurrency=MAX_REQUESTS)
