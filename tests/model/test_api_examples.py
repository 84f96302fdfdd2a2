"""Examples of the pages on the real engine, and the tables of docs/reference held to the code."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, broken_stream, yields_of
from support.releases import of_the_pinned
from support.tables.api_examples import (
    GUIDE,
    REFERENCE,
    Block,
    Example,
    blocks,
    events,
    examples,
    matches,
    rows,
)

from worker import asgi
from worker.app import Worker
from worker.dialects.table import ROUTES
from worker.engine import Engines
from worker.errors import EngineDead
from worker.media.walker import DENIED
from worker.settings import Settings

if TYPE_CHECKING:
    from worker.engine.run.inprocess import InProcessEngine

KINDS = {"json job", "json output", "json error", "sse output", "sse end", "sh"}
SCRIPTS = {"python endpoint", "sh endpoint", "python serve", "python sees", "python adapter"}


@pytest.mark.parametrize("example", examples(endpoint=False), ids=lambda example: example.name)
async def test_a_job_is_answered_as_it_is_shown(
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


def test_every_block_is_an_example_that_runs() -> None:
    assert {block.kind for page in REFERENCE for block in blocks(page)} <= KINDS
    assert {block.kind for block in blocks(GUIDE)} <= KINDS | SCRIPTS | {"text output"}


class Breaking(ScriptedEngine):
    """Dies in the middle of a stream, whatever the route."""

    def keys(self, _: str) -> frozenset[str] | None:
        return frozenset()

    async def call(self, *_: Any) -> AsyncGenerator[asgi.Head | bytes, None]:
        yield asgi.Head(200, "text/event-stream")
        yield b'data: {"a": "token"}\n\n'
        raise EngineDead


@pytest.mark.parametrize(
    "shown",
    [block for page in REFERENCE for block in blocks(page) if block.kind == "sse end"],
    ids=lambda end: end.words[0],
)
async def test_a_stream_breaks_off_as_it_is_shown(shown: Block) -> None:
    job = {"openai_route": shown.words[0], "openai_input": {"stream": True}}
    with Breaking() as engine:
        begun, failed_with = broken_stream(await yields_of(engine, job))
    first, *last = events("".join(begun))
    assert first == [{"a": "token"}]
    assert matches(events(shown.text), last), last
    assert (failed_with["code"], failed_with["retryable"]) == (503, True)


def test_every_route_has_its_row() -> None:
    documented = {
        (method, path): (answers, streams) for method, path, answers, streams, _ in rows("Routes")
    }
    assert documented == {
        (route.method, route.template): (
            "the worker" if route.own else "the engine" if route.generate else "vLLM",
            "yes" if route.streams else "",
        )
        for route in ROUTES
    }


@of_the_pinned
def test_every_parameter_of_both_routes_has_its_row(demo_engine: "InProcessEngine") -> None:
    chat, completion = (demo_engine.keys(path) or frozenset() for path in (CHAT, "/v1/completions"))
    documented = {
        name: place
        for names, place, *_ in rows("Chat completions and completions")
        for name in re.findall(r"\w+", names)
    }
    assert (chat | completion) - DENIED.keys() <= documented.keys()
    assert not {name for name, place in documented.items() if place == "chat"} & completion
    assert not {name for name, place in documented.items() if place == "completions"} & chat


def test_the_page_names_every_refused_key_with_the_reason() -> None:
    assert dict(rows("Refused keys")) == DENIED
