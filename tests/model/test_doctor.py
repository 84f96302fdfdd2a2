"""The doctor's estimates against what the real engine, and the real model, take."""

from pathlib import Path
from typing import TYPE_CHECKING

from worker.doctor import fit
from worker.doctor.findings import Level
from worker.doctor.memory import GIB, Range
from worker.doctor.model import Model
from worker.settings import Settings
from worker.store import Places, Wanted
from worker.store.hub import locate

if TYPE_CHECKING:
    from worker.engine.inprocess import InProcessEngine


def examined(settings: Settings, **asked: str) -> Model:
    # Imported here: it takes seconds, and tests of other folders do without it.
    from worker.engine.options import Options  # noqa: PLC0415 - see above

    name = settings.model_name
    snapshot = locate(Wanted(name), Places(Path("/nowhere")))
    return Model.of(Options().parse({"MODEL": name, **asked}), snapshot)


def told(engine: "InProcessEngine", label: str) -> str:
    """What vLLM says of its cache in its metrics."""
    (cache,) = (each for each in engine.metrics.collect() if each.name == "vllm:cache_config_info")
    return cache.samples[0].labels[label]


def test_a_token_takes_what_vllm_divides_its_cache_by(
    engine: "InProcessEngine", settings: Settings
) -> None:
    model = examined(settings)
    tokens = int(told(engine, "num_gpu_blocks")) * int(told(engine, "block_size"))
    space = int(told(engine, "kv_cache_memory_bytes"))
    each = space / tokens
    assert model.token(model.split) == Range(each, each)


def test_the_space_that_is_told_holds_what_vllm_says_it_holds(
    engine: "InProcessEngine", settings: Settings
) -> None:
    from worker.engine.machine import Machine  # noqa: PLC0415 - likewise

    space = {"VLLM_CPU_KVCACHE_SPACE": str(int(told(engine, "kv_cache_memory_bytes")) // GIB)}
    tokens = int(told(engine, "kv_cache_size_tokens"))
    for context, expected in ((int(tokens * 0.9), Level.OK), (int(tokens * 1.2), Level.FAIL)):
        model = examined(settings, MAX_MODEL_LEN=str(context))
        found = {
            each.topic: each.level for each in fit.fits(model, Machine(cpu=True), space, 64 * GIB)
        }
        assert found == {"memory": Level.OK, "cache": expected}


def test_weights_take_what_the_loaded_model_takes(demo_model: Path, settings: Settings) -> None:
    import torch  # noqa: PLC0415 - likewise
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - likewise

    for dtype in ("float32", "bfloat16"):
        loaded = AutoModelForCausalLM.from_pretrained(demo_model, dtype=getattr(torch, dtype))
        taken = sum(each.numel() * each.element_size() for each in loaded.parameters())
        assert examined(settings, DTYPE=dtype).weights == Range(taken, taken)
