"""`handler.py --check` as an operator runs it: a process of its own, and the hub on loopback."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.hub.server import STRANGER, hub
from support.models.minilm import MODEL
from support.processes.commands import HANDLER, HOME, WORKER, Ran, run
from support.processes.side_by_side import side_by_side

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


Ended = Callable[[str], Told]

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
CHECK = (*HANDLER, "--check")


@pytest.fixture(scope="module")
def broken(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is cut off, and of an architecture that vLLM has dropped."""
    folder = tmp_path_factory.mktemp("models") / "broken"
    shutil.copytree(demo_model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["XverseForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    return folder


@pytest.fixture(scope="module")
def ended(
    demo_model: Path, broken: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ended]:
    """All runs of the command, each with nobody's cache; waits for the one that is named."""

    def ran(environ: dict[str, str], *command: str) -> Callable[[], Ran]:
        cache = str(tmp_path_factory.mktemp("hf"))
        return lambda: run({**environ, "HF_HOME": cache}, *command)

    def check(**settings: str) -> Callable[[], Ran]:
        return ran({**WORKER, **settings}, *CHECK)

    with hub() as serving, hub() as hanging:
        serving.add("org/open", demo_model)
        serving.add("org/gated", demo_model, gated=True)
        hanging.hangs = True
        commands = {
            "make doctor": ran(HOME, "make", "-s", "doctor"),
            "much wrong": check(
                MODEL_NAME=str(broken),
                MAX_MODEL_LEN="4096",
                TENSOR_PARALLEL_SIZE="3",
                RUNPOD_INIT_TIMEOUT="5",
                MAX_MODEL_LENGTH="4096",
                EMBEDDING_MODEL_NAME="org/embedder",
                HF_ENDPOINT=hanging.endpoint,
            ),
            "wrong settings": check(
                MODEL_NAME="org/gated",
                HF_ENDPOINT=serving.endpoint,
                HF_TOKEN=STRANGER,
                MAX_MODEL_LEN="abc",
                RAW_OPENAI_OUTPUT="2",
            ),
            "download": check(
                MODEL_NAME="org/open",
                HF_ENDPOINT=serving.endpoint,
                EMBEDDING_MODEL_NAME=str(MODEL),
            ),
            "two wrong": check(
                MODEL_NAME="org/none",
                VLLM_EXTRA_ARGS="--model org/open",
                HF_ENDPOINT=serving.endpoint,
                RAW_OPENAI_OUTPUT="2",
                VLLM_CPU_KVCACHE_SPACE="abc",
            ),
            "no address": check(MODEL_NAME="org/open", HF_ENDPOINT="http://[bad"),
            "no model": check(MODEL_NAME=""),
            "no GPU": ran(WORKER, sys.executable, "-c", WITHOUT_DEVICE),
        }
        with side_by_side(commands) as result:
            yield lambda name: told_by(result(name))


def told_by(ran: Ran) -> Told:
    assert "Traceback" not in ran.stdout + ran.stderr
    return Told(ran.returncode, ran.stdout, ran.stderr)


def test_make_doctor_tells_that_the_demo_model_would_start(ended: Ended) -> None:
    told = ended("make doctor")
    assert told.status == 0, told.errors
    assert told.levels == dict.fromkeys(
        ["settings", "model", "architecture", "context", "memory", "cache", "start-up time"], "ok"
    )
    assert ".models/demo is a directory" in told.output
    assert "cache 4.0 MiB for 2048 tokens (2048 bytes each) in 1.0 GiB" in told.words
    assert told.output.endswith("\nThe worker would start.\n")


def test_everything_that_is_wrong_is_told_at_once(ended: Ended) -> None:
    told = ended("much wrong")
    assert told.status == 1
    wrong = {topic: level for topic, level in told.levels.items() if level != "ok"}
    assert wrong == {
        "settings": "warn",
        "weights": "FAIL",
        "architecture": "FAIL",
        "parallel": "FAIL",
        "context": "FAIL",
        "embedder: model": "FAIL",
        "start-up time": "warn",
    }
    assert "model.safetensors is cut off" in told.words
    assert "take an image with vLLM 0.23.0" in told.words
    assert "-> set it to one of 1, 2" in told.words
    assert "-> set MAX_MODEL_LEN=2048, or leave it unset" in told.words
    assert "-> set RUNPOD_INIT_TIMEOUT=60" in told.words
    assert told.output.endswith("\nThe worker would not start: 5 failures, 2 warnings.\n")


def test_a_hub_that_hangs_is_a_finding(ended: Ended) -> None:
    told = ended("much wrong")
    assert (told.status, told.levels["embedder: model"]) == (1, "FAIL")
    assert "the hub does not answer" in told.words


def test_wrong_settings_hide_neither_the_model_nor_who_may_have_it(ended: Ended) -> None:
    told = ended("wrong settings")
    assert told.status == 1
    assert told.levels == {"settings": "FAIL", "access": "FAIL"}
    for name in ("MAX_MODEL_LEN", "RAW_OPENAI_OUTPUT", "org/gated"):
        assert name in told.words
    assert STRANGER not in told.output + told.errors


def test_what_is_sound_beside_wrong_settings_is_judged(ended: Ended) -> None:
    told = ended("two wrong")
    assert told.status == 1
    assert {topic for topic, level in told.levels.items() if level == "FAIL"} == {"settings"}
    judged = ("architecture", "context", "memory", "start-up time")
    assert [told.levels[topic] for topic in judged] == ["ok"] * 4, told.output
    without = "what follows is judged without RAW_OPENAI_OUTPUT, VLLM_CPU_KVCACHE_SPACE"
    assert without in told.words


def test_the_model_of_the_extra_arguments_is_the_one_that_is_judged(ended: Ended) -> None:
    told = ended("two wrong")
    assert "org/open at commit" in told.words
    assert "org/none" not in told.words


def test_an_address_of_the_hub_that_is_none_is_a_finding(ended: Ended) -> None:
    told = ended("no address")
    assert (told.status, told.levels) == (1, {"vLLM": "FAIL", "hub": "FAIL"})
    assert "HF_ENDPOINT" in told.words


def test_a_download_and_an_embedder_beside_are_looked_at(ended: Ended) -> None:
    told = ended("download")
    assert told.status == 0, told.output
    assert told.levels["disk"] == "ok"
    assert "org/open at commit" in told.words
    assert told.levels["embedder: memory"] == told.levels["embedder: architecture"] == "ok"


def test_without_a_model_there_is_still_an_answer(ended: Ended) -> None:
    told = ended("no model")
    assert (told.status, told.levels) == (1, {"settings": "FAIL"})
    assert "MODEL_NAME is not set" in told.words


def test_without_a_gpu_a_vllm_for_gpus_is_told(ended: Ended) -> None:
    told = ended("no GPU")
    assert (told.status, told.levels) == (1, {"vLLM": "FAIL", "model": "ok"})
    assert "vLLM finds no GPU on this machine" in told.words
