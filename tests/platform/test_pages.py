"""What README.md, docs/guide.md and docs/reference show is what comes of it."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.models import lora, vision
from support.processes.commands import HOME, SCRIPT, WORKER, run
from support.processes.http_worker import KEY, Served, http_worker
from support.processes.local_endpoint import LocalEndpoint
from support.tables.api_examples import GUIDE, Example, blocks, examples, prints, scripts

README = (ROOT / "README.md").read_text()
SAMPLES: list[tuple[str, str]] = re.findall(
    r"^ *```(\w+)\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL
)
# Where an endpoint's logs are.
LOGS = ".endpoint/8000"

pytestmark = pytest.mark.usefixtures("demo_model")


def one_of_each_kind(found: list[Example]) -> list[Any]:
    """Return examples as parameters: of each kind and interpreter one is not slow."""
    seen = set[str]()
    rows = []
    for example in found:
        marks = [pytest.mark.slow] if example.job.kind in seen else []
        seen.add(example.job.kind)
        rows.append(pytest.param(example, id=example.name, marks=marks))
    return rows


# README.md:


def sample(words: str, language: str = "text") -> str:
    """Return the one sample that has these words."""
    (found,) = [text for kind, text in SAMPLES if kind == language and words in text]
    return found


def settled(text: str) -> str:
    """Leave what stands still: neither figures, which differ by machine, nor breaks of lines."""
    return " ".join(re.sub(r"\d+(\.\d+)?", "N", text).split())


def test_make_endpoint_prints_its_addresses_and_examples(make_endpoint: LocalEndpoint) -> None:
    shown = sample("The endpoint: ").removesuffix("...\n")
    printed = make_endpoint.output.replace(str(make_endpoint.log.parent), LOGS)
    assert settled(shown) in settled(printed)


def test_wrong_settings_are_reported_so() -> None:
    shown = sample("settings are wrong")
    wrong = dict(re.findall(r"^  (\w+) = '(.+?)':", shown, re.MULTILINE))
    ended = run({**WORKER, **wrong, "MAX_MODEL_LENGTH": "4096"}, SCRIPT)
    assert shown in ended.stderr
    assert ended.returncode == 1


def test_the_raw_form_is_answered_so(make_endpoint: LocalEndpoint) -> None:
    (body,) = re.findall(r"-d '(.+)'\n", sample("$RUNPOD_API_KEY", "sh"))
    (answer,) = make_endpoint.run(json.loads(body)["input"])
    (shown,) = json.loads(sample("finish_reason", "json"))
    assert answer.pop("request_id").startswith(shown.pop("request_id").removesuffix("…"))
    assert answer == shown


def test_the_openai_client_streams_the_answer(make_endpoint: LocalEndpoint) -> None:
    program = sample("from openai import", "python")
    program = program.replace("https://api.runpod.ai/v2/<ENDPOINT ID>", make_endpoint.url)
    program = program.replace("<MODEL_NAME>", "demo")
    ended = run({**HOME, "RUNPOD_API_KEY": "any"}, sys.executable, "-c", program)
    assert (ended.returncode, bool(ended.stdout.strip())) == (0, True), ended.stderr


# The guide and the reference:


def check(script: Example, environ: Mapping[str, str], folder: Path) -> None:
    """Run a script; assert that it prints what is shown."""
    language = script.job.kind.partition(" ")[0]
    interpreter = [sys.executable] if language == "python" else ["bash", "-euo", "pipefail"]
    environ = {"PATH": HOME["PATH"], **environ}
    ran = run(environ, *interpreter, "-c", script.job.text, folder=folder)
    assert ran.returncode == 0, ran.stderr
    if script.answer:
        assert prints(script.answer.text.rstrip("\n"), ran.stdout.rstrip("\n")), ran.stdout


def over_http(worker: Served, key: str = "any") -> dict[str, str]:
    """Return the variables by which clients find a worker."""
    openai = {"OPENAI_BASE_URL": f"{worker.url}/v1", "OPENAI_API_KEY": key}
    return {**openai, "ANTHROPIC_BASE_URL": worker.url, "ANTHROPIC_API_KEY": key}


@pytest.mark.parametrize("example", examples(endpoint=True), ids=lambda example: example.name)
def test_a_job_is_answered_as_it_is_shown(example: Example, make_endpoint: LocalEndpoint) -> None:
    example.check(make_endpoint.run(example.payload))


@pytest.mark.parametrize("script", one_of_each_kind(scripts("endpoint")))
def test_a_script_prints_what_is_shown(
    script: Example, make_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    address = "http://127.0.0.1:8000/v2/local"
    (exports,) = [block.text for block in blocks(GUIDE) if f"ENDPOINT={address}" in block.text]
    # As a reader does it: the exports, in a shell, with the port that this endpoint has.
    shell = exports.replace(address, make_endpoint.url) + "env -0"
    environ = run(HOME, "bash", "-euc", shell).stdout.split("\0")
    check(script, dict(one.split("=", 1) for one in environ if one), tmp_path)


@pytest.mark.parametrize("script", one_of_each_kind(scripts("serve")))
def test_a_script_prints_what_is_shown_over_http(
    script: Example, server: Served, tmp_path: Path
) -> None:
    check(script, over_http(server, KEY), tmp_path)


# Each has a worker of its own.
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sees", "adapter"])
def test_a_script_calls_a_model_that_sees_or_an_adapter(
    kind: str, worker_environ: dict[str, str], demo_model: Path, tmp_path: Path
) -> None:
    if kind == "sees":
        vision.make(tmp_path / "model", demo_model)
        settings = {"MODEL_NAME": str(tmp_path / "model"), "MAX_MODEL_LEN": "512"}
    else:
        lora.make_adapter(tmp_path / "adapters" / "fairy-tales", demo_model)
        settings = {"ENABLE_LORA": "1", "BASE_PATH": str(tmp_path)}
    (script,) = scripts(kind)
    with http_worker({**worker_environ, **settings}, tmp_path / "log") as worker:
        check(script, over_http(worker), tmp_path)
