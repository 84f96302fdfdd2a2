"""The record of what each release of vLLM had, held to the one that is installed."""

import argparse
import json
from collections.abc import Callable
from typing import get_args

import pytest
import vllm
from packaging.version import Version
from vllm import ModelRegistry
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.model_loader import LoadFormats

from worker.engine.locations import find
from worker.settings import history
from worker.settings.history import Lifetime

INSTALLED = Version(Version(vllm.__version__).public)
LISTED = "DISTRIBUTED_EXECUTOR_BACKEND", "DTYPE", "KV_CACHE_DTYPE", "TOKENIZER_MODE"
# vLLM 0.27 to 0.31 spelled it otherwise: the record has no gaps.
CAME_BACK = {"ExaoneMoEForCausalLM"}


def parser_actions() -> list[argparse.Action]:
    parser = find("make_arg_parser")(find("FlexibleArgumentParser")())
    return [action for action in parser._actions if action.dest != "help"]


def options() -> set[str]:
    flags = {flag for action in parser_actions() for flag in action.option_strings}
    return {
        flag.removeprefix("--").replace("-", "_").upper()
        for flag in flags
        if flag.startswith("--") and f"--{flag.removeprefix('--no-')}" not in flags - {flag}
    }


def choices() -> set[str]:
    listed = {action.dest.upper(): action.choices or action.metavar for action in parser_actions()}
    known = {name: listed[name] for name in LISTED}
    known |= {"QUANTIZATION": QUANTIZATION_METHODS, "LOAD_FORMAT": get_args(LoadFormats)}
    return {f"{name}={choice}" for name, values in known.items() for choice in values or ()}


def architectures() -> set[str]:
    return set(ModelRegistry.get_supported_archs())


def was_there(lifetime: Lifetime) -> bool:
    begun = Version(lifetime.first) <= INSTALLED
    return begun and (lifetime.gone is None or Version(lifetime.gone) > INSTALLED)


@pytest.mark.parametrize("section", [options, choices, architectures])
def test_the_record_has_what_the_installed_vllm_has_and_no_more(
    section: Callable[[], set[str]],
) -> None:
    record = json.loads(history.RECORD.read_text())[section.__name__]
    recorded = {name for name, span in record.items() if was_there(Lifetime(*span.split()))}
    assert recorded - CAME_BACK == section() - CAME_BACK


def test_every_option_that_can_be_set_is_found_by_its_name() -> None:
    names = {action.dest.upper() for action in parser_actions() if action.option_strings}
    assert {name for name in names if not history.option(name)} == set()
