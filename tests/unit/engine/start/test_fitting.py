"""What engines are started with: defaults, shares of a GPU, slots; and less if it was too much."""

import asyncio
from argparse import Namespace
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine.arguments import arguments
from support.engine.scripted import settings

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Machine
from worker.engine.options.automatic import SHARE, divide_memory
from worker.engine.run.inprocess import InProcessEngine
from worker.engine.seam.translation import is_out_of_memory
from worker.engine.start import fitting, steps
from worker.engine.start.configuring import Configured
from worker.engine.start.fitting import SEQUENCES
from worker.engine.start.loading import LOAD_FORMAT
from worker.engine.start.steps import RENDERERS, with_renderer_workers
from worker.engine.start.tables import RETREATS, second_try
from worker.errors import StartFailed
from worker.settings.mistakes import SettingsError
from worker.settings.names import EMBEDDER

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
OTHER = "RuntimeError: the file is no file of weights"
FAST = LOAD_FORMAT, "instanttensor", "it is the fastest"
OTHER_LOADER, SECOND_TRY = RETREATS.values()
OWN = {LOAD_FORMAT: "auto"}
LESS, FEWER = {SHARE: "0.855"}, {SEQUENCES: "64"}


def engine(*given: str, prefix: str = "") -> EngineArguments:
    changed = {"gpu_memory_utilization": 0.95, "max_num_seqs": 256, "served_model_name": ["m"]}
    made = arguments(prefix, **changed)
    return EngineArguments(made.vllm, made.model_name, prefix, dict.fromkeys(given, ""))


def config(context: int = 0, device: str = "cuda", sequences: int = 256) -> Any:
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        scheduler_config=SimpleNamespace(max_num_seqs=sequences),
        model_config=SimpleNamespace(max_model_len=context),
    )


def first(
    *given: str, device: str = "cuda", sequences: int = 256, fast: bool = False
) -> Configured:
    made = engine(*given)
    chosen = made.with_default(*FAST) if fast else made
    return Configured(chosen, config(device=device, sequences=sequences))


@pytest.mark.parametrize(
    ("before", "reason", "doing", "changed"),
    [
        (first(), FULL, SECOND_TRY, LESS | FEWER),
        (first(SEQUENCES), FULL, SECOND_TRY, LESS),
        (first(SHARE), FULL, SECOND_TRY, FEWER),
        (first(device="cpu"), FULL, SECOND_TRY, FEWER),
        (first(fast=True), FULL, SECOND_TRY, OWN | LESS | FEWER),
        (first(fast=True), OTHER, OTHER_LOADER, OWN),
        (first(SHARE, SEQUENCES, fast=True), FULL, OTHER_LOADER, OWN),
    ],
)
def test_a_second_try_does_without_what_it_says_and_the_operator_has_not_set(
    before: Configured, reason: str, doing: str, changed: dict[str, str]
) -> None:
    second = second_try(*before, reason)
    assert second
    less, said = second
    assert (said, {default.name: default.value for default in less.defaults}) == (doing, changed)
    assert {name: str(getattr(less.vllm, name.lower())) for name in changed} == changed
    assert before.arguments.vllm.gpu_memory_utilization == 0.95


@pytest.mark.parametrize(
    ("before", "reason"),
    [(first(), OTHER), (first(SHARE, SEQUENCES), FULL), (first(device="cpu", sequences=1), FULL)],
)
def test_there_is_no_second_try_that_would_be_the_same(before: Configured, reason: str) -> None:
    assert second_try(*before, reason) is None


@pytest.mark.parametrize(
    ("reason", "is_memory"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("ValueError: Free memory is less than desired GPU memory utilization (0.95)", True),
        ("ValueError: No available memory for the cache blocks.", False),
    ],
)
def test_a_full_memory_differs_from_other_failures(reason: str, is_memory: bool) -> None:
    assert is_out_of_memory(reason) is is_memory


def test_a_shorter_context_is_logged_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitting.told(engine(), config(2048), own=2048, floor=1024) is None
    line = fitting.told(engine(), config(20_480), own=131_072, floor=1024) or ""
    assert line.startswith("m: a context of 20,480 tokens, which the memory holds, of the model's ")
    assert "131,072" in line
    assert "KV_CACHE_DTYPE=fp8" in line
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    line = fitting.told(engine(), config(20_480, "cpu"), own=131_072, floor=1024) or ""
    assert "VLLM_CPU_KVCACHE_SPACE=13;" in line


def test_a_context_below_the_floor_fails_unless_it_is_an_embedders() -> None:
    with pytest.raises(StartFailed, match=r"512 tokens .* MIN_MODEL_LEN=1024"):
        fitting.told(engine(), config(512), own=2048, floor=1024)
    embedder = engine(prefix="EMBEDDING_")
    assert "EMBEDDING_MAX_MODEL_LEN" in (fitting.told(embedder, config(512), 2048, 1024) or "")


@pytest.mark.parametrize(
    ("changed", "given", "threads"),
    [
        ({}, (), 2),
        ({"runner_type": "pooling"}, (), 2),
        ({"multimodal_config": "some"}, (), 2),
        ({"runner_type": "pooling", "multimodal_config": "some"}, (), 1),
        ({"skip_tokenizer_init": True}, (), 1),
        ({}, (RENDERERS,), 1),
    ],
)
def test_a_thread_stays_free(
    changed: dict[str, Any], given: tuple[str, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"runner_type": "generate", "multimodal_config": None, "skip_tokenizer_init": False}
    model = SimpleNamespace(**{**known, **changed})
    monkeypatch.setattr(steps, "create_model_config", lambda _: model)
    before = EngineArguments(Namespace(renderer_num_workers=1), "m", given=dict.fromkeys(given, ""))
    after = with_renderer_workers(before, StartContext(Machine(cpu=True)))
    assert after.vllm.renderer_num_workers == threads
    assert [default.name for default in after.defaults] == [RENDERERS] * (threads - 1)


# Shares of a GPU


def divided(main: object, embedder: object) -> tuple[float, float]:
    shares = divide_memory(
        *({} if value is None else {SHARE: str(value)} for value in (main, embedder))
    )
    return shares[""], shares[EMBEDDER]


@pytest.mark.parametrize(
    ("main", "embedder", "shares"),
    [
        (None, None, (0.85, 0.1)),
        (None, 0.3, (0.65, 0.3)),
        (None, 0.94, (0.01, 0.94)),
        (0.6, None, (0.6, 0.1)),
        (0.5, 0.2, (0.5, 0.2)),
        (0.9, 0.1, (0.9, 0.1)),
        # vLLM's parser refuses what is not a number.
        ("half", None, (0.95, 0.1)),
        (None, "half", (0.95, 0.1)),
        ("1", "half", (0.95, 0.1)),
    ],
)
def test_two_engines_share_a_gpu(main: Any, embedder: Any, shares: tuple[float, float]) -> None:
    assert divided(main, embedder) == shares


@pytest.mark.parametrize(
    ("main", "embedder", "name"),
    [
        (None, 0.95, f"EMBEDDING_{SHARE}"),
        (0.8, 0.3, f"EMBEDDING_{SHARE}"),
        (0, 0.3, f"EMBEDDING_{SHARE}"),
        (0.95, None, SHARE),
    ],
)
def test_shares_that_no_gpu_can_give_are_refused(main: Any, embedder: Any, name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        divided(main, embedder)
    assert [one.name for one in caught.value.mistakes] == [name]


@given(st.integers(1, 94))
def test_the_model_gets_what_the_embedder_leaves(percent: int) -> None:
    main, embedder = divided(None, percent / 100)
    assert embedder == percent / 100
    # As written on a command line: no digits of floating-point rounding.
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
async def test_slots_are_of_all_ranks(scheduler: dict[str, int], ranks: int, slots: int) -> None:
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(**scheduler),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
    )
    core: Any = SimpleNamespace(client=SimpleNamespace(vllm_config=config))
    arguments: Any = SimpleNamespace(vllm=SimpleNamespace(served_model_name=["demo"]))
    loop = asyncio.get_running_loop()
    engine = InProcessEngine(core, arguments, settings(), loop, Future(), lambda: core)
    assert engine.slots == slots
