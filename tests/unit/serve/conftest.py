"""Fixtures: a scripted engine, settings, and an HTTP client of the app in front of the engine."""

from collections.abc import AsyncIterator, Iterator

import pytest
from support.engine.scripted import ScriptedEngine, tokens
from support.serve_client import ServeClient


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine that answers "a"."""
    with ScriptedEngine(*tokens("a")) as engine:
        yield engine


@pytest.fixture
def environ() -> dict[str, str]:
    return {}


@pytest.fixture
async def http_client(
    engine: ScriptedEngine, environ: dict[str, str]
) -> AsyncIterator[ServeClient]:
    async with ServeClient(engine, **environ) as client:
        yield client
