"""Tests of the doctor's findings about whole environments, in this process."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from support.hub.server import STRANGER, Hub, hub
from support.models.configs import copy_model
from support.models.minilm import MODEL
from support.processes.commands import HOME

from worker import doctor
from worker.doctor.findings import Finding, has_failure, render
from worker.engine import machine
from worker.settings.environment import environ_with_secrets
from worker.settings.sources import gather_settings


class Report:
    def __init__(self, findings: list[Finding]) -> None:
        self.failed = has_failure(findings)
        # The last of several findings on one topic remains.
        self.levels = {finding.topic: finding.level.value for finding in findings}
        self.output = render(findings)
        self.words = " ".join(self.output.split())


Examine = Callable[..., Report]


@pytest.fixture(scope="module")
def doctors_hub(demo_model: Path) -> Iterator[Hub]:
    with hub() as running:
        running.add("org/open", demo_model)
        running.add("org/gated", demo_model, gated=True)
        yield running


@pytest.fixture
def examine(tmp_path: Path, doctors_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """Return a function that examines settings with an empty cache and a hub on loopback."""
    # The library of the hub reads its address only when it is imported.
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    address = template.replace(constants.ENDPOINT, doctors_hub.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr(constants, "ENDPOINT", doctors_hub.endpoint)

    def examine(**settings: str) -> Report:
        os.environ.clear()
        os.environ.update(HOME, HF_HOME=str(tmp_path / "hf"), **settings)
        return Report(list(doctor.run_all_checks(gather_settings(environ_with_secrets()))))

    return examine


def test_the_doctor_reports_all_mistakes(
    examine: Examine, demo_model: Path, tmp_path: Path
) -> None:
    cut_off = copy_model(demo_model, tmp_path / "cut off")
    weights = cut_off / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    dropped = copy_model(demo_model, tmp_path / "dropped", architectures=["XverseForCausalLM"])
    found = examine(
        MODEL_NAME=str(cut_off),
        MAX_MODEL_LEN="4096",
        TENSOR_PARALLEL_SIZE="3",
        RUNPOD_INIT_TIMEOUT="5",
        MAX_MODEL_LENGTH="4096",
        EMBEDDING_MODEL_NAME=str(dropped),
    )
    assert found.failed
    wrong = {topic: level for topic, level in found.levels.items() if level != "ok"}
    assert wrong == {
        "settings": "warn",
        "weights": "FAIL",
        "parallel": "FAIL",
        "context": "FAIL",
        "embedder: model": "FAIL",
        "start-up time": "warn",
    }
    assert "model.safetensors is cut off" in found.words
    assert "vLLM 0.23.0, the last with it, is too old for this worker" in found.words
    assert "-> set TENSOR_PARALLEL_SIZE to a divisor of 2, or leave it unset" in found.words
    assert "-> set MAX_MODEL_LEN=2048, or leave it unset" in found.words
    assert "-> set RUNPOD_INIT_TIMEOUT=60" in found.words
    assert found.output.endswith("\nThe worker would not start: 4 failures, 2 warnings.\n")


def test_wrong_settings_do_not_hide_other_findings(
    examine: Examine, caplog: pytest.LogCaptureFixture
) -> None:
    found = examine(
        MODEL_NAME="org/gated", HF_TOKEN=STRANGER, MAX_MODEL_LEN="abc", RAW_OPENAI_OUTPUT="2"
    )
    assert found.failed
    assert found.levels == {"settings": "FAIL", "access": "FAIL"}
    for name in ("MAX_MODEL_LEN", "RAW_OPENAI_OUTPUT", "org/gated"):
        assert name in found.words
    assert STRANGER not in found.output + caplog.text


def test_the_model_is_checked_despite_wrong_settings(examine: Examine) -> None:
    found = examine(MODEL_NAME="org/open", RAW_OPENAI_OUTPUT="2", VLLM_CPU_KVCACHE_SPACE="abc")
    assert found.failed
    assert {topic for topic, level in found.levels.items() if level == "FAIL"} == {"settings"}
    checked = ("architecture", "context", "memory", "start-up time")
    assert [found.levels[topic] for topic in checked] == ["ok"] * 4, found.output
    without = "the checks below ignore RAW_OPENAI_OUTPUT, VLLM_CPU_KVCACHE_SPACE"
    assert without in found.words


def test_a_download_and_an_embedder_are_checked_too(examine: Examine) -> None:
    found = examine(MODEL_NAME="org/open", EMBEDDING_MODEL_NAME=str(MODEL))
    assert not found.failed, found.output
    assert found.levels["disk"] == "ok"
    assert "org/open at commit" in found.words
    assert found.levels["embedder: memory"] == found.levels["embedder: architecture"] == "ok"


def test_a_missing_model_name_is_a_finding(examine: Examine) -> None:
    found = examine(MODEL_NAME="")
    assert (found.failed, found.levels) == (True, {"settings": "FAIL"})
    assert "MODEL_NAME is not set" in found.words


def test_a_vllm_for_gpus_on_a_machine_without_gpus_is_reported(
    examine: Examine, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SimpleNamespace(is_unspecified=lambda: True)
    monkeypatch.setattr(machine, "import_from_vllm", lambda _: platform)
    found = examine(MODEL_NAME=str(demo_model))
    assert (found.failed, found.levels) == (True, {"vLLM": "FAIL", "model": "ok"})
    assert "vLLM finds no GPU on this machine" in found.words
