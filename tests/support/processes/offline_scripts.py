"""Runs the scripts of tests/model/scripts, which have their own engines."""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import ROOT
from support.models.lora import make_adapter
from support.processes.background import start_command, wait_until
from support.processes.commands import HOME

SCRIPTS = ROOT / "tests" / "model" / "scripts"


@dataclass(frozen=True)
class ScriptResult:
    """The results that a script has printed, after it and all its processes have exited."""

    results: dict[str, Any]
    stderr: str
    status: int

    def __getitem__(self, part: str) -> Any:
        return self.results[part]


def run_script(name: str, folder: Path, model: Path, *arguments: Path) -> ScriptResult:
    output = folder / f"{name}.stdout"
    command = [SCRIPTS / f"{name}.py", model, *arguments]
    with start_command(command, HOME, folder / f"{name}.stderr", output) as script:
        status = script.wait_for_exit()
        # Its child processes exit as well, some of them when they notice that the script has
        # exited.
        wait_until(lambda: not script.session_pids())
    assert output.read_bytes(), script.output
    return ScriptResult(json.loads(output.read_text().splitlines()[-1]), script.output, status)


@pytest.fixture(scope="session")
def scripts(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[ScriptResult]]]:
    """Start all scripts concurrently."""
    folder = tmp_path_factory.mktemp("offline")
    for seed, name in enumerate(("shout", "whisper", "broken")):
        make_adapter(folder / name, demo_model, seed)
    (folder / "broken" / "adapter_model.safetensors").write_bytes(b"no tensors at all")
    with ThreadPoolExecutor() as threads:
        yield {
            name: threads.submit(run_script, name, folder, demo_model, *arguments)
            for name, arguments in (("generate", [folder]), ("ids", []), ("embed", []))
        }


@pytest.fixture(scope="session")
def generate(scripts: dict[str, Future[ScriptResult]]) -> ScriptResult:
    return scripts["generate"].result()


@pytest.fixture(scope="session")
def ids(scripts: dict[str, Future[ScriptResult]]) -> ScriptResult:
    return scripts["ids"].result()


@pytest.fixture(scope="session")
def embed(scripts: dict[str, Future[ScriptResult]]) -> ScriptResult:
    return scripts["embed"].result()
