"""`handler.py --check` as an operator runs it: a process of its own, and the hub on loopback.

For the findings about environments see tests/settings/test_doctor.py.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from support.hub.server import hub
from support.processes.commands import HANDLER, HOME, WORKER, Ran, run
from support.processes.side_by_side import side_by_side

FINDING = re.compile(r"(?P<level>ok|\?|warn|FAIL) +(?P<topic>\S+(?: \S+)*)  ")


@dataclass(frozen=True)
class Report:
    """What the command printed, line by line, and how it ended."""

    status: int
    output: str
    errors: str

    @property
    def words(self) -> str:
        """The whole output, without its line breaks."""
        return " ".join(self.output.split())

    @property
    def levels(self) -> dict[str, str]:
        """The level of each topic; of several findings on one, the last."""
        found = (FINDING.match(line) for line in self.output.splitlines())
        return {match["topic"]: match["level"] for match in found if match}


Ended = Callable[[str], Report]

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
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """All runs of the command, every one with an empty cache; waits for the one that is named."""

    def ran(environ: dict[str, str], *command: str) -> Callable[[], Ran]:
        cache = str(tmp_path_factory.mktemp("hf"))
        return lambda: run({**environ, "HF_HOME": cache}, *command)

    with hub() as hanging:
        hanging.hangs = True
        embedder = {"EMBEDDING_MODEL_NAME": "org/embedder", "HF_ENDPOINT": hanging.endpoint}
        commands = {
            "make doctor": ran(HOME, "make", "-s", "doctor"),
            "hanging hub": ran({**WORKER, **embedder}, *CHECK),
            "no address": ran({**WORKER, "HF_ENDPOINT": "http://[bad"}, *CHECK),
            "no GPU": ran(WORKER, sys.executable, "-c", WITHOUT_DEVICE),
        }
        with side_by_side(commands) as result:
            yield lambda name: report(result(name))


def report(ran: Ran) -> Report:
    assert "Traceback" not in ran.stdout + ran.stderr
    return Report(ran.returncode, ran.stdout, ran.stderr)


def test_make_doctor_reports_that_the_demo_model_would_start(ended: Ended) -> None:
    report = ended("make doctor")
    assert report.status == 0, report.errors
    assert report.levels == dict.fromkeys(
        ["settings", "model", "architecture", "context", "memory", "cache", "start-up time"], "ok"
    )
    assert ".models/demo is a directory" in report.output
    assert "tokens (2048 bytes each) in 1.0 GiB (VLLM_CPU_KVCACHE_SPACE=1)" in report.words
    assert report.output.endswith("\nThe worker would start.\n")


def test_a_hub_that_hangs_is_a_finding(ended: Ended) -> None:
    report = ended("hanging hub")
    assert (report.status, report.levels["embedder: model"]) == (1, "FAIL")
    assert "the hub does not answer" in report.words
    assert report.output.endswith("\nThe worker would not start: 1 failure.\n")


def test_an_invalid_address_of_the_hub_is_a_finding(ended: Ended) -> None:
    report = ended("no address")
    assert (report.status, report.levels) == (1, {"vLLM": "FAIL", "hub": "FAIL"})
    assert "HF_ENDPOINT" in report.words


def test_without_a_gpu_a_vllm_for_gpus_is_reported(ended: Ended) -> None:
    report = ended("no GPU")
    assert (report.status, report.levels) == (1, {"vLLM": "FAIL", "model": "ok"})
    assert "vLLM finds no GPU on this machine" in report.words
