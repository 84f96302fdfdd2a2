"""Tests of the client's package: built, installed in new environments and run (docs/client.md)."""

import json
import os
import re
import sys
import zipfile
from pathlib import Path

import httpx2
import pytest
from demo_model import ANSWERS
from packaging.utils import canonicalize_name
from support import ROOT
from support.processes.commands import run_command
from support.processes.servers import ACCOUNT, LocalEndpoint, start_server

# Bytes, twice the current size.
LARGEST_WHEEL = 300_000
FLAGS = ("--name", "chat", "--image", "me/llm-worker:1", "--gpu-pools", "ADA_24", "--offline")
SCRIPT = """
import {package}
from llm_worker_client import LLM, AsyncRunpodTransport, Completion, RunpodTransport

whole = {package}.Client(transport=RunpodTransport("id", "key"))
side_by_side = {package}.AsyncClient(transport=AsyncRunpodTransport("id", "key"))
text = str(Completion.create(model="demo", prompt="Hi"))
texts = [answer.outputs[0].text for answer in LLM().generate(["Hi"])]
"""


HELLO = [{"role": "user", "content": "Hello!"}]
CHAT = f"""
import sys
from llm_worker_client import LLM

llm = LLM("local", api_key="any", base_url=sys.argv[1])
print(llm.chat({HELLO}, dict(temperature=0, max_tokens=60))[0].outputs[0].text)
"""


def run_in(folder: Path, *command: str | Path) -> str:
    """Run a command outside of the repository; return its output."""
    # Without PYTHONPATH, which would make the repository's modules importable.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = run_command(environ, *command, folder=folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run_in(folder, sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


def create_environment(folder: Path, *packages: str | Path) -> Path:
    """Create a virtual environment with packages; return the directory of its commands."""
    run_in(folder, sys.executable, "-m", "venv", "env")
    run_in(folder, "env/bin/python", "-m", "pip", "install", *packages)
    return folder / "env" / "bin"


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_environment(tmp_path_factory.mktemp("installed"), wheel)


@pytest.fixture(scope="module")
def commands_with_all(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel with its extra and httpx."""
    return create_environment(tmp_path_factory.mktemp("all"), f"{wheel}[volume]", "httpx")


def test_the_wheel_is_small_and_holds_the_client_and_its_page(wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST_WHEEL
    files = zipfile.ZipFile(wheel).namelist()
    packages = {file.partition("/")[0].partition("-")[0] for file in files}
    assert packages == {"llm_worker_client", "llm_worker_console"}
    data = ("llm_worker_client/py.typed", "llm_worker_client/deploy/settings.json")
    assert {*data, "llm_worker_console/index.html"} <= set(files)


def test_the_page_lists_every_installed_package(commands: Path) -> None:
    listed = json.loads(run_in(commands, "./python", "-m", "pip", "list", "--format", "json"))
    found = {canonicalize_name(one["name"]) for one in listed} - {"pip", "setuptools"}
    page = (ROOT / "docs" / "client.md").read_text()
    section = page.split("## Install it")[1].split("## The proxy")[0]
    table, _, brought = section.partition("These require ")
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    always = [cell for cell in rows if "boto3" not in cell]
    named = [name for cell in (*always, brought) for name in re.findall(r"`([\w-]+)`", cell)]
    assert found == {"llm-worker-client", *map(canonicalize_name, named)}


def test_the_command_runs_the_module(commands: Path) -> None:
    help_text = run_in(commands, "./llm-worker-client", "--help")
    assert help_text == run_in(commands, "./python", "-m", "llm_worker_client", "--help")
    assert "proxy" in help_text


def test_a_dry_run_of_deploy_works_and_knows_the_settings(commands: Path) -> None:
    plan = ("deploy", "plan", *FLAGS, "--settings", "MODEL_NAME=org/model")
    content = json.loads(run_in(commands, "./llm-worker-client", *plan))
    assert content["body"]["env"]["MODEL_NAME"] == "org/model"
    with pytest.raises(AssertionError, match="did you mean MAX_MODEL_LEN"):
        run_in(commands, "./llm-worker-client", *plan, "MAX_MODEL_LENGTH=1")


def test_files_of_the_volume_need_the_volume_extra(commands: Path, commands_with_all: Path) -> None:
    code = "from llm_worker_client.volume import open_volume; open_volume()"
    with pytest.raises(AssertionError, match=r"boto3 is missing: pip install .+\[volume\]"):
        run_in(commands, "./python", "-c", code)
    with pytest.raises(AssertionError, match="Set RUNPOD_VOLUME_ID"):
        run_in(commands_with_all, "./python", "-c", code)


def test_the_installed_class_and_proxy_answer_from_an_endpoint(
    commands: Path, make_endpoint: LocalEndpoint, tmp_path: Path
) -> None:
    printed = run_in(commands, "./python", "-c", CHAT, make_endpoint.api_url)
    assert printed.strip() == ANSWERS["Hello!"]
    proxy_options = ("--endpoint", "local", "--base-url", make_endpoint.api_url, "--port", "0")
    command: list[str | Path] = [commands / "llm-worker-client", "proxy", *proxy_options]
    environ = {"PATH": os.environ["PATH"], "RUNPOD_API_KEY": ACCOUNT}
    with start_server(command, environ, tmp_path / "log") as proxy:
        assert "<title>" in httpx2.get(proxy.url).text
        body = {"model": "demo", "messages": HELLO, "temperature": 0}
        chat = httpx2.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60).json()
    assert chat["choices"][0]["message"]["content"] == ANSWERS["Hello!"]


def run_mypy(commands: Path, script: str) -> str:
    """Return mypy's output for a script that uses the installed packages."""
    (commands / "script.py").write_text(script)
    words = ["--strict", "--config-file=", "--python-executable", "./python", "script.py"]
    return run_in(commands, sys.executable, "-m", "mypy", "--cache-dir=cache", *words)


@pytest.mark.parametrize(
    ("environment", "package"),
    [("commands", "httpx2"), ("commands_with_all", "httpx2"), ("commands_with_all", "httpx")],
)
def test_a_script_passes_mypy_and_runs(
    environment: str, package: str, request: pytest.FixtureRequest
) -> None:
    commands: Path = request.getfixturevalue(environment)
    script = SCRIPT.format(package=package)
    assert run_mypy(commands, script).startswith("Success")
    run_in(commands, "./python", "-c", script.partition("text = ")[0])
    with pytest.raises(AssertionError, match=r"incompatible type .int."):
        run_mypy(commands, script.replace('Transport("id", "key")', "Transport(1)"))
