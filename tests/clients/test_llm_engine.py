"""Tests of scripts for Scale LLM Engine with each way to reach a worker.

A block of ``python llm-engine`` in docs/llm-engine.md is an example, and a following block of
``text
output`` is its output. If an example does not work with all ways, the info string lists its ways.
All examples run in order in one process. Then follow calls that are not on the page.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients.conftest import WORKER_SETTINGS
from support import ROOT
from support.clients import client_answers, client_folder, require_installed
from support.models.lora import make_adapter
from support.processes.servers import (
    ACCOUNT,
    KEY,
    READY,
    client_proxy,
    http_worker,
    local_endpoint,
)
from support.tables.api_examples import matches

CLIENT = client_folder("llm-engine")
PROGRAMS = Path(__file__).parent / "programs"
OWN_PACKAGE = re.compile(r"\bllmengine\b")
# Ways in which a script reaches a worker: over HTTP; through the proxy, in front of the local
# platform; or with our classes.
SERVE, PROXY, CLASSES = WAYS = ("serve", "proxy", "classes")
DOCUMENT = (ROOT / "docs" / "llm-engine.md").read_text()
EXAMPLE = re.compile(
    r"^```python llm-engine([ a-z]*)\n(.*?)^```$(?:\n\n```text output\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
EXAMPLES = EXAMPLE.findall(DOCUMENT)


@dataclass(frozen=True)
class LLMEngineHost:
    """A worker that serves the demo model and adapters to scripts.

    ``way`` is one of WAYS, ``environ`` the environment of the scripts.
    """

    way: str
    # For our classes, the platform's URL.
    url: str
    environ: dict[str, str]

    def run_program(
        self, program: str, *arguments: str, stdin: str | None = None, cwd: Path = ROOT
    ) -> dict[str, Any]:
        """Run ``llm_engine_<program>.py``; return the answers that it printed."""
        interpreter = sys.executable if self.way == CLASSES else str(CLIENT / "bin" / "python")
        command = [interpreter, "-m", f"clients.programs.llm_engine_{program}", *arguments]
        if self.way == CLASSES and stdin is not None:
            stdin = replace_import(stdin)
        return client_answers(command, self.environ, cwd, stdin)


def replace_import(script: str) -> str:
    """Return a script that imports our classes instead of LLM Engine's own client."""
    return OWN_PACKAGE.sub("llm_worker_client.llm_engine", script)


@pytest.fixture(scope="module", params=WAYS)
def host(
    request: pytest.FixtureRequest,
    worker_environ: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LLMEngineHost]:
    """Start a worker, reached in one of the page's ways, with a volume that has an adapter."""
    way: str = request.param
    if way != CLASSES:
        require_installed(CLIENT)
    folder: Path = tmp_path_factory.mktemp("way")
    volume = folder / "volume"
    make_adapter(volume / "adapters" / "fairy-tales", Path(worker_environ["MODEL_NAME"]))
    settings = {**worker_environ, **WORKER_SETTINGS, "BASE_PATH": str(volume)}
    if way == SERVE:
        with http_worker({**settings, "SERVE_API_KEY": KEY}, folder / "log") as running:
            yield host_over_http(SERVE, running.url)
        return
    command = ["make", "-s", "endpoint", "PORT=0", f"LOGS={folder}"]
    with local_endpoint(command, settings, folder / "output") as endpoint:
        endpoint.wait_for_output(READY)
        if way == PROXY:
            log = folder / "log"
            with client_proxy(endpoint.api_url, log, PROXY_API_KEY=KEY) as proxy:
                yield host_over_http(PROXY, proxy.url)
            return
        programs = folder / "clients" / "programs"
        programs.mkdir(parents=True)
        for program in PROGRAMS.glob("llm_engine_*.py"):
            (programs / program.name).write_text(replace_import(program.read_text()))
        environ = {
            "PYTHONPATH": f"{folder}:{ROOT / 'src'}",
            "RUNPOD_ENDPOINT_ID": "local",
            "RUNPOD_API_KEY": ACCOUNT,
            "RUNPOD_ENDPOINT_BASE_URL": endpoint.api_url,
        }
        yield LLMEngineHost(CLASSES, endpoint.api_url, environ)


def host_over_http(way: str, url: str) -> LLMEngineHost:
    """Return a host for LLM Engine's own client."""
    environ = {
        "PYTHONPATH": str(ROOT / "tests"),
        "LLM_ENGINE_BASE_PATH": f"{url}/",
        "SCALE_API_KEY": KEY,
        # Do not look for the newest version on the internet.
        "LLM_ENGINE_DISABLE_VERSION_CHECK": "true",
    }
    return LLMEngineHost(way, url, environ)


@pytest.fixture(scope="module")
def outputs(host: LLMEngineHost, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Return the outputs of the examples that work with this way, by their numbers."""
    codes = {
        number: code
        for number, (ways, code, _) in enumerate(EXAMPLES)
        if not ways or host.way in ways.split()
    }
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
    "of batches": {"tool": (BAD_REQUEST, "no tools"), "bucket": (BAD_REQUEST, "no other bucket")},
    "base model": {"deleted": (BAD_REQUEST, "only adapters can be deleted")},
    # The classes make and change endpoints.
    "endpoints": dict.fromkeys(("created", "changed"), (BAD_REQUEST, "can't make or change")),
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
    absent = ("wrong key", "endpoints") if host.way == CLASSES else ()
    parts = [part for part in REFUSED if part not in absent]
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
