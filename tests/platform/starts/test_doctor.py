"""`handler.py --check` as an operator runs it: a process of its own.

For the findings about environments see tests/settings/test_doctor.py.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest
from support.processes.commands import HOME, SCRIPT, WORKER, Ran, run
from support.tables.models import RECORDED

FINDING = re.compile(r"(?P<level>ok|\?|warn|FAIL) +(?P<topic>\S+(?: \S+)*)  ")
# A vLLM that is made for GPUs, where there is none.
WITHOUT_DEVICE = """
import sys
import vllm.platforms
from vllm.platforms.interface import UnspecifiedPlatform
vllm.platforms._current_platform = UnspecifiedPlatform()
sys.path.insert(0, "src")
from worker import doctor
from worker.settings.environment import given_environ
from worker.settings.sources import gather
sys.exit(doctor.main(gather(given_environ())))
"""

pytestmark = pytest.mark.usefixtures("demo_model")


def levels(ran: Ran) -> dict[str, str]:
    """Return the level of each topic; of several findings on one, the last."""
    assert "Traceback" not in ran.stdout + ran.stderr
    found = (FINDING.match(line) for line in ran.stdout.splitlines())
    return {match["topic"]: match["level"] for match in found if match}


def words(ran: Ran) -> str:
    """Return the whole output, without its line breaks."""
    return " ".join(ran.stdout.split())


# A fork, whose cache of the hub is the machine's: a model on a disk needs none.
def test_the_demo_model_would_start() -> None:
    report = run(WORKER, SCRIPT, "--check")
    assert report.returncode == 0, report.stderr
    assert levels(report) == dict.fromkeys(
        ["settings", "model", "architecture", "context", "memory", "cache", "start-up time"], "ok"
    )
    assert ".models/demo is a directory" in report.stdout
    assert "tokens (2048 bytes each) in 1.0 GiB (VLLM_CPU_KVCACHE_SPACE=1)" in words(report)
    assert report.stdout.endswith("\nThe worker would start.\n")


# It imports vLLM.
@pytest.mark.slow
def test_without_a_gpu_a_vllm_for_gpus_is_reported() -> None:
    report = run(WORKER, sys.executable, "-c", WITHOUT_DEVICE)
    assert (report.returncode, levels(report)) == (1, {"vLLM": "FAIL", "model": "ok"})
    assert "vLLM finds no GPU on this machine" in words(report)


# Prices, pools and other models: unit/doctor/gpus; that no weights are downloaded: unit/store.
def test_a_gpu_is_judged_without_one(demo_model: Path, tmp_path: Path) -> None:
    folder = RECORDED["GQA"].write(tmp_path / "model")
    for file in demo_model.glob("tokenizer*"):
        shutil.copy(file, folder)
    one = run({**HOME, "MODEL_NAME": str(folder)}, SCRIPT, "--check", "--gpu", "A4000")
    assert one.returncode == 1
    assert "RTX A4000: weights 15.0 GiB" in one.stdout
    assert one.stdout.endswith("\nThe worker would not start: 1 failure, 1 unknown.\n")
    assert "Traceback" not in one.stderr
