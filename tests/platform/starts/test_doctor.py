"""Tests of `handler.py --check` in a process of its own.

tests/settings/test_doctor.py tests the findings about environments.
"""

import re
import shutil
from pathlib import Path

import pytest
from support.processes.commands import HOME, SCRIPT, WORKER, CompletedCommand, run_command
from support.tables.models import RECORDED_MODELS

pytestmark = pytest.mark.usefixtures("demo_model")


def words(ran: CompletedCommand) -> str:
    """Return the whole output without its line breaks."""
    return " ".join(ran.stdout.split())


# The forked process has this machine's cache of the hub, but a model on disk does not use it.
def test_the_demo_model_would_start() -> None:
    report = run_command(WORKER, SCRIPT, "--check")
    assert report.returncode == 0, report.stderr
    assert "Traceback" not in report.stdout + report.stderr
    topics = "settings,model,architecture,context,memory,cache,start-up time".split(",")
    found = re.findall(r"^(\S+) +(\S+(?: \S+)*)  ", report.stdout, re.MULTILINE)
    assert found == [("ok", topic) for topic in topics]
    assert ".models/demo is a directory" in report.stdout
    assert "tokens (2048 bytes each) in 1.0 GiB (VLLM_CPU_KVCACHE_SPACE=1)" in words(report)
    assert report.stdout.endswith("\nThe worker would start.\n")


# unit/doctor/test_gpus.py tests prices, pools and other models; unit/store tests that no weights
# are downloaded.
def test_a_gpu_is_judged_on_a_machine_without_gpus(demo_model: Path, tmp_path: Path) -> None:
    folder = RECORDED_MODELS["GQA"].write(tmp_path / "model")
    for file in demo_model.glob("tokenizer*"):
        shutil.copy(file, folder)
    one = run_command({**HOME, "MODEL_NAME": str(folder)}, SCRIPT, "--check", "--gpu", "A4000")
    assert one.returncode == 1
    assert "RTX A4000: weights 15.0 GiB" in one.stdout
    assert one.stdout.endswith("\nThe worker would not start: 1 failure, 1 unknown.\n")
    assert "Traceback" not in one.stderr
    # The table ignores a refused number of GPUs.
    settings = {"MODEL_NAME": str(folder), "TENSOR_PARALLEL_SIZE": "3"}
    every = run_command({**HOME, **settings}, SCRIPT, "--check", "--gpu", "all")
    assert "the checks below ignore TENSOR_PARALLEL_SIZE" in words(every)
    assert "\nAMPERE_24 " in every.stdout
    assert "x3" not in every.stdout
