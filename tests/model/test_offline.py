"""Tests of `LLM` by scripts, which have engines of their own, check results and refusals.

Each script prints its failures as the last line.
"""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from model.conftest import SCRIPTS
from support.models import vision
from support.models.lora import make_adapter
from support.processes.background import start_command, wait_until
from support.processes.commands import HOME


def run_script(name: str, folder: Path, model: Path, *arguments: Path) -> str:
    """Run a script until it and its processes have exited; check and return its output."""
    output = folder / f"{name}.stdout"
    command = [SCRIPTS / f"{name}.py", model, *arguments]
    with start_command(command, HOME, folder / f"{name}.stderr", output) as script:
        status = script.wait_for_exit()
        # Its child processes exit as well, some of them when they notice that the script has
        # exited.
        wait_until(lambda: not script.session_pids())
    assert output.read_bytes(), script.output
    failed = json.loads(output.read_text().splitlines()[-1])["failed"]
    assert not failed, "\n".join(failed.values())
    assert status == 0, script.output
    return script.output


@pytest.fixture(scope="module")
def scripts(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """Start the scripts concurrently."""
    folder = tmp_path_factory.mktemp("offline")
    for seed, name in enumerate(("shout", "whisper", "broken")):
        make_adapter(folder / name, demo_model, seed)
    (folder / "broken" / "adapter_model.safetensors").write_bytes(b"no tensors at all")
    with ThreadPoolExecutor() as threads:
        yield {
            name: threads.submit(run_script, name, folder, demo_model, *arguments)
            for name, arguments in (("generate", [folder]), ("ids", []), ("embed", []))
        }


@pytest.mark.parametrize("name", ["generate", "ids", "embed"])
def test_a_script_passes_its_checks_and_exits(scripts: dict[str, Future[str]], name: str) -> None:
    stderr = scripts[name].result()
    if name == "generate":  # each of these arguments is passed more than once
        for argument in ("swap_space", "prompt_adapter_request"):
            assert stderr.count(f"{argument} has no effect") == 1


@pytest.mark.skipif(not vision.CAN_BE_MADE, reason="this transformers needs torchvision")
def test_a_vision_model_sees_images_and_attacks_are_refused(
    demo_model: Path, tmp_path: Path
) -> None:
    vision.make_vision_model(tmp_path / "model", demo_model)
    run_script("media", tmp_path, tmp_path / "model")
