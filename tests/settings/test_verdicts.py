"""The doctor's verdict about pairs of settings and models; the starts' own are a slow test.

See tests/platform/starts/test_verdicts.py.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from huggingface_hub import constants
from support.processes.commands import HOME
from support.releases import since
from support.tables.starts import PAIRS, Pair, environ, places

from worker import doctor
from worker.doctor.findings import failed, render
from worker.doctor.gpus import report

OF_SIZES = since("0.31", "vLLM did not say which sizes of blocks there are")


@pytest.fixture(scope="module")
def directory(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("starts")
    places(demo_model, made)
    return made


@pytest.fixture(scope="module")
def apart() -> Iterator[ProcessPoolExecutor]:
    """Fork a process for the doctor: vLLM changes the classes of transformers that it builds."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        yield pool


def examined(pair: Pair, directory: Path) -> tuple[bool, str]:
    """Return whether the doctor says that the worker would not start, and all it says."""
    # The library reads the variable only when it is imported.
    constants.HF_HUB_OFFLINE = True
    os.environ.clear()
    os.environ.update(HOME, **environ(pair, directory))
    findings = list(doctor.examine())
    return failed(findings), " ".join(render(findings).split())


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=pair.name, marks=[OF_SIZES] if "multiple of" in pair.words else [])
        for pair in PAIRS
    ],
)
def test_the_doctor_says_whether_the_worker_would_start(
    pair: Pair, directory: Path, apart: ProcessPoolExecutor
) -> None:
    refused, output = apart.submit(examined, pair, directory).result()
    assert refused is not pair.starts, output
    assert pair.words in output


# Of the pairs that are refused on a CPU: what no GPU would take either, and what only CPUs refuse.
NOWHERE = (
    "a cluster",
    "a connector that nobody has",
    "a context that is too long",
    "a model of speech",
    "a seed below 0",
    "a system prompt for a template that takes none",
    "an adapter of too high a rank",
    "another one than the model's own",
    "experts that the model has not",
    "positions that are scaled from nothing",
)
ON_CPUS = ("a GPU's", "a cache beside the GPU's", "the older worker's block size", "two GPUs")
BY_NAME = {pair.name: pair for pair in PAIRS}


def examined_for(gpus: str, name: str, directory: Path) -> tuple[bool, str]:
    """Return whether the doctor says that nothing would start on GPUs, and all it says."""
    constants.HF_HUB_OFFLINE = True
    os.environ.clear()
    os.environ.update(HOME, **environ(BY_NAME[name], directory))
    # A file, since vLLM 0.29 closes standard output for a while, by its descriptor.
    with TemporaryFile("w+") as told:
        with contextlib.redirect_stdout(told):
            status = report.main(gpus, None)
        told.seek(0)
        return status != 0, " ".join(told.read().split())


@pytest.mark.parametrize("name", NOWHERE)
def test_what_depends_on_no_device_is_refused_for_gpus_that_are_not_here(
    name: str, directory: Path, apart: ProcessPoolExecutor
) -> None:
    refused, output = apart.submit(examined_for, "A40x2", name, directory).result()
    assert refused, output
    assert BY_NAME[name].words in output
    assert "The worker would not start: 1 failure" in output


@pytest.mark.parametrize("name", ON_CPUS)
def test_what_only_cpus_refuse_is_not_refused_for_gpus(
    name: str, directory: Path, apart: ProcessPoolExecutor
) -> None:
    refused, output = apart.submit(examined_for, "A40x2", name, directory).result()
    assert not refused, output
    assert BY_NAME[name].words not in output
    assert output.endswith("The worker would start, as far as is known: 1 unknown.")


def test_a_refusal_that_a_gpu_may_not_share_is_not_known(
    directory: Path, apart: ProcessPoolExecutor
) -> None:
    sleeps = apart.submit(examined_for, "A40", "a GPU that sleeps", directory)
    refused, output = sleeps.result()
    assert not refused, output
    assert "? settings not known without the GPU, where vLLM may not say: Sleep mode" in output
    assert output.endswith("The worker would start, as far as is known: 2 unknown.")


def test_no_table_holds_what_a_start_refuses(directory: Path, apart: ProcessPoolExecutor) -> None:
    long = apart.submit(examined_for, "all", "a context that is too long", directory)
    refused, output = long.result()
    assert refused
    assert "AMPERE_16 fits 2048" in output
    assert " 4096 " not in output.partition("GPUs fit")[2]
    assert output.endswith("The worker would not start: 1 failure, 1 unknown.")


def test_there_is_no_table_for_a_model_that_no_route_serves(
    directory: Path, apart: ProcessPoolExecutor
) -> None:
    refused, output = apart.submit(examined_for, "all", "a model of speech", directory).result()
    assert refused
    assert "fits" not in output
    assert output.endswith("The worker would not start: 1 failure.")
