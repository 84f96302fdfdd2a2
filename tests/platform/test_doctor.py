"""`handler.py --check` as an operator runs it: a process of its own, and the hub on loopback."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from endpoints import ROOT
from hub import STRANGER, Hub, hub
from minilm import MODEL

# It is to end within ten seconds; a machine that is busy with other tests takes longer.
SLACK_S = 20
FINDING = re.compile(r"(?P<level>ok|\?|warn|FAIL) +(?P<topic>\S+(?: \S+)*)  ")


@dataclass(frozen=True)
class Told:
    """What the command printed, line by line, and how it ended."""

    status: int
    output: str
    errors: str

    @property
    def words(self) -> str:
        """The whole text, whatever line it stands in."""
        return " ".join(self.output.split())

    @property
    def levels(self) -> dict[str, str]:
        """How bad each topic is; of several findings on one, the last."""
        found = (FINDING.match(line) for line in self.output.splitlines())
        return {each["topic"]: each["level"] for each in found if each}


Check = Callable[..., Told]

# A vLLM that is made for GPUs, where there is none.
WITHOUT_DEVICE = """
import sys
import vllm.platforms
from vllm.platforms.interface import UnspecifiedPlatform
vllm.platforms._current_platform = UnspecifiedPlatform()
sys.path.insert(0, "src")
from worker import doctor
sys.exit(doctor.main())
"""
COMMAND = ("-u", "src/handler.py", "--check")


@pytest.fixture
def check(worker_environ: dict[str, str], tmp_path: Path) -> Check:
    """Run the command with nobody's cache."""

    def check(*command: str, **settings: str) -> Told:
        environ = {**worker_environ, "HF_HOME": str(tmp_path / "hf"), **settings}
        begun = time.monotonic()
        ran = subprocess.run(
            [sys.executable, *(command or COMMAND)],
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert time.monotonic() - begun < SLACK_S
        assert "Traceback" not in ran.stdout + ran.stderr
        return Told(ran.returncode, ran.stdout, ran.stderr)

    return check


@pytest.fixture(scope="module")
def running(demo_model: Path) -> Iterator[Hub]:
    with hub() as started:
        started.add("org/open", demo_model)
        started.add("org/gated", demo_model, gated=True)
        yield started


def test_a_model_that_would_start_is_told_so(check: Check) -> None:
    told = check()
    assert told.status == 0
    assert told.levels == dict.fromkeys(
        ["settings", "model", "architecture", "context", "memory", "cache", "start-up time"], "ok"
    )
    assert "cache 4.0 MiB for 2048 tokens (2048 bytes each) in 1.0 GiB" in told.words
    assert told.output.endswith("\nThe worker would start.\n")


def test_everything_that_is_wrong_is_told_at_once(
    check: Check, demo_model: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(demo_model, broken)
    config = json.loads((broken / "config.json").read_text())
    config["architectures"] = ["XverseForCausalLM"]
    (broken / "config.json").write_text(json.dumps(config))
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    told = check(
        MODEL_NAME=str(broken),
        MAX_MODEL_LEN="4096",
        TENSOR_PARALLEL_SIZE="3",
        RUNPOD_INIT_TIMEOUT="5",
        MAX_MODEL_LENGTH="4096",
    )
    assert told.status == 1
    wrong = {topic: level for topic, level in told.levels.items() if level != "ok"}
    assert wrong == {
        "settings": "warn",
        "weights": "FAIL",
        "architecture": "FAIL",
        "parallel": "FAIL",
        "context": "FAIL",
        "start-up time": "warn",
    }
    assert "model.safetensors is cut off" in told.words
    assert "take an image with vLLM 0.23.0" in told.words
    assert "-> set it to one of 1, 2" in told.words
    assert "-> set MAX_MODEL_LEN=2048, or leave it unset" in told.words
    assert "-> set RUNPOD_INIT_TIMEOUT=60" in told.words
    assert told.output.endswith("\nThe worker would not start: 4 failures, 2 warnings.\n")


def test_wrong_settings_hide_neither_the_model_nor_who_may_have_it(
    check: Check, running: Hub
) -> None:
    told = check(
        MODEL_NAME="org/gated",
        HF_ENDPOINT=running.endpoint,
        HF_TOKEN=STRANGER,
        MAX_MODEL_LEN="abc",
        RAW_OPENAI_OUTPUT="2",
    )
    assert told.status == 1
    assert told.levels == {"settings": "FAIL", "access": "FAIL"}
    for name in ("MAX_MODEL_LEN", "RAW_OPENAI_OUTPUT", "org/gated"):
        assert name in told.words
    assert STRANGER not in told.output + told.errors


def test_a_download_and_an_embedder_beside_are_looked_at(check: Check, running: Hub) -> None:
    told = check(
        MODEL_NAME="org/open", HF_ENDPOINT=running.endpoint, EMBEDDING_MODEL_NAME=str(MODEL)
    )
    assert told.status == 0, told.output
    assert told.levels["disk"] == "ok"
    assert "org/open at commit" in told.words
    assert told.levels["embedder: memory"] == told.levels["embedder: architecture"] == "ok"


def test_a_hub_that_hangs_is_a_finding(check: Check, running: Hub) -> None:
    running.hangs = True
    try:
        told = check(MODEL_NAME="org/open", HF_ENDPOINT=running.endpoint)
    finally:
        running.hangs = False
    assert (told.status, told.levels["model"]) == (1, "FAIL")
    assert "the hub does not answer" in told.words


def test_without_a_model_there_is_still_an_answer(check: Check) -> None:
    told = check(MODEL_NAME="")
    assert (told.status, told.levels) == (1, {"settings": "FAIL"})
    assert "MODEL_NAME is not set" in told.words


def test_without_a_gpu_a_vllm_for_gpus_is_told(check: Check) -> None:
    told = check("-c", WITHOUT_DEVICE)
    assert (told.status, told.levels) == (1, {"vLLM": "FAIL", "model": "ok"})
    assert "vLLM finds no GPU on this machine" in told.words


def test_make_doctor_looks_at_the_demo_model(worker_environ: dict[str, str]) -> None:
    environ = {name: value for name, value in worker_environ.items() if name != "MODEL_NAME"}
    ran = subprocess.run(
        ["make", "-s", "doctor"],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ".models/demo is a directory" in ran.stdout
