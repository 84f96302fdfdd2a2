"""Mistakes in settings as an operator meets them: the worker's command, and its output."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.processes.commands import HANDLER, WORKER, Ran, run
from support.tables.planted_mistakes import SECRET, SINGLE, TYPOS, placed

HEADING = re.compile(r"^(\d+) settings? (?:is|are) wrong, so the worker does not start:$", re.M)

BROKEN_FILE = {"VLLM_CONFIG_FILE": "<folder>/broken.yaml"}
# Mistakes that can stand in one environment; vLLM reads this variable of its own when it is asked.
WRONG = {name: value for name, value, _ in SINGLE} | BROKEN_FILE | {"VLLM_USE_DEEP_GEMM": "x"}
# vLLM reads this variable on import, which then fails.
UNIMPORTABLE = {"VLLM_CONFIGURE_LOGGING": "x", "MAX_CONCURRENCY": "0", **BROKEN_FILE}

pytestmark = pytest.mark.usefixtures("demo_model")


@dataclass(frozen=True)
class Refusal:
    """What a worker printed that did not start, and its list of mistakes."""

    printed: str
    mistakes: list[str]

    def named(self) -> list[str]:
        return [mistake.split()[0].rstrip(",") for mistake in self.mistakes]


def start(settings: dict[str, str], folder: Path) -> Refusal:
    return refusal(run({**WORKER, **placed(settings, folder)}, *HANDLER))


def refusal(ended: Ran) -> Refusal:
    """Read the output of a worker, which must end with the list, and with no secret in it."""
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 1, printed
    assert "Traceback" not in printed
    assert SECRET not in printed
    heading = HEADING.search(ended.stderr)
    assert heading, printed
    listed = ended.stderr[heading.end() + 1 :].splitlines()
    mistakes = [line[2:] for line in itertools.takewhile(lambda line: line[:2] == "  ", listed)]
    assert len(mistakes) == int(heading[1])
    assert mistakes == sorted(mistakes)
    return Refusal(printed, mistakes)


def test_fifty_wrong_values_and_two_dozen_misspelled_names_are_reported_by_one_start(
    tmp_path: Path,
) -> None:
    refused = start(WRONG | dict.fromkeys(TYPOS, SECRET), tmp_path)
    assert sorted(refused.named()) == sorted(WRONG)
    for mistake in refused.mistakes:
        assert re.match(r"[A-Z_0-9, ]+ = ['\"].+['\"]: \S", mistake)
    for name, meant in TYPOS.items():
        assert f"{name} is not a setting: did you mean {meant}?" in refused.printed


def test_a_variable_with_which_vllm_can_not_be_imported_is_reported_like_any_setting(
    tmp_path: Path,
) -> None:
    refused = start(UNIMPORTABLE, tmp_path)
    assert refused.named() == ["MAX_CONCURRENCY", "VLLM_CONFIGURE_LOGGING", "VLLM_CONFIG_FILE"]
