"""The doctor's plan of a cache is what vLLM's executor makes in a start, layer by layer."""

import json
import sys
from typing import Any

import pytest
from support import ROOT
from support.processes.commands import HOME, run
from support.tables.models import RECORDED

# The processor of images needs a tokenizer of its own.
NAMES = [name for name in RECORDED if name != "vision"]
ENVIRON = {
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    """Make all executors, in a process that they may change."""
    ran = run({**HOME, **ENVIRON}, sys.executable, "-m", "support.engine.layers", *NAMES)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_start_keeps_of_texts_what_was_planned(name: str, compared: dict[str, Any]) -> None:
    found = compared[name]
    assert found["made"] == found["planned"]
    assert bool(found["made"]) is (RECORDED[name].token > 0)
