"""Tests of the demo model's creation and tokenizer. test_paths.py tests its answers."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import demo_model as maker
import pytest
from support.processes.background import HUNG_S
from transformers import AutoTokenizer

# The model changes only with the script that creates it.
pytestmark = pytest.mark.slow

SCRIPT = Path(maker.__file__)


@pytest.fixture(scope="module")
def demo_tokenizer(demo_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(demo_model)


def test_decoding_restores_every_encoded_text(demo_tokenizer: Any) -> None:
    planes = [chr(code) for code in range(0, 0x20000, 13) if not 0xD800 <= code < 0xE000]
    text = "".join(planes) + " two  spaces \n\n a tab\t e\u0301 \N{WOMAN}\u200d\N{ROCKET} "
    tokens = demo_tokenizer.encode(text, add_special_tokens=False)
    assert demo_tokenizer.decode(tokens) == text


def test_a_second_run_is_quick_and_changes_nothing(demo_model: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in [demo_model, *demo_model.iterdir()]}
    command = [sys.executable, "-X", "importtime", str(SCRIPT), str(demo_model)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HUNG_S)
    assert run.stdout == ""
    assert "torch" not in run.stderr
    assert {path: path.stat().st_mtime_ns for path in [demo_model, *demo_model.iterdir()]} == before


def test_a_directory_with_other_files_is_left_unchanged(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.touch()
    run = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, check=False)
    assert run.returncode == 2
    assert list(tmp_path.iterdir()) == [precious]


def test_an_interrupted_run_leaves_no_files(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        assert [path.name[:7] for path in tmp_path.iterdir()] == [".model-"]
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=HUNG_S) != 0
    assert list(tmp_path.iterdir()) == []
