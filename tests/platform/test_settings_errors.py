"""Mistakes in settings as an operator meets them: the worker's command, and what it prints."""

import itertools
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import HANDLER, WORKER, run
from planted_mistakes import SECRET, SINGLE, TYPOS, placed

HEADING = re.compile(r"^(\d+) settings? (?:is|are) wrong, so the worker does not start:$", re.M)
# Seconds; an idle machine takes ten, most of them for the import of vLLM.
SLACK = 30.0


@dataclass(frozen=True)
class Refusal:
    """What a worker printed that did not start, and its list of mistakes."""

    printed: str
    mistakes: list[str]

    def named(self) -> list[str]:
        return [mistake.split()[0].rstrip(",") for mistake in self.mistakes]


def refused(settings: dict[str, str]) -> Refusal:
    """Start a worker that must end with the list, in time, and with no secret in it."""
    begun = time.monotonic()
    ended = run({**WORKER, **settings}, *HANDLER)
    took = time.monotonic() - begun
    sys.stdout.write(f"{took:.1f} s\n")
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
    assert took < SLACK
    return Refusal(printed, mistakes)


def test_fifty_wrong_values_and_two_dozen_misspelt_names_are_told_by_one_start() -> None:
    settings = {name: value for name, value, _ in SINGLE}
    told = refused({**settings, **dict.fromkeys(TYPOS, SECRET)})
    assert set(told.named()) >= settings.keys()
    for mistake in told.mistakes:
        assert re.match(r"[A-Z_0-9, ]+ = ['\"].+['\"]: \S", mistake)
    for name, meant in TYPOS.items():
        assert f"{name} is not a setting: did you mean {meant}?" in told.printed


def test_settings_that_can_not_stand_together_are_told_by_one_start(tmp_path: Path) -> None:
    settings = {
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
    told = refused(placed(settings, tmp_path))
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


@pytest.mark.parametrize("variable", ["VLLM_CONFIGURE_LOGGING", "VLLM_USE_DEEP_GEMM"])
def test_a_variable_that_vllm_itself_can_not_read_is_told_like_any_setting(
    variable: str, tmp_path: Path
) -> None:
    settings = {variable: "x", "MAX_CONCURRENCY": "0", "VLLM_CONFIG_FILE": "<folder>/broken.yaml"}
    told = refused(placed(settings, tmp_path))
    assert told.named() == ["MAX_CONCURRENCY", variable, "VLLM_CONFIG_FILE"] or (
        told.named() == ["MAX_CONCURRENCY", "VLLM_CONFIG_FILE", variable]
    )
