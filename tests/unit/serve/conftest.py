"""A scripted engine, and a client of the app in front of it, with settings."""

from collections.abc import AsyncIterator, Iterator

import pytest
from support.engine.scripted import ScriptedEngine, tokens
from support.served import Served


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """Answers "a"."""
    with ScriptedEngine(*tokens("a")) as engine:
        yield engine


@pytest.fixture
def environ() -> dict[str, str]:
    return {}


@pytest.fixture
async def http_client(engine: ScriptedEngine, environ: dict[str, str]) -> AsyncIterator[Served]:
    async with Served(engine, **environ) as connected:
        yield connected
