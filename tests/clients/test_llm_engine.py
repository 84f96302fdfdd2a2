"""Scripts for Scale LLM Engine, each way that they reach a worker.

A block of ``python llm-engine`` in docs/llm-engine.md is an example, and a block of ``text output``
behind it is what it prints. The ways follow where it does not work in all. All run in order, in one
process; then come calls that the page does not show.
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
    SERVING,
    WAYS,
    Host,
    reached,
    served,
)
from support.clients.scripts import require_installed
from support.processes.local_endpoint import READY, local_endpoint
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
) -> Iterator[Host]:
    """Reach a worker as the page has it, with an empty volume."""
    way: str = request.param
    if way != CLASSES:
        require_installed(CLIENT)
    folder: Path = tmp_path_factory.mktemp("way")
    if way == SERVE:
        with served(worker_environ, folder) as found:
            yield found
        return
    volume = folder / "volume"
    volume.mkdir()
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}"]
    settings = {**worker_environ, **SERVING, "BASE_PATH": str(volume)}
    with local_endpoint(command, settings, folder / "output") as endpoint:
        endpoint.wait_for_output(READY)
        with reached(way, endpoint, volume, Path(worker_environ["MODEL_NAME"]), folder) as found:
            yield found


@pytest.fixture(scope="module")
def outputs(host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return what the examples print that work this way, by their numbers."""
    codes = {
        number: code
        for number, (ways, code, _) in enumerate(EXAMPLES)
        if not ways or host.way in ways.split()
    }
    host.adapter("fairy-tales")
    folder = tmp_path_factory.mktemp("page")
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


# What the page does not show. Refusals are errors of the client, by their classes:

BAD, NONE = "BadRequestError", "NotFoundError"
EACH_WAY = ("sync", "stream", "async", "async stream")
REFUSED: dict[str, dict[str, tuple[str, str]]] = {
    "unknown model": dict.fromkeys(EACH_WAY, (NONE, "org/none")),
    "other values": {
        "wrong regex": (BAD, "regex"),
        "too long": (BAD, "2,048"),
        "too large": (BAD, "20,000,000"),
    },
    "not there": {
        "content": (NONE, "no file"),
        "batch": (NONE, "no batch"),
        "deleted model": (NONE, "no model 'none'"),
        "cancelled fine-tune": (NONE, "no fine-tuning job"),
    },
    # The classes have no calls that set a key.
    "wrong key": dict.fromkeys([*EACH_WAY, "models"], ("UnauthorizedError", "key")),
}
# A base is a host, or has a path behind it.
BASES = {SERVE: ["/v1", "/v1/", "/"], PROXY: ["/v2/local/", "/v2/local/openai", "/"], CLASSES: []}


@pytest.fixture(scope="module")
def calls(host: Host, outputs: dict[int, str]) -> dict[str, Any]:
    """Return what the calls were answered, after the examples of the page."""
    assert outputs
    parts = [part for part in REFUSED if (host.way, part) != (CLASSES, "wrong key")]
    bases = [f"{host.url}{end}" for end in BASES[host.way]]
    return host.printed("calls", ",".join(parts), *bases)


def test_keys_have_their_effect_and_streams_are_the_whole_answer(calls: dict[str, Any]) -> None:
    texts = {name: found["whole"] for name, found in calls["completions"].items()}
    assert texts == {name: found["streamed"] for name, found in calls["completions"].items()}
    assert texts["plain"].startswith(" that lived beside a wide river")
    assert texts["stop"] == " that lived beside a"
    assert texts["with the stop"] == " that lived beside a wide"
    learnt = {"name": "demo", "streams": None, "chunks": [1, 3, 9, 27]}
    assert json.loads(texts["json"]) == learnt
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", texts["regex"])
    assert texts["choice"] in {"Paris", "London"}
    assert texts["grammar"] in {"yes no end", "yes perhaps end"}


def test_models_are_listed_under_any_base_path(calls: dict[str, Any], host: Host) -> None:
    if host.way == CLASSES:
        pytest.skip("the classes have no base path")
    assert len(calls["bases"]) == len(BASES[host.way])
    assert all("demo" in names for names in calls["bases"])


def test_a_refusal_is_the_error_that_the_client_knows_with_the_reason(
    calls: dict[str, Any],
) -> None:
    for part, found in calls["refused"].items():
        assert found.keys() == REFUSED[part].keys()
        for name, (error, message) in found.items():
            kind, says = REFUSED[part][name]
            assert (error, says in message) == (kind, True), (name, error, message)
            # The message alone, without what is around.
            assert error != BAD or not message.startswith("{"), (name, message)
