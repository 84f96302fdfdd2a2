"""Values as operators write them, and as messages show them."""

from pathlib import Path
from typing import Any

import pytest

from worker.settings.values import (
    is_directory,
    redact,
    redact_line,
    redact_setting,
    same,
    scalar,
    unfit,
)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("False", False),
        ("true", True),
        ("0.5", 0.5),
        ("null", None),
        ("1a", "1a"),
    ],
)
def test_a_scalar_is_read_as_what_it_looks_like(written: str, value: Any) -> None:
    read = scalar(written)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("off", "0", True),
        ("Yes", "1", True),
        ("1", "1.0", True),
        ("a", "a", True),
        ("0", "1", False),
        ("1", "2", False),
        ("on", "maybe", False),
    ],
)
def test_values_are_the_same_if_they_mean_the_same(one: str, other: str, alike: bool) -> None:
    assert same(one, other) is same(other, one) is alike


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("https://huggingface.co/Qwen/x", "without address"),
        ('"Qwen/x"', "without address, quotes"),
        ("Qwen/x/", "written as owner/name"),
        ("Qwen/x@main", "its revision has a setting of its own"),
        ("~/x", "no such directory"),
        (f"/{'x' * 300}", "no such directory"),
        ("x" * 300, "written as owner/name"),
        ("org/my model", "written as owner/name"),
    ],
)
def test_a_name_that_is_no_models_is_refused_with_the_reason(model: str, reason: str) -> None:
    assert reason in (unfit(model) or "")


@pytest.mark.parametrize("model", ["gpt2", "Qwen/Qwen3-0.6B", "org/model:Q4_K_M", "s3://bucket/x"])
def test_a_name_that_may_be_a_models_is_accepted(model: str) -> None:
    assert unfit(model) is None


def test_a_directory_is_a_model_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "a model").mkdir()
    assert unfit(f"{tmp_path}/a model") is None
    assert is_directory(str(tmp_path))
    assert not is_directory("x" * 5000)


SECRETS = ["hf-token", "api-key", "aws-secret", "db-password"]


@pytest.mark.parametrize(
    ("line", "redacted"),
    [
        ("--api-key 'sk canary two' --seed 1", "--api-key *** --seed 1"),
        ("--API-KEY canary", "--API-KEY ***"),
        ("--api-key=canary", "--api-key=***"),
        ("HF_TOKEN=canary", "HF_TOKEN=***"),
        ('--hf-overrides \'{"a": "canary"}\'', "--hf-overrides {...}"),
        ("--hf-overrides={canary}", "--hf-overrides={...}"),
        ("--max-num-batched-tokens 5", "--max-num-batched-tokens 5"),
        ("--api-key 'canary", "--api-key ***"),
        *((f"--{end} canary --{end}=canary", f"--{end} *** --{end}=***") for end in SECRETS),
    ],
)
def test_secrets_in_a_command_line_are_redacted(line: str, redacted: str) -> None:
    assert redact_line(line) == redacted


def test_secrets_are_not_repeated() -> None:
    for end in SECRETS:
        assert redact_setting(end.replace("-", "_").upper(), "canary") == "***"
    assert redact_setting("DTYPE", "half") == "half"
    assert redact_setting("MAX_TOKENS", "x") == "x"
    assert redact("http://user:canary@host/x") == "http://***@host/x"
    assert (redact('{"a": 1}'), redact("[1]"), redact("half")) == ("{...}", "[...]", "half")
