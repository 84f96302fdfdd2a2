"""Tests of `LLM` by scripts, which have engines of their own, check results and refusals.

Each script prints its failures as the last line.
"""

import json
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


@pytest.mark.slow
def test_a_script_generates_chats_and_uses_adapters(demo_model: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("shout", "whisper", "broken")):
        make_adapter(tmp_path / name, demo_model, seed)
    (tmp_path / "broken" / "adapter_model.safetensors").write_bytes(b"no tensors at all")
    stderr = run_script("generate", tmp_path, demo_model, tmp_path)
    for argument in ("swap_space", "prompt_adapter_request"):  # each is passed more than once
        assert stderr.count(f"{argument} has no effect") == 1


@pytest.mark.parametrize("name", ["ids", pytest.param("embed", marks=pytest.mark.slow)])
def test_a_script_passes_its_checks_and_exits(name: str, demo_model: Path, tmp_path: Path) -> None:
    run_script(name, tmp_path, demo_model)


@pytest.mark.slow
@pytest.mark.skipif(not vision.CAN_BE_MADE, reason="this transformers needs torchvision")
def test_a_vision_model_sees_images_and_attacks_are_refused(
    demo_model: Path, tmp_path: Path
) -> None:
    vision.make_vision_model(tmp_path / "model", demo_model)
    run_script("media", tmp_path, tmp_path / "model")
