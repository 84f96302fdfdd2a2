"""Mistakes in settings as an operator meets them: the worker's command, and what it prints."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.processes.commands import HANDLER, WORKER, Ran, run
from support.processes.side_by_side import side_by_side
from support.tables.planted_mistakes import SECRET, SINGLE, TYPOS, placed

HEADING = re.compile(r"^(\d+) settings? (?:is|are) wrong, so the worker does not start:$", re.M)

BROKEN_FILE = {"VLLM_CONFIG_FILE": "<folder>/broken.yaml"}
# Mistakes that can stand in one environment; vLLM reads this variable of its own when it is asked.
WRONG = {name: value for name, value, _ in SINGLE} | BROKEN_FILE | {"VLLM_USE_DEEP_GEMM": "x"}
TOGETHER = {
    "MODEL_NAME": "<folder>/nothing",
    "HF_TOKEN": f"{SECRET}-1",
    "HUGGING_FACE_HUB_TOKEN": f"{SECRET}-2",
    "MIN_BATCH_SIZE": "2",
    "DEFAULT_MIN_BATCH_SIZE": "3",
    "LORA_MODULES": f'{{"name": "a", "path": "b", "base_model_name": "{SECRET}"}}',
    "ENABLE_AUTO_TOOL_CHOICE": "1",
    "CUSTOM_CHAT_TEMPLATE": "<folder>/template.jinja",
    "SPECULATIVE_METHOD": "ngram",
    "SPECULATIVE_CONFIG": f'{{"method": "{SECRET}"}}',
    "VLLM_CONFIG_FILE": "<folder>/unknown.yaml",
    "VLLM_EXTRA_ARGS": f"--api-key {SECRET}",
    "EMBEDDING_MODEL_NAME": "org/e",
    "EMBEDDING_SEED": "y",
    "EMBEDDING_GPU_MEMORY_UTILIZATION": "0.5",
    "GPU_MEMORY_UTILIZATION": "0.6",
}
# vLLM reads this variable on import, which then fails.
UNIMPORTABLE = {"VLLM_CONFIGURE_LOGGING": "x", "MAX_CONCURRENCY": "0", **BROKEN_FILE}
STARTS = {
    "many": WRONG | dict.fromkeys(TYPOS, SECRET),
    "together": TOGETHER,
    "unimportable": UNIMPORTABLE,
}


@dataclass(frozen=True)
class Refusal:
    """What a worker printed that did not start, and its list of mistakes."""

    printed: str
    mistakes: list[str]

    def named(self) -> list[str]:
        return [mistake.split()[0].rstrip(",") for mistake in self.mistakes]


Refused = Callable[[str], Refusal]


@pytest.fixture(scope="module")
def refused(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refused]:
    """Start all workers; waits for the one that is named."""
    folder = tmp_path_factory.mktemp("files")

    def start(settings: dict[str, str]) -> Callable[[], Ran]:
        environ = {**WORKER, **placed(settings, folder)}
        return lambda: run(environ, *HANDLER)

    with side_by_side({name: start(settings) for name, settings in STARTS.items()}) as result:
        yield lambda name: refusal(result(name))


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


def test_fifty_wrong_values_and_two_dozen_misspelt_names_are_told_by_one_start(
    refused: Refused,
) -> None:
    told = refused("many")
    assert sorted(told.named()) == sorted(WRONG)
    for mistake in told.mistakes:
        assert re.match(r"[A-Z_0-9, ]+ = ['\"].+['\"]: \S", mistake)
    for name, meant in TYPOS.items():
        assert f"{name} is not a setting: did you mean {meant}?" in told.printed


def test_settings_that_can_not_stand_together_are_told_by_one_start(refused: Refused) -> None:
    told = refused("together")
    assert set(told.named()) >= {
        "MODEL_NAME",
        "HUGGING_FACE_HUB_TOKEN",
        "MIN_BATCH_SIZE",
        "LORA_MODULES",
        "ENABLE_AUTO_TOOL_CHOICE",
        "CUSTOM_CHAT_TEMPLATE",
        "SPECULATIVE_METHOD",
        "MAX_MODEL_LENGTH",
        "VLLM_EXTRA_ARGS",
        "EMBEDDING_SEED",
        "EMBEDDING_GPU_MEMORY_UTILIZATION",
    }


def test_a_variable_that_vllm_itself_can_not_read_is_told_like_any_setting(
    refused: Refused,
) -> None:
    told = refused("many")
    assert {"MAX_CONCURRENCY", "VLLM_USE_DEEP_GEMM", "VLLM_CONFIG_FILE"} <= set(told.named())


def test_a_variable_that_vllm_can_not_be_imported_with_is_told_like_any_setting(
    refused: Refused,
) -> None:
    told = refused("unimportable")
    assert told.named() == ["MAX_CONCURRENCY", "VLLM_CONFIGURE_LOGGING", "VLLM_CONFIG_FILE"]
