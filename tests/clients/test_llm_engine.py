"""Tests of scripts for Scale LLM Engine with each way to reach a worker.

A block of ``python llm-engine`` in docs/llm-engine.md is an example, and a following block of
``text
output`` is its output. If an example does not work with all ways, the info string lists its ways.
All examples run in order in one process. Then follow calls that are not on the page.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.clients.llm_engine import (
    CLASSES,
    CLIENT,
    PROXY,
    SERVE,
    WAYS,
    WORKER_SETTINGS,
    LLMEngineHost,
    endpoint_host,
    serve_host,
)
from support.clients.scripts import require_installed
from support.processes.servers import READY, local_endpoint
from support.tables.api_examples import matches

DOCUMENT = (ROOT / "docs" / "llm-engine.md").read_text()
EXAMPLE = re.compile(
    r"^```python llm-engine([ a-z]*)\n(.*?)^```$(?:\n\n```text output\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = EXAMPLE.findall(DOCUMENT)


@pytest.fixture(scope="module", params=WAYS)
def host(
    request: pytest.FixtureRequest,
    worker_environ: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LLMEngineHost]:
    """Start a worker with an empty volume, reached in one of the page's ways."""
    way: str = request.param
    if way != CLASSES:
        require_installed(CLIENT)
    folder: Path = tmp_path_factory.mktemp("way")
    if way == SERVE:
        with serve_host(worker_environ, folder) as found:
            yield found
        return
    volume = folder / "volume"
    volume.mkdir()
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}"]
    settings = {**worker_environ, **WORKER_SETTINGS, "BASE_PATH": str(volume)}
    with local_endpoint(command, settings, folder / "output") as endpoint:
        endpoint.wait_for_output(READY)
        with endpoint_host(
            way, endpoint, volume, Path(worker_environ["MODEL_NAME"]), folder
        ) as found:
            yield found


@pytest.fixture(scope="module")
def outputs(host: LLMEngineHost, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return the outputs of the examples that work with this way, by their numbers."""
    codes = {
        number: code
        for number, (ways, code, _) in enumerate(EXAMPLES)
        if not ways or host.way in ways.split()
    }
    host.adapter("fairy-tales")
    folder = tmp_path_factory.mktemp("page")
    found = host.run_program("page", stdin=json.dumps(list(codes.values())), cwd=folder)
    return dict(zip(codes, found["outputs"], strict=True))


def test_every_python_block_of_the_page_is_an_example() -> None:
    assert len(EXAMPLES) == DOCUMENT.count("```python") >= 8
    assert DOCUMENT.count("```text output") == sum(bool(expected) for *_, expected in EXAMPLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_the_documented_output(number: int, outputs: dict[int, str]) -> None:
    ways, _, expected = EXAMPLES[number]
    if number not in outputs:
        pytest.skip(f"it works with: {ways}")
    expected_lines, lines = expected.split("\n"), outputs[number].split("\n")
    assert len(lines) == len(expected_lines), outputs[number]
    for expected_line, line in zip(expected_lines, lines, strict=True):
        assert matches(expected_line, line), line


# Calls that are not on the page. Refusals raise an error class of the client:

BAD_REQUEST, NOT_FOUND = "BadRequestError", "NotFoundError"
EACH_WAY = ("sync", "stream", "async", "async stream")
REFUSED: dict[str, dict[str, tuple[str, str]]] = {
    "unknown model": dict.fromkeys(EACH_WAY, (NOT_FOUND, "org/none")),
    "other values": {
        "wrong regex": (BAD_REQUEST, "regex"),
        "too long": (BAD_REQUEST, "2,048"),
        "too large": (BAD_REQUEST, "20,000,000"),
    },
    "not there": {
        "content": (NOT_FOUND, "no file"),
        "batch": (NOT_FOUND, "no batch"),
        "deleted model": (NOT_FOUND, "no model 'none'"),
        "cancelled fine-tune": (NOT_FOUND, "no fine-tuning job"),
    },
    # The classes have no call that sets a key.
    "wrong key": dict.fromkeys([*EACH_WAY, "models"], ("UnauthorizedError", "key")),
}
# A base is a host, optionally with a path.
BASES = {SERVE: ["/v1", "/v1/", "/"], PROXY: ["/v2/local/", "/v2/local/openai", "/"], CLASSES: []}


@pytest.fixture(scope="module")
def call_results(host: LLMEngineHost, outputs: dict[int, str]) -> dict[str, Any]:
    """Return the results of the calls, after the examples of the page."""
    assert outputs
    parts = [part for part in REFUSED if (host.way, part) != (CLASSES, "wrong key")]
    bases = [f"{host.url}{end}" for end in BASES[host.way]]
    return host.run_program("calls", ",".join(parts), *bases)


def test_keys_have_their_effect_and_streams_equal_the_whole_answer(
    call_results: dict[str, Any],
) -> None:
    texts = {name: found["whole"] for name, found in call_results["completions"].items()}
    assert texts == {name: found["streamed"] for name, found in call_results["completions"].items()}
    assert texts["plain"].startswith(" that lived beside a wide river")
    assert texts["stop"] == " that lived beside a"
    assert texts["with the stop"] == " that lived beside a wide"
    learnt = {"name": "demo", "streams": None, "chunks": [1, 3, 9, 27]}
    assert json.loads(texts["json"]) == learnt
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", texts["regex"])
    assert texts["choice"] in {"Paris", "London"}
    assert texts["grammar"] in {"yes no end", "yes perhaps end"}


def test_models_are_listed_under_any_base_path(
    call_results: dict[str, Any], host: LLMEngineHost
) -> None:
    if host.way == CLASSES:
        pytest.skip("the classes have no base path")
    assert len(call_results["bases"]) == len(BASES[host.way])
    assert all("demo" in names for names in call_results["bases"])


def test_a_refusal_raises_the_error_class_of_the_client_with_the_reason(
    call_results: dict[str, Any],
) -> None:
    for part, found in call_results["refused"].items():
        assert found.keys() == REFUSED[part].keys()
        for name, (error, message) in found.items():
            kind, says = REFUSED[part][name]
            assert (error, says in message) == (kind, True), (name, error, message)
            # The message is not wrapped in JSON.
            assert error != BAD_REQUEST or not message.startswith("{"), (name, message)
