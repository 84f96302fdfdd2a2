"""The doctor's verdict about pairs of settings and models; the starts' own are a slow test.

See tests/platform/starts/test_verdicts.py.
"""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants
from support.processes.commands import HOME
from support.releases import since
from support.tables.starts import PAIRS, Pair, environ, places

from worker import doctor
from worker.doctor.findings import failed, render

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
