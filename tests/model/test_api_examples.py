"""Tests of the pages' examples on the real engine, and of the tables in docs/reference."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, split_stream_error, yields_of
from support.releases import needs_pinned_vllm
from support.tables.api_examples import (
    GUIDE,
    REFERENCE,
    Block,
    Example,
    blocks,
    events,
    examples,
    matches,
    table_cells,
)

from worker import asgi
from worker.app import Worker
from worker.dialects.llm_engine import ROUTES as LLM_ENGINE_ROUTES
from worker.dialects.table import ROUTES
from worker.engine import Engines
from worker.errors import EngineDead
from worker.media.walker import DENIED_KEYS
from worker.routes.route import Route
from worker.settings import Settings
from worker.settings.routes import ROUTES_BY_GROUP

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

KINDS = {"json job", "json output", "json error", "sse output", "sse end", "sh"}
# The tests of clients run these scripts.
CLIENT_SCRIPTS = {"python llm-engine", "text output"}
SCRIPTS = {"python endpoint", "sh endpoint", "python serve", "python sees", "python adapter"}


@pytest.mark.parametrize("example", examples(endpoint=False), ids=lambda example: example.name)
async def test_a_job_has_the_documented_response(
    example: Example, demo_engine: "InProcessEngine", demo_model: Path, tmp_path: Path
) -> None:
    environ = {
        "MODEL_NAME": str(demo_model),
        "DEFAULT_BATCH_MAX_DELAY_MS": "0",
        "FILES_PATH": str(tmp_path),
    }
    worker = Worker(Engines(demo_engine), Settings.from_env({**environ, **example.settings}))
    job = {"id": "job-1", "input": example.payload}
    example.check([chunk async for chunk in worker.handle(job)])


def test_every_code_block_is_a_tested_example() -> None:
    assert {block.kind for page in REFERENCE for block in blocks(page)} <= KINDS | CLIENT_SCRIPTS
    assert {block.kind for block in blocks(GUIDE)} <= KINDS | SCRIPTS | {"text output"}


class DyingEngine(ScriptedEngine):
    """An engine that dies in the middle of a stream on every route."""

    def body_keys(self, _: str) -> frozenset[str] | None:
        return frozenset()

    async def call(self, *_: Any) -> AsyncGenerator[asgi.ResponseHead | bytes, None]:
        yield asgi.ResponseHead(200, "text/event-stream")
        yield b'data: {"a": "token"}\n\n'
        raise EngineDead


@pytest.mark.parametrize(
    "block",
    [block for page in REFERENCE for block in blocks(page) if block.kind == "sse end"],
    ids=lambda end: end.words[0],
)
async def test_a_broken_stream_ends_as_documented(block: Block) -> None:
    job = {"openai_route": block.words[0], "openai_input": {"stream": True}}
    with DyingEngine() as engine:
        received, error = split_stream_error(await yields_of(engine, job))
    first, *last = events("".join(received))
    assert first == [{"a": "token"}]
    assert matches(events(block.text), last), last
    assert (error["code"], error["retryable"]) == (503, True)


def test_the_tables_have_a_row_for_each_route() -> None:
    documented = {
        (method, path): (heading, "stream" in effect, "".join(group))
        for heading in ("vLLM's routes", "The worker's routes", "LLM Engine's routes")
        for methods, path, *group, effect in table_cells(heading)
        for method in methods.split(", ")
    }
    assert documented == {
        (route.method, route.path_template): (
            _heading(route),
            route.streams,
            "".join(group for group, names in ROUTES_BY_GROUP.items() if route.name in names),
        )
        for route in ROUTES
    }


def _heading(route: Route) -> str:
    if route in LLM_ENGINE_ROUTES:
        return "LLM Engine's routes"
    return "The worker's routes" if route.handler else "vLLM's routes"


@needs_pinned_vllm
def test_the_table_has_a_row_for_each_parameter_of_both_routes(
    demo_engine: "InProcessEngine",
) -> None:
    chat, completion = (
        demo_engine.body_keys(path) or frozenset() for path in (CHAT, "/v1/completions")
    )
    documented = {
        name: place
        for names, place, *_ in table_cells("Chat completions and completions")
        for name in re.findall(r"\w+", names)
    }
    assert (chat | completion) - DENIED_KEYS.keys() <= documented.keys()
    assert not {name for name, place in documented.items() if place == "chat"} & completion
    assert not {name for name, place in documented.items() if place == "completions"} & chat
