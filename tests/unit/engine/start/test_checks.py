"""Checks of a start; tests/settings and the doctor's tests run them with vLLM's configurations."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.settings import engine_arguments

from worker.engine.start.checks import short_context_warning
from worker.errors import StartFailed


def warn(context: int, model_context: int, device: str = "cuda", prefix: str = "") -> str:
    """Return the warning about an engine whose context was fitted to the memory; else blank."""
    config = SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        model_config=SimpleNamespace(max_model_len=context),
    )
    arguments = replace(engine_arguments(prefix, served_model_name=["m"]), config=config)
    return short_context_warning(arguments, model_context, min_context=1024) or ""


def test_a_shorter_context_is_logged_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    assert warn(2048, 2048) == ""
    line = warn(20_480, 131_072)
    assert line.startswith("m: the context has 20,480 of the model's 131,072 tokens, ")
    assert "KV_CACHE_DTYPE=fp8" in line
    assert "VLLM_CPU_KVCACHE_SPACE=13;" in warn(20_480, 131_072, "cpu")


def test_a_context_below_the_minimum_fails_except_for_an_embedder() -> None:
    with pytest.raises(StartFailed, match=r"512 tokens, .* MIN_MODEL_LEN=1024"):
        warn(512, 2048)
    assert "EMBEDDING_MAX_MODEL_LEN" in warn(512, 2048, prefix="EMBEDDING_")
