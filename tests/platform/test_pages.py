"""Tests of the examples in README.md, docs/guide.md and docs/reference."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.models import lora, vision
from support.processes.commands import HOME, SCRIPT, WORKER, run_command
from support.processes.servers import KEY, LocalEndpoint, ServerProcess, http_worker
from support.tables.api_examples import GUIDE, Example, blocks, examples, matches_text, scripts

README = (ROOT / "README.md").read_text()
SAMPLES: list[tuple[str, str]] = re.findall(
    r"^ *```(\w+)\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL
)
# The directory of an endpoint's logs in the README.
LOGS = ".endpoint/8000"

pytestmark = pytest.mark.usefixtures("demo_model")


def create_params(found: list[Example]) -> list[Any]:
    """Return examples as test parameters; programs in Python but the first are slow tests."""
    seen = set[str]()
    rows = []
    for example in found:
        kind = example.job.kind
        marks = [pytest.mark.slow] if kind in seen and kind.startswith("python") else []
        seen.add(kind)
        rows.append(pytest.param(example, id=example.name, marks=marks))
    return rows


# README.md:


def find_sample(words: str, language: str = "text") -> str:
    """Return the only sample that contains these words."""
    (found,) = [text for kind, text in SAMPLES if kind == language and words in text]
    return found


def normalize(text: str) -> str:
    """Replace numbers, which differ between machines, and join all lines."""
    return " ".join(re.sub(r"\d+(\.\d+)?", "N", text).split())


def test_make_endpoint_prints_its_addresses_and_examples(make_endpoint: LocalEndpoint) -> None:
    expected = find_sample("The endpoint: ").removesuffix("...\n")
    printed = make_endpoint.output.replace(str(make_endpoint.log.parent), LOGS)
    assert normalize(expected) in normalize(printed)


def test_wrong_settings_are_reported_as_in_the_readme() -> None:
    expected = find_sample("settings are wrong")
    wrong = dict(re.findall(r"^  (\w+) = '(.+?)':", expected, re.MULTILINE))
    result = run_command({**WORKER, **wrong, "MAX_MODEL_LENGTH": "4096"}, SCRIPT)
    assert expected in result.stderr
    assert result.returncode == 1


def test_a_raw_job_has_the_response_of_the_readme(make_endpoint: LocalEndpoint) -> None:
    (body,) = re.findall(r"-d '(.+)'\n", find_sample("$RUNPOD_API_KEY", "sh"))
    (answer,) = make_endpoint.run(json.loads(body)["input"])
    (expected,) = json.loads(find_sample("finish_reason", "json"))
    assert answer.pop("request_id").startswith(expected.pop("request_id").removesuffix("…"))
    assert answer == expected


def test_the_openai_program_of_the_readme_streams_an_answer(make_endpoint: LocalEndpoint) -> None:
    program = find_sample("from openai import", "python")
    program = program.replace("https://api.runpod.ai/v2/<ENDPOINT ID>", make_endpoint.url)
    program = program.replace("<MODEL_NAME>", "demo")
    result = run_command({**HOME, "RUNPOD_API_KEY": "any"}, sys.executable, "-c", program)
    assert (result.returncode, bool(result.stdout.strip())) == (0, True), result.stderr


def test_the_readme_has_the_speed_of_the_measured_table() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    table = page.split("### One thread\n")[1].split("\n### ")[0]
    paragraph = " ".join(README.split("**Speed**")[1].split("\n\n")[0].split())
    for row, digits in {
        "start to the first streamed token, s": 1,
        "idle: first token p50, ms": 0,
        "64 streams: tokens/s": 0,
        "64 streams: gap between tokens p99, ms": 0,
    }.items():
        cells = next(line for line in table.splitlines() if line.startswith(f"| {row} ")).split("|")
        worker, server = (f"{float(cell.replace(',', '')):,.{digits}f}" for cell in cells[2:4])
        assert re.search(rf"\b{worker} [^;,]*instead of {server}\b", paragraph), row


# The guide and the reference:


def check_script(script: Example, environ: Mapping[str, str], folder: Path) -> None:
    """Run a script; assert that it prints the documented output."""
    language = script.job.kind.partition(" ")[0]
    interpreter = [sys.executable] if language == "python" else ["bash", "-euo", "pipefail"]
    environ = {"PATH": HOME["PATH"], **environ}
    ran = run_command(environ, *interpreter, "-c", script.job.text, folder=folder)
    assert ran.returncode == 0, ran.stderr
    if script.answer:
        assert matches_text(script.answer.text.rstrip("\n"), ran.stdout.rstrip("\n")), ran.stdout


def client_variables(worker: ServerProcess, key: str = "any") -> dict[str, str]:
    """Return the variables with a worker's address for clients."""
    openai = {"OPENAI_BASE_URL": f"{worker.url}/v1", "OPENAI_API_KEY": key}
    return {**openai, "ANTHROPIC_BASE_URL": worker.url, "ANTHROPIC_API_KEY": key}


@pytest.mark.parametrize("example", examples(endpoint=True), ids=lambda example: example.name)
def test_a_job_has_the_documented_response(example: Example, make_endpoint: LocalEndpoint) -> None:
    example.check(make_endpoint.run(example.payload))


@pytest.mark.parametrize("script", create_params(scripts("endpoint")))
def test_a_script_prints_the_documented_output(
    script: Example, make_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    address = "http://127.0.0.1:8000/v2/local"
    (exports,) = [block.text for block in blocks(GUIDE) if f"ENDPOINT={address}" in block.text]
    # Run the exports in a shell as a reader would, with the port of this endpoint.
    shell = exports.replace(address, make_endpoint.url) + "env -0"
    environ = run_command(HOME, "bash", "-euc", shell).stdout.split("\0")
    check_script(script, dict(one.split("=", 1) for one in environ if one), tmp_path)


@pytest.mark.parametrize("script", create_params(scripts("serve")))
def test_a_script_over_http_prints_the_documented_output(
    script: Example, server: ServerProcess, tmp_path: Path
) -> None:
    check_script(script, client_variables(server, KEY), tmp_path)


# Each test starts its own worker.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sees", "adapter"])
def test_a_script_calls_a_vision_model_or_an_adapter(
    kind: str, worker_environ: dict[str, str], demo_model: Path, tmp_path: Path
) -> None:
    if kind == "sees":
        vision.make_vision_model(tmp_path / "model", demo_model)
        settings = {"MODEL_NAME": str(tmp_path / "model"), "MAX_MODEL_LEN": "512"}
    else:
        lora.make_adapter(tmp_path / "adapters" / "fairy-tales", demo_model)
        settings = {"ENABLE_LORA": "1", "BASE_PATH": str(tmp_path)}
    (script,) = scripts(kind)
    with http_worker({**worker_environ, **settings}, tmp_path / "log") as worker:
        check_script(script, client_variables(worker), tmp_path)
