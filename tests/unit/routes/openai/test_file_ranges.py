"""Parts of a file's content, as jobs."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import ScriptedEngine, failure, settings, yields_of

from worker.chunking import YIELD_LIMIT_BYTES
from worker.files import Files
from worker.routes.answer import json_size
from worker.routes.openai.files import LARGEST

# Larger than what a job answers at once.
CONTENT = bytes(range(256)) * (LARGEST // 256 + 1)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


async def yields(engine: ScriptedEngine, root: Path, content: bytes, query: str) -> list[Any]:
    """Return the yields of a job for the content of a new file."""
    environ = {"FILES_PATH": str(root / "volume")}
    id = Files.of(settings(**environ)).receive([content], filename="a").id
    payload = {"openai_route": f"/v1/files/{id}/content?{query}"}
    return await yields_of(engine, payload, **environ)


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("offset=0&limit=5", CONTENT[:5]),
        ("offset=3&limit=2000000", CONTENT[3:2_000_003]),
        (f"offset={len(CONTENT) - 3}", CONTENT[-3:]),
        ("limit=14000000", CONTENT[:14_000_000]),
        (f"offset={len(CONTENT)}", b""),
        ("offset=99999999999", b""),
    ],
)
async def test_a_range_of_a_content_comes_as_base64(
    engine: ScriptedEngine, tmp_path: Path, query: str, part: bytes
) -> None:
    found = await yields(engine, tmp_path, CONTENT, query)
    assert base64.b64decode("".join(one["content_base64"] for one in found)) == part
    assert max(map(json_size, found)) < YIELD_LIMIT_BYTES
    assert sum(map(json_size, found)) < LARGEST


@pytest.mark.parametrize("query", ["offset=-1", "limit=0", "limit=14000001", "offset=a"])
async def test_a_range_that_is_none_is_refused_by_name(
    engine: ScriptedEngine, tmp_path: Path, query: str
) -> None:
    error = failure(await yields(engine, tmp_path, b"a", query))
    assert (error["code"], error["param"]) == (400, query.partition("=")[0])
