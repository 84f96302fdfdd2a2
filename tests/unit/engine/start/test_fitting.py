"""Options that engines start with: defaults, shares of a GPU, slots, and fallbacks."""

import asyncio
from argparse import Namespace
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.arguments import engine_arguments
from support.engine.scripted import settings
from support.settings import start_on

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine
from worker.engine.options.automatic import MEMORY_OPTION, divide_gpu_memory
from worker.engine.run.core import CoreFailed
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.seam.translation import is_out_of_memory
from worker.engine.start import checks, steps
from worker.engine.start.steps import (
    LOAD_FORMAT,
    MAX_NUM_SEQS,
    RENDERER_NUM_WORKERS,
    with_renderer_workers,
)
from worker.engine.start.tables import FALLBACKS, choose_fallback_arguments
from worker.errors import StartFailed
from worker.settings.mistakes import SettingsError
from worker.settings.names import EMBEDDER_PREFIX

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
BROKEN_FILE = "RuntimeError: the file is no file of weights"
FAST_LOADER = LOAD_FORMAT, "instanttensor", "it is the fastest"
OTHER_LOADER_MESSAGE, LESS_MEMORY_MESSAGE = FALLBACKS.values()
VLLMS_LOADER = {LOAD_FORMAT: "auto"}
LESS_MEMORY, FEWER_SEQUENCES = {MEMORY_OPTION: "0.855"}, {MAX_NUM_SEQS: "64"}


def engine(*operator_options: str, prefix: str = "", config: Any = None) -> EngineArguments:
    changed = {"gpu_memory_utilization": 0.95, "max_num_seqs": 256, "served_model_name": ["m"]}
    base = engine_arguments(prefix, **changed)
    return replace(base, operator_options=dict.fromkeys(operator_options, ""), config=config)


def config(context: int = 0, device: str = "cuda", sequences: int = 256) -> Any:
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        scheduler_config=SimpleNamespace(max_num_seqs=sequences),
        model_config=SimpleNamespace(max_model_len=context),
    )


def configured_engine(
    *operator_options: str, device: str = "cuda", sequences: int = 256, fast: bool = False
) -> EngineArguments:
    arguments = engine(*operator_options)
    chosen = arguments.with_chosen_value(*FAST_LOADER) if fast else arguments
    return replace(chosen, config=config(device=device, sequences=sequences))


@pytest.mark.parametrize(
    ("configured", "reason", "message", "defaults"),
    [
        (configured_engine(), OUT_OF_MEMORY, LESS_MEMORY_MESSAGE, LESS_MEMORY | FEWER_SEQUENCES),
        (configured_engine(MAX_NUM_SEQS), OUT_OF_MEMORY, LESS_MEMORY_MESSAGE, LESS_MEMORY),
        (configured_engine(MEMORY_OPTION), OUT_OF_MEMORY, LESS_MEMORY_MESSAGE, FEWER_SEQUENCES),
        (configured_engine(device="cpu"), OUT_OF_MEMORY, LESS_MEMORY_MESSAGE, FEWER_SEQUENCES),
        (
            configured_engine(fast=True),
            OUT_OF_MEMORY,
            LESS_MEMORY_MESSAGE,
            VLLMS_LOADER | LESS_MEMORY | FEWER_SEQUENCES,
        ),
        (configured_engine(fast=True), BROKEN_FILE, OTHER_LOADER_MESSAGE, VLLMS_LOADER),
        (
            configured_engine(MEMORY_OPTION, MAX_NUM_SEQS, fast=True),
            OUT_OF_MEMORY,
            OTHER_LOADER_MESSAGE,
            VLLMS_LOADER,
        ),
    ],
)
def test_a_fallback_changes_only_options_that_the_operator_did_not_set(
    configured: EngineArguments, reason: str, message: str, defaults: dict[str, str]
) -> None:
    fallback = choose_fallback_arguments(configured, RuntimeError(reason))
    assert fallback
    arguments, description = fallback
    assert (description, {default.name: default.value for default in arguments.defaults}) == (
        message,
        defaults,
    )
    assert {name: str(getattr(arguments.vllm_args, name.lower())) for name in defaults} == defaults
    assert configured.vllm_args.gpu_memory_utilization == 0.95


@pytest.mark.parametrize(
    ("configured", "reason"),
    [
        (configured_engine(), BROKEN_FILE),
        (configured_engine(MEMORY_OPTION, MAX_NUM_SEQS), OUT_OF_MEMORY),
        (configured_engine(device="cpu", sequences=1), OUT_OF_MEMORY),
    ],
)
def test_there_is_no_fallback_if_no_option_can_be_changed(
    configured: EngineArguments, reason: str
) -> None:
    assert choose_fallback_arguments(configured, RuntimeError(reason)) is None


def test_less_memory_for_the_cache_does_not_help_weights_that_are_too_large() -> None:
    error = CoreFailed(OUT_OF_MEMORY, "initialize_model")
    assert choose_fallback_arguments(configured_engine(), error) is None


@pytest.mark.parametrize(
    ("reason", "is_memory"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("ValueError: Free memory is less than desired GPU memory utilization (0.95)", True),
        ("ValueError: No available memory for the cache blocks.", False),
    ],
)
def test_out_of_memory_errors_differ_from_other_failures(reason: str, is_memory: bool) -> None:
    assert is_out_of_memory(reason) is is_memory


def test_a_shorter_context_is_logged_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        checks.short_context_warning(
            engine(config=config(2048)), model_context=2048, min_context=1024
        )
        is None
    )
    line = (
        checks.short_context_warning(
            engine(config=config(20_480)), model_context=131_072, min_context=1024
        )
        or ""
    )
    assert line.startswith("m: the context has 20,480 of the model's ")
    assert "131,072" in line
    assert "KV_CACHE_DTYPE=fp8" in line
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    line = (
        checks.short_context_warning(
            engine(config=config(20_480, "cpu")), model_context=131_072, min_context=1024
        )
        or ""
    )
    assert "VLLM_CPU_KVCACHE_SPACE=13;" in line


def test_a_context_below_the_minimum_fails_except_for_an_embedder() -> None:
    with pytest.raises(StartFailed, match=r"512 tokens, .* MIN_MODEL_LEN=1024"):
        checks.short_context_warning(
            engine(config=config(512)), model_context=2048, min_context=1024
        )
    embedder = engine(prefix="EMBEDDING_", config=config(512))
    assert "EMBEDDING_MAX_MODEL_LEN" in (checks.short_context_warning(embedder, 2048, 1024) or "")


@pytest.mark.parametrize(
    ("changed", "operator_options", "threads"),
    [
        ({}, (), 2),
        ({"runner_type": "pooling"}, (), 2),
        ({"multimodal_config": "some"}, (), 2),
        ({"runner_type": "pooling", "multimodal_config": "some"}, (), 1),
        ({"skip_tokenizer_init": True}, (), 1),
        ({}, (RENDERER_NUM_WORKERS,), 1),
    ],
)
def test_the_renderer_gets_a_second_thread_if_possible(
    changed: dict[str, Any],
    operator_options: tuple[str, ...],
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = {"runner_type": "generate", "multimodal_config": None, "skip_tokenizer_init": False}
    model = SimpleNamespace(**{**defaults, **changed})
    monkeypatch.setattr(steps, "create_model_config", lambda _: model)
    before = EngineArguments(
        Namespace(renderer_num_workers=1), "m", operator_options=dict.fromkeys(operator_options, "")
    )
    after = with_renderer_workers(before, start_on(Machine(cpu=True)))
    assert after.vllm_args.renderer_num_workers == threads
    assert [default.name for default in after.defaults] == [RENDERER_NUM_WORKERS] * (threads - 1)


# Shares of a GPU


def gpu_shares(main: object, embedder: object) -> tuple[float, float]:
    shares = divide_gpu_memory(
        *({} if value is None else {MEMORY_OPTION: str(value)} for value in (main, embedder))
    )
    return shares[""], shares[EMBEDDER_PREFIX]


@pytest.mark.parametrize(
    ("main", "embedder", "shares"),
    [
        (None, None, (0.85, 0.1)),
        (None, 0.3, (0.65, 0.3)),
        (None, 0.94, (0.01, 0.94)),
        (0.6, None, (0.6, 0.1)),
        (0.5, 0.2, (0.5, 0.2)),
        (0.9, 0.1, (0.9, 0.1)),
        # vLLM's parser refuses values that aren't numbers.
        ("half", None, (0.95, 0.1)),
        (None, "half", (0.95, 0.1)),
        ("1", "half", (0.95, 0.1)),
    ],
)
def test_two_engines_share_a_gpu(main: Any, embedder: Any, shares: tuple[float, float]) -> None:
    assert gpu_shares(main, embedder) == shares


@pytest.mark.parametrize(
    ("main", "embedder", "name"),
    [
        (None, 0.95, f"EMBEDDING_{MEMORY_OPTION}"),
        (0.8, 0.3, f"EMBEDDING_{MEMORY_OPTION}"),
        (0, 0.3, f"EMBEDDING_{MEMORY_OPTION}"),
        (0.95, None, MEMORY_OPTION),
    ],
)
def test_shares_that_exceed_a_gpu_are_refused(main: Any, embedder: Any, name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        gpu_shares(main, embedder)
    assert [one.name for one in caught.value.mistakes] == [name]


@given(st.integers(1, 94))
def test_the_model_gets_the_share_that_the_embedder_leaves(percent: int) -> None:
    main, embedder = gpu_shares(None, percent / 100)
    assert embedder == percent / 100
    # The share is written on a command line, without digits from floating-point rounding.
    assert float(f"{main:g}") == main == round((95 - percent) / 100, 2)


@pytest.mark.parametrize(
    ("scheduler", "ranks", "slots"),
    [
        ({"max_num_seqs": 8}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": None}, 1, 8),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 1, 6),
        ({"max_num_seqs": 8, "max_num_active_seqs": 6}, 2, 12),
    ],
)
async def test_the_slots_of_all_ranks_are_added_up(
    scheduler: dict[str, int], ranks: int, slots: int
) -> None:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(**scheduler),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
    )
    core: Any = SimpleNamespace(client=SimpleNamespace(vllm_config=config))
    arguments: Any = SimpleNamespace(vllm_args=SimpleNamespace(served_model_name=["demo"]))
    loop = asyncio.get_running_loop()
    engine = InProcessEngine(core, arguments, settings(), loop, Future(), lambda: core)
    assert engine.slots == slots
