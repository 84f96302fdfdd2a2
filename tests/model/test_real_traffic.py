"""Tests that bodies of real clients have the same status as with vLLM's own server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from model.conftest import launch_engine
from support.models.configs import CONTEXT, SHORT_TEMPLATE, copy_with_long_context
from support.processes.vllm_server import vllm_server
from support.releases import needs_pinned_vllm, needs_vllm
from support.traffic import compare
from support.traffic.compare import Comparison, Outcome, Row, Send
from support.traffic.extended import RAW_PATH, read_extended
from support.traffic.store import Request, read_last_recorded

from worker.app import Worker
from worker.engine import Engines
from worker.serve.service import WorkerApp
from worker.settings import Settings

OPTIONS = ("--served-model-name", "demo", "--dtype", "float32", "--enable-auto-tool-choice")
SETTINGS = {"SERVED_MODEL_NAME": "demo", "ENABLE_AUTO_TOOL_CHOICE": "1"}
PARSER = "hermes"


class Sides(NamedTuple):
    """The worker: its app for HTTP, and itself for jobs."""

    app: WorkerApp
    worker: Worker


@pytest.fixture(scope="module")
def model(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_with_long_context(
        demo_model, tmp_path_factory.mktemp("long") / "demo", SHORT_TEMPLATE
    )


@pytest.fixture(scope="module")
def sides(model: Path) -> Iterator[Sides]:
    settings = Settings.from_env({"MODEL_NAME": str(model)})
    options = {**SETTINGS, "MAX_MODEL_LEN": str(CONTEXT), "TOOL_CALL_PARSER": PARSER}
    with launch_engine(settings, **options) as engine:
        engines = Engines(engine)
        yield Sides(WorkerApp(engines, settings), Worker(engines, settings))


@pytest.fixture(scope="module")
def vllm_url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("vllm") / "log"
    with vllm_server(model, log, *OPTIONS, "--tool-call-parser", PARSER) as server:
        yield server.url


def job_sender(worker: Worker, send_request: Send) -> Send:
    """Return a function that runs raw jobs, and sends all other requests."""

    async def send(request: Request) -> Outcome:
        if request.path != RAW_PATH:
            return await send_request(request)
        # A body arrives as JSON.
        job: Any = {"id": "job-1", **json.loads(json.dumps(request.body))}
        *_, last = [chunk async for chunk in worker.handle(job)]
        if "error" not in last:
            return Outcome(200)
        error = json.loads(last["error"])["error"]
        return Outcome(error["code"], error["message"])

    return send


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison()


async def test_each_recorded_body_is_answered_or_refused_for_a_reason(
    sides: Sides,
) -> None:
    """`nox -s fuzz -- compare` and the slow test also ask vLLM's server."""

    comparison = Comparison()

    # The model generates text, so both sides refuse them.
    requests = [sent for sent in read_last_recorded() if sent[1].path != "/v1/embeddings"]

    async def accept(_: Request) -> Outcome:
        return Outcome(200)

    transport = httpx.ASGITransport(sides.app)
    async with httpx.AsyncClient(base_url="http://worker", transport=transport) as worker:
        send = job_sender(sides.worker, compare.sender(worker))
        await compare.compare(requests, accept, send, comparison)
    assert comparison.count > 50
    found = comparison.find_unexplained(compare.read_rows())
    assert {str(kind): names for kind, names in found.items()} == {}


@pytest.mark.slow
async def test_bodies_of_real_clients_have_the_same_status_as_with_vllm(
    sides: Sides, vllm_url: str, comparison: Comparison
) -> None:
    requests = [*read_last_recorded(), *read_extended(bases=1)]
    transport = httpx.ASGITransport(sides.app)
    async with (
        httpx.AsyncClient(base_url=vllm_url, timeout=compare.TIMEOUT_S) as vllm,
        httpx.AsyncClient(base_url="http://worker", transport=transport) as worker,
    ):
        send = job_sender(sides.worker, compare.sender(worker))
        await compare.compare(requests, compare.sender(vllm), send, comparison)
    assert comparison.count == len(requests) > 400
    found = comparison.find_unexplained(compare.read_rows())
    assert {str(kind): names for kind, names in found.items()} == {}


@pytest.mark.slow
@needs_pinned_vllm
def test_every_row_of_the_table_has_a_body(comparison: Comparison) -> None:
    def occurs(row: Row) -> bool:
        return row.generated or any(row.explains(kind) for kind in comparison.names)

    assert comparison.count
    assert [row for row in compare.read_rows() if not occurs(row)] == []


@pytest.mark.parametrize(
    "strict",
    [
        True,
        pytest.param(None, marks=needs_vllm("0.31", "constrains the arguments of each named tool")),
    ],
)
async def test_a_refused_schema_names_its_tool_and_property(
    sides: Sides, *, strict: bool | None
) -> None:
    schema = {"type": "string", "pattern": "((a{0,100}){0,100}){0,100}"}
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    tool = {"name": "f", "parameters": parameters, "strict": strict}
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
        "tools": [{"type": "function", "function": tool}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }
    transport = httpx.ASGITransport(sides.app)
    async with httpx.AsyncClient(base_url="http://worker", transport=transport) as client:
        response = await client.post("/v1/chat/completions", json=body)
    if strict:  # without it, the parser's format of calls constrains names only
        message = response.json()["error"]["message"]
        assert message.startswith("structured output: tool 'f', property 'a': it takes more than")
    assert response.status_code == (400 if strict else 200)
