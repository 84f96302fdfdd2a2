"""What README.md shows is what its commands print, and its figures are those of the other pages."""

import ast
import json
import re
import subprocess
import sys
import urllib.request
from xml.etree import ElementTree

import pytest
from demo_model import ANSWERS
from support import ROOT
from support.processes.background import HUNG_S
from support.processes.commands import HANDLER, HOME, WORKER, run
from support.processes.local_endpoint import LocalEndpoint

README = (ROOT / "README.md").read_text()
SAMPLES: list[tuple[str, str]] = re.findall(
    r"^ *```(\w+)\n(.*?)^ *```", README, re.MULTILINE | re.DOTALL
)
# The commands of builder/pictures.py, and where an endpoint's logs are.
DOCTOR = "MAX_MODEL_LEN=4096 make doctor"
LOGS = ".endpoint/8000"
# Of the demo model, and nearly all of its context.
DEMO = {'"Qwen/Qwen3-0.6B", max_model_len=4096': '".models/demo", max_model_len=2048'}


def sample(words: str, language: str = "text") -> str:
    """Return the one sample that has these words."""
    (found,) = [text for kind, text in SAMPLES if kind == language and words in text]
    return found


pytestmark = pytest.mark.usefixtures("demo_model")


def settled(text: str) -> str:
    """Leave what stands still: neither figures, which differ by machine, nor breaks of lines."""
    return " ".join(re.sub(r"\d+(\.\d+)?", "N", text).split())


def cell(page: str, row: str, column: int) -> str:
    """Return a cell of the first row of a page's tables that begins so."""
    lines: list[str] = re.findall(
        rf"^\| {re.escape(row)} .*$", (ROOT / page).read_text(), re.MULTILINE
    )
    return lines[0].split("|")[column + 1].strip().strip("`")


def test_make_run_prints_the_phases_the_chunks_and_the_whole_text() -> None:
    made = run(HOME, "make", "run")
    assert made.returncode == 0, made.stderr
    *yields, joined = [line for line in made.stdout.splitlines() if line]
    chunks = [json.loads(line) for line in yields if line.startswith("{")]
    assert joined == "".join(text for chunk in chunks for text in chunk["choices"][0]["tokens"])
    shown = sample("start-up: import").splitlines()
    phases = [settled(line) for line in shown if line.startswith("worker.phases")]
    assert len(phases) == 2
    for phase in phases:
        assert phase in settled(made.stderr)
    first = next(line for line in shown if line.startswith("{"))
    assert yields[0] == first
    last = next(line for line in shown if "finish_reason" in line)
    assert yields[-1].endswith(last[last.index('"finish_reason"') :])
    # On a busy machine the last chunk has fewer of them.
    ending = json.loads("[" + last[last.index("...,") + 4 : last.index("]")] + "]")
    tokens = [token for chunk in chunks for token in chunk["choices"][0]["tokens"]]
    assert tokens[-len(ending) :] == ending
    assert joined.startswith(shown[-1].removesuffix(" ..."))


def test_make_endpoint_prints_its_addresses_and_examples(make_endpoint: LocalEndpoint) -> None:
    shown = sample("The endpoint: ").removesuffix("...\n")
    printed = make_endpoint.output.replace(str(make_endpoint.log.parent), LOGS)
    assert settled(shown) in settled(printed)


def drawn(name: str) -> str:
    """Return the text of a picture, without the terminal's title."""
    picture = ElementTree.parse(ROOT / "docs" / "plots" / name)
    texts = [node.text or "" for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    return " ".join(texts[1:]).replace("\xa0", " ")


def test_the_pictures_show_what_the_commands_print(make_endpoint: LocalEndpoint) -> None:
    report = run({**HOME, "MAX_MODEL_LEN": "4096"}, "make", "-s", "doctor")
    assert settled(drawn("doctor.svg")) == settled(f"$ {DOCTOR}\n{report.stdout}")
    assert report.returncode == 2
    shown = settled(drawn("endpoint.svg"))
    printed = settled(make_endpoint.output.replace(str(make_endpoint.log.parent), LOGS))
    until_ready = printed.split("# curl, the raw form")[0]
    assert shown.startswith(f"$ make endpoint {until_ready}")
    assert ANSWERS["What does this worker do?"] in shown


def test_wrong_settings_are_told_so() -> None:
    shown = sample("settings are wrong")
    wrong = dict(re.findall(r"^  (\w+) = '(.+?)':", shown, re.MULTILINE))
    ended = run({**WORKER, **wrong, "MAX_MODEL_LENGTH": "4096"}, *HANDLER)
    assert shown in ended.stderr
    assert ended.returncode == 1


def test_the_raw_form_is_answered_so(make_endpoint: LocalEndpoint) -> None:
    (body,) = re.findall(r"-d '(.+)'\n", sample("$RUNPOD_API_KEY", "sh"))
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{make_endpoint.url}/runsync", body.encode(), headers)
    with urllib.request.urlopen(request, timeout=HUNG_S) as response:
        (answer,) = json.load(response)["output"]
    (shown,) = json.loads(sample("finish_reason", "json"))
    assert answer.pop("request_id").startswith(shown.pop("request_id").removesuffix("…"))
    assert answer == shown


def python(text: str, environ: dict[str, str]) -> str:
    """Run a sample in an interpreter of its own; return what it prints."""
    command = [sys.executable, "-c", text]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**HOME, **environ},
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_openai_client_streams_the_answer(make_endpoint: LocalEndpoint) -> None:
    program = sample("from openai import", "python")
    program = program.replace("https://api.runpod.ai/v2/<ENDPOINT ID>", make_endpoint.url)
    program = program.replace("<MODEL_NAME>", "demo")
    assert python(program, {"RUNPOD_API_KEY": "any"}).strip()


def test_a_script_gets_answers_without_a_platform() -> None:
    program = sample("from worker.offline", "python")
    for shown, here in DEMO.items():
        assert shown in program
        program = program.replace(shown, here)
    *_, completed, chatted = python(program, {"PYTHONPATH": str(ROOT / "src")}).splitlines()
    assert len(ast.literal_eval(completed)) == 2
    assert chatted


def test_seconds_and_counts_are_those_of_the_other_pages() -> None:
    row = "start to the first streamed token"
    worker, server = (cell("docs/performance.md", f"{row}, s", column) for column in (1, 2))
    assert [cell("README.md", row, column) for column in (1, 3)] == [f"{worker} s", f"{server} s"]
    assert f"this worker {worker}, vLLM's server {server}]" in README
    assert f"starts in {worker} s where vLLM's server takes {server} s" in README
    told = (ROOT / "docs" / "failed-starts.md").read_text().split("\n| no model is named ")[1]
    planted = len(re.findall(r"^\| .* \| 0 \|$", told.split("\n\n")[0], re.MULTILINE))
    assert f"[in {planted} of {planted} planted failures]" in README


@pytest.mark.slow
def test_as_many_tests_run_on_each_change_as_it_says() -> None:
    (shown,) = re.findall(r"Over ([\d,]+) tests pass on each change", README)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests"]
    # Those that .ci/run runs.
    command += [f"--ignore=tests/{folder}" for folder in ("clients", "image")]
    listed = subprocess.run(command, cwd=ROOT, env=HOME, capture_output=True, text=True, check=True)
    (count,) = re.findall(r"(\d+) tests collected", listed.stdout)
    assert int(count) > int(shown.replace(",", ""))


def test_the_defaults_of_settings_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| (`[A-Z_]+`) \| `([^`]+)` \|", README, re.MULTILINE)
    assert len(rows) > 5
    for name, default in rows:
        assert cell("docs/settings.md", name, 2) == default, name
