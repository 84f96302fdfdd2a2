"""What a start with less memory changes, and what is said of a context that is not whole."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.engine.arguments import arguments

from worker.engine import fitting
from worker.engine.arguments import EngineArguments
from worker.errors import StartFailed


def engine(*given: str, prefix: str = "") -> EngineArguments:
    made = arguments(prefix, gpu_memory_utilization=0.95, served_model_name=["m"])
    return EngineArguments(made.vllm, made.model_name, prefix, frozenset(given))


def config(context: int = 0, device: str = "cuda") -> Any:
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        scheduler_config=SimpleNamespace(max_num_seqs=256),
        model_config=SimpleNamespace(max_model_len=context),
    )


@pytest.mark.parametrize(
    ("given", "device", "changed"),
    [
        ((), "cuda", {"GPU_MEMORY_UTILIZATION": "0.855", "MAX_NUM_SEQS": "64"}),
        (("MAX_NUM_SEQS",), "cuda", {"GPU_MEMORY_UTILIZATION": "0.855"}),
        (("GPU_MEMORY_UTILIZATION",), "cuda", {"MAX_NUM_SEQS": "64"}),
        ((), "cpu", {"MAX_NUM_SEQS": "64"}),
    ],
)
def test_a_second_try_takes_less_of_what_the_operator_left_open(
    given: tuple[str, ...], device: str, changed: dict[str, str]
) -> None:
    first = engine(*given)
    less = fitting.with_less(first, config(device=device))
    assert less is not None
    assert {default.name: default.value for default in less.defaults} == changed
    for name, value in changed.items():
        assert getattr(less.vllm, name.lower()) == float(value)
    assert first.vllm.gpu_memory_utilization == 0.95


def test_there_is_no_second_try_where_the_operator_has_set_everything() -> None:
    assert fitting.with_less(engine("MAX_NUM_SEQS", "GPU_MEMORY_UTILIZATION"), config()) is None


def test_there_is_no_second_try_with_fewer_sequences_than_one() -> None:
    one = config(device="cpu")
    one.scheduler_config.max_num_seqs = 1
    assert fitting.with_less(engine(), one) is None


@pytest.mark.parametrize(
    ("reason", "is_memory"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("ValueError: Free memory on device (9.9/80 GiB) on startup is less than desired GPU "
         "memory utilization (0.95, 76 GiB).", True),
        ("ValueError: No available memory for the cache blocks.", False),
        ("RuntimeError: unknown architecture", False),
    ],
)  # fmt: skip
def test_a_full_memory_is_told_from_other_failures(reason: str, is_memory: bool) -> None:
    assert fitting.is_out_of_memory(reason) is is_memory


def test_a_whole_context_is_not_worth_a_line() -> None:
    assert fitting.told(engine(), config(2048), own=2048, floor=1024) is None


def test_a_shorter_context_is_told_with_what_the_model_has_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = fitting.told(engine(), config(20_480), own=131_072, floor=1024)
    assert line is not None
    assert "20,480 tokens" in line
    assert "131,072" in line
    assert "KV_CACHE_DTYPE=fp8" in line
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    on_cpu = fitting.told(engine(), config(20_480, "cpu"), own=131_072, floor=1024)
    assert on_cpu is not None
    assert "VLLM_CPU_KVCACHE_SPACE=13;" in on_cpu


def test_a_context_below_the_floor_fails_unless_it_is_an_embedders() -> None:
    with pytest.raises(StartFailed, match=r"512 tokens .* MIN_MODEL_LEN=1024"):
        fitting.told(engine(), config(512), own=2048, floor=1024)
    embedder = engine(prefix="EMBEDDING_")
    assert "EMBEDDING_MAX_MODEL_LEN" in (fitting.told(embedder, config(512), 2048, 1024) or "")
