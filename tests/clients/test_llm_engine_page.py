"""The examples of docs/llm-engine.md: what each prints, each way that they reach a worker.

A block of ``python llm-engine`` is an example, and a block of ``text output`` behind it is what it
prints. The ways follow where it does not work in all. All run in order, in one process.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import ROOT
from support.processes.clients import require_installed
from support.processes.llm_engine import (
    CLASSES,
    CLIENT,
    PROXY,
    SERVE,
    SERVING,
    Host,
    reached,
    served,
)
from support.processes.local_endpoint import READY, local_endpoint
from support.tables.api_examples import matches

DOCUMENT = (ROOT / "docs" / "llm-engine.md").read_text()
EXAMPLE = re.compile(
    r"^```python llm-engine([ a-z]*)\n(.*?)^```$(?:\n\n```text output\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = EXAMPLE.findall(DOCUMENT)


def works(way: str, ways: str) -> bool:
    return not ways or way in ways.split()


@contextmanager
def in_front(way: str, environ: dict[str, str], folder: Path) -> Iterator[Host]:
    """Reach a worker as the page has it, with an empty volume."""
    if way == SERVE:
        with served(environ, folder) as host:
            yield host
        return
    volume = folder / "volume"
    volume.mkdir()
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}"]
    settings = {**environ, **SERVING, "BASE_PATH": str(volume)}
    with local_endpoint(command, settings, folder / "output") as endpoint:
        endpoint.wait_for_output(READY)
        with reached(way, endpoint, volume, Path(environ["MODEL_NAME"]), folder) as host:
            yield host


@pytest.fixture(scope="module", params=[SERVE, PROXY, CLASSES])
def outputs(
    request: pytest.FixtureRequest,
    worker_environ: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[int, str]:
    """Return what the examples print that work this way, by their numbers."""
    way: str = request.param
    if way != CLASSES:
        require_installed(CLIENT)
    folder: Path = tmp_path_factory.mktemp("page")
    codes = {number: code for number, (ways, code, _) in enumerate(EXAMPLES) if works(way, ways)}
    with in_front(way, worker_environ, folder) as host:
        host.adapter("fairy-tales")
        found = host.printed("page", stdin=json.dumps(list(codes.values())), cwd=folder)
    return dict(zip(codes, found["outputs"], strict=True))


def test_there_are_examples_and_no_others() -> None:
    assert len(EXAMPLES) == DOCUMENT.count("```python") >= 8
    assert DOCUMENT.count("```text output") == sum(bool(shown) for *_, shown in EXAMPLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_is_shown(number: int, outputs: dict[int, str]) -> None:
    ways, _, shown = EXAMPLES[number]
    if number not in outputs:
        pytest.skip(f"it works with: {ways}")
    shown_lines, lines = shown.split("\n"), outputs[number].split("\n")
    assert len(lines) == len(shown_lines), outputs[number]
    for shown_line, line in zip(shown_lines, lines, strict=True):
        assert matches(shown_line, line), line
