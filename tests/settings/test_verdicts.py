"""The doctor's verdict about pairs of settings and models; the starts' own are a slow test.

See tests/platform/starts/test_verdicts.py.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from huggingface_hub import constants
from support.processes.commands import HOME
from support.releases import since
from support.tables.starts import NOWHERE, ON_CPUS, PAIRS, SAMPLE, Pair, environ, places

from worker import doctor
from worker.doctor.findings import failed, render
from worker.doctor.gpus import report
from worker.settings.environment import given_environ
from worker.settings.sources import gather

OF_SIZES = since("0.31", "vLLM did not say which sizes of blocks there are")


def rows(pairs: list[Pair]) -> list[Any]:
    """Return parameters, of which those beside the sample are slow tests."""

    def marks(pair: Pair) -> list[pytest.MarkDecorator]:
        of_sizes = [OF_SIZES] if "multiple of" in pair.words else []
        return of_sizes + ([] if pair.name in SAMPLE else [pytest.mark.slow])

    return [pytest.param(pair, id=pair.name, marks=marks(pair)) for pair in pairs]


@pytest.fixture(scope="module")
def directory(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("starts")
    places(demo_model, made)
    return made


# Calls a function of a pair in a process of its own; returns whether it says that the worker would
# not start, and all it says.
Examine = Callable[..., tuple[bool, str]]


@pytest.fixture(scope="module")
def examine(directory: Path) -> Iterator[Examine]:
    """Fork a process for the doctor: vLLM changes the classes of transformers that it builds."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:

        def examine(function: Callable[..., tuple[bool, str]], pair: Pair, *arguments: Any) -> Any:
            return pool.submit(
                _in_its_environment, environ(pair, directory), function, *arguments
            ).result()

        yield examine


def _in_its_environment(
    settings: dict[str, str], function: Callable[..., tuple[bool, str]], *arguments: Any
) -> tuple[bool, str]:
    # The library reads the variable only when it is imported.
    constants.HF_HUB_OFFLINE = True
    os.environ.clear()
    os.environ.update(HOME, **settings)
    return function(*arguments)


def here() -> tuple[bool, str]:
    findings = list(doctor.examine(gather(given_environ())))
    return failed(findings), " ".join(render(findings).split())


def for_gpus(gpus: str) -> tuple[bool, str]:
    # A file, since vLLM 0.29 closes standard output for a while, by its descriptor.
    with TemporaryFile("w+") as output:
        with contextlib.redirect_stdout(output):
            status = report.main(gather(given_environ()), gpus, None)
        output.seek(0)
        return status != 0, " ".join(output.read().split())


@pytest.mark.parametrize("pair", rows(PAIRS))
def test_the_doctor_says_whether_the_worker_would_start(pair: Pair, examine: Examine) -> None:
    refused, output = examine(here, pair)
    assert refused is not pair.starts, output
    assert pair.words in output


@pytest.mark.parametrize("pair", rows(NOWHERE))
def test_what_no_device_takes_is_refused_for_gpus_elsewhere(pair: Pair, examine: Examine) -> None:
    refused, output = examine(for_gpus, pair, "A40x2")
    assert refused, output
    assert pair.words in output
    assert "The worker would not start: 1 failure" in output


@pytest.mark.parametrize("pair", rows(ON_CPUS))
def test_what_only_cpus_refuse_is_not_refused_for_gpus(pair: Pair, examine: Examine) -> None:
    refused, output = examine(for_gpus, pair, "A40x2")
    assert not refused, output
    assert pair.words not in output
    assert output.endswith("The worker would start, as far as is known: 1 unknown.")


@pytest.mark.parametrize(
    ("name", "gpus", "refused", "table", "words", "counts"),
    [
        # A GPU may not share it.
        ("a GPU that sleeps", "A40", False, False, "? settings not known", "2 unknown."),
        # No table holds it, nor is there one for a model that no route serves.
        ("a context that is too long", "all", True, True, "AMPERE_16 fits 2048", "1 unknown."),
        ("a model of speech", "all", True, False, "no route of the worker", "start: 1 failure."),
    ],
)
def test_no_table_holds_what_is_refused(
    name: str, gpus: str, refused: bool, table: bool, words: str, counts: str, *, examine: Examine
) -> None:
    (pair,) = (pair for pair in PAIRS if pair.name == name)
    found, output = examine(for_gpus, pair, gpus)
    assert (found, "GPUs fit" in output) == (refused, table), output
    assert words in output
    assert output.endswith(counts)
    assert " 4096 " not in output.partition("GPUs fit")[2]
