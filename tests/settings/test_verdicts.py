"""Tests of the doctor's verdict on pairs of settings and models.

tests/platform/starts/test_verdicts.py compares it with real startups, as a slow test.
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
import torch
from huggingface_hub import constants
from support.processes.commands import HOME
from support.releases import needs_vllm
from support.tables.starts import (
    REFUSED_ON_ALL_DEVICES,
    REFUSED_ON_CPUS,
    SAMPLE,
    START_CASES,
    StartCase,
    environ,
    make_models,
)

from worker import doctor
from worker.doctor.findings import has_failure, render
from worker.settings.environment import environ_with_secrets
from worker.settings.sources import gather_settings

NEEDS_BLOCK_SIZES = needs_vllm("0.31", "vLLM did not say which sizes of blocks there are")


def create_params(pairs: list[StartCase]) -> list[Any]:
    """Return test parameters; pairs that are not in the sample are slow tests."""

    def marks(pair: StartCase) -> list[pytest.MarkDecorator]:
        block_sizes = [NEEDS_BLOCK_SIZES] if "multiple of" in pair.message else []
        return block_sizes + ([] if pair.name in SAMPLE else [pytest.mark.slow])

    return [pytest.param(pair, id=pair.name, marks=marks(pair)) for pair in pairs]


@pytest.fixture(scope="module")
def directory(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starts")
    make_models(demo_model, folder)
    return folder


# Calls a function for a pair in a separate process. Returns whether it refuses to start the worker,
# and its output.
Examine = Callable[..., tuple[bool, str]]


@pytest.fixture(scope="module")
def examine(directory: Path) -> Iterator[Examine]:
    """Fork a process for the doctor, because building models changes classes of transformers."""
    context = multiprocessing.get_context("fork")
    # The threads of this process, with which torch would share its work, do not exist in the fork.
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (1,)) as pool:

        def examine(
            function: Callable[..., tuple[bool, str]], pair: StartCase, *arguments: Any
        ) -> Any:
            return pool.submit(
                _call_with_environ, environ(pair, directory), function, *arguments
            ).result()

        yield examine


def _call_with_environ(
    settings: dict[str, str], function: Callable[..., tuple[bool, str]], *arguments: Any
) -> tuple[bool, str]:
    # The library reads the variable only when it is imported.
    constants.HF_HUB_OFFLINE = True
    os.environ.clear()
    os.environ.update(HOME, **settings)
    return function(*arguments)


def examine_here() -> tuple[bool, str]:
    findings = list(doctor.run_all_checks(gather_settings(environ_with_secrets())))
    return has_failure(findings), " ".join(render(findings).split())


def examine_for_gpus(gpus: str) -> tuple[bool, str]:
    # Uses a file, because vLLM 0.29 temporarily closes the file descriptor of standard output.
    with TemporaryFile("w+") as output:
        with contextlib.redirect_stdout(output):
            status = doctor.main(gather_settings(environ_with_secrets()), gpus)
        output.seek(0)
        return status != 0, " ".join(output.read().split())


@pytest.mark.parametrize("pair", create_params(START_CASES))
def test_the_doctor_says_whether_the_worker_would_start(pair: StartCase, examine: Examine) -> None:
    pair.skip_if_impossible()
    refused, output = examine(examine_here, pair)
    assert refused is not pair.starts, output
    assert pair.message in output


@pytest.mark.parametrize("pair", create_params(REFUSED_ON_ALL_DEVICES))
def test_settings_that_no_device_supports_are_refused_for_gpus(
    pair: StartCase, examine: Examine
) -> None:
    refused, output = examine(examine_for_gpus, pair, "A40x2")
    assert refused, output
    assert pair.message in output
    assert "The worker would not start: 1 failure" in output


@pytest.mark.parametrize("pair", create_params(REFUSED_ON_CPUS))
def test_settings_that_only_cpus_refuse_are_not_refused_for_gpus(
    pair: StartCase, examine: Examine
) -> None:
    refused, output = examine(examine_for_gpus, pair, "A40x2")
    assert not refused, output
    assert pair.message not in output
    assert output.endswith("The worker would start, as far as is known: 1 unknown.")


@pytest.mark.parametrize(
    ("name", "gpus", "refused", "table", "words", "counts"),
    [
        # A GPU may not support sleeping.
        ("sleep mode", "A40", False, False, "? settings unknown", "2 unknown."),
        # No table contains the refused context, and there is no table for a model that no route
        # serves.
        ("a context that is too long", "all", True, True, "AMPERE_16 fits 2048", "1 unknown."),
        ("a speech model", "all", True, False, "no route of the worker", "start: 1 failure."),
    ],
)
def test_the_table_of_gpus_contains_no_refused_context(
    name: str, gpus: str, refused: bool, table: bool, words: str, counts: str, *, examine: Examine
) -> None:
    (pair,) = (pair for pair in START_CASES if pair.name == name)
    found, output = examine(examine_for_gpus, pair, gpus)
    assert (found, "GPUs fit" in output) == (refused, table), output
    assert words in output
    assert output.endswith(counts)
    assert " 4096 " not in output.partition("GPUs fit")[2]
