"""What the doctor says of a model's size, on machines that are not here."""

from typing import Any

import pytest
from support.doctor import CPU, H100, LLAMA, RTX_4090, TWO, arguments, candidate, only
from support.models import configs as models

from worker.doctor import fit
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level
from worker.doctor.memory import GIB
from worker.engine.machine import Gpu, Machine


def memory(
    model: Candidate, on: Machine = RTX_4090, own: float = 128 * GIB, **environ: str
) -> Finding:
    """Return the first finding that is not OK, or the last one."""
    findings = list(fit.fits(model, on, environ, int(own)))
    return next((found for found in findings if found.level is not Level.OK), findings[-1])


def test_a_model_that_fits_is_reported_with_its_figures() -> None:
    found = memory(candidate(MAX_MODEL_LEN="16384"))
    assert found.level is Level.OK
    assert "weights 15.0 GiB" in found.text
    assert "cache 2.0 GiB for 16384 tokens (131072 bytes each)" in found.text
    assert "in 22.8 GiB (0.95 of RTX 4090, 24.0 GiB)" in found.text


# The whole context of the model, as one has to ask for it.
WHOLE: dict[str, Any] = {"MAX_MODEL_LEN": "131072"}


def test_a_text_too_long_fails_with_every_way_out() -> None:
    found = memory(candidate(**WHOLE))
    assert found.level is Level.FAIL
    assert found.change == (
        "set MAX_MODEL_LEN=41984, or set TENSOR_PARALLEL_SIZE=2 (with as many GPUs), "
        "or take a GPU with 48 GB"
    )


def test_every_proposed_change_is_enough_alone() -> None:
    assert memory(candidate(MAX_MODEL_LEN="41984")).level is Level.OK
    assert memory(candidate(TWO, TENSOR_PARALLEL_SIZE="2"), TWO).level is Level.OK
    a40 = Machine(cpu=False, gpus=(Gpu("A40", int(44.4 * GIB)),))
    assert memory(candidate(a40), a40).level is Level.OK


def test_several_gpus_are_used_without_being_asked_for() -> None:
    assert candidate(TWO).split.gpus == 2
    assert memory(candidate(TWO), TWO).level is Level.OK


def test_of_several_gpus_as_many_are_used_as_the_heads_allow() -> None:
    three = Machine(cpu=False, gpus=RTX_4090.gpus * 3)
    assert candidate(three).split.gpus == 2
    asked = candidate(three, TENSOR_PARALLEL_SIZE="3")
    assert only(fit.parallel(asked, three)).level is Level.FAIL


def test_what_is_close_is_a_warning() -> None:
    found = memory(candidate(MAX_MODEL_LEN="49152"))
    assert found.level is Level.WARN
    assert "too close to tell" in found.text


@pytest.mark.parametrize("unset", [{}, {"MAX_MODEL_LEN": "-1"}])
def test_vllm_chooses_the_length_where_the_weights_fit(unset: dict[str, Any]) -> None:
    found = memory(candidate(**unset))
    assert found.level is Level.OK
    assert "42" in found.text.split("; ")[1]


def test_the_least_context_must_fit() -> None:
    assert memory(candidate(), MIN_MODEL_LEN="40000").level is Level.OK
    assert memory(candidate(), MIN_MODEL_LEN="100000").level is Level.FAIL
    # It is about the memory: a model with a shorter context has that one.
    shorter = models.LLAMA_3_1_8B | {"max_position_embeddings": 8192}
    assert memory(candidate(config=shorter), MIN_MODEL_LEN="100000").level is Level.OK


def test_weights_that_fill_the_gpu_fail_whatever_the_length() -> None:
    small = Machine(cpu=False, gpus=(Gpu("T4", int(14.6 * GIB)),))
    found = memory(candidate(small, MAX_MODEL_LEN="16"), small)
    assert found.level is Level.FAIL
    assert "MAX_MODEL_LEN" not in found.change


def test_an_upper_bound_alone_fails_nothing() -> None:
    config = models.MISTRAL_7B_V0_1 | {"max_position_embeddings": 1_000_000}
    found = memory(candidate(config=config, MAX_MODEL_LEN="1000000"))
    assert found.level is Level.WARN


@pytest.mark.parametrize("config", [models.QWEN_3_NEXT, {"model_type": "unheard-of"}])
def test_an_unknown_cache_leaves_the_verdict_open(config: dict[str, Any]) -> None:
    assert memory(candidate(H100, config), H100).level is Level.UNKNOWN


def test_an_embedder_may_need_no_cache() -> None:
    assert memory(candidate(**WHOLE)).level is Level.FAIL
    assert memory(candidate(RUNNER="pooling", **WHOLE)).level is Level.WARN


def test_offloaded_weights_leave_room() -> None:
    assert memory(candidate(MAX_MODEL_LEN="65536", CPU_OFFLOAD_GB="8")).level is Level.OK


def test_a_settled_cache_is_looked_at_by_itself() -> None:
    size = str(2 * GIB)
    shorter = candidate(MAX_MODEL_LEN="8192", KV_CACHE_MEMORY_BYTES=size)
    assert memory(shorter).level is Level.OK
    found = memory(candidate(MAX_MODEL_LEN="32768", KV_CACHE_MEMORY_BYTES=size))
    assert (found.level, found.topic) == (Level.FAIL, "cache")


def test_beside_a_settled_cache_the_share_of_the_gpu_does_not_count() -> None:
    size = str(int(5.8 * GIB))
    assert memory(candidate(MAX_MODEL_LEN="8192", KV_CACHE_MEMORY_BYTES=size)).level is Level.OK


def test_a_quantised_checkpoint_is_not_quantised_again() -> None:
    quantised = models.LLAMA_3_1_8B | {"quantization_config": {"quant_method": "fp8"}}
    assert candidate(config=quantised, QUANTIZATION="fp8").weights.exact
    assert not candidate(QUANTIZATION="fp8").weights.exact


def test_without_a_gpu_the_machines_memory_counts() -> None:
    # In float32, which the worker chooses there.
    found = memory(candidate(CPU), CPU, 16 * GIB, VLLM_CPU_KVCACHE_SPACE="32")
    assert (found.level, found.topic) == (Level.FAIL, "memory")
    assert "weights 29.9 GiB" in found.text


def test_without_a_gpu_the_cache_has_a_space_of_its_own() -> None:
    whole = candidate(CPU, **WHOLE)
    found = memory(whole, CPU, VLLM_CPU_KVCACHE_SPACE="1")
    assert (found.level, found.topic) == (Level.FAIL, "cache")
    assert found.change == "set MAX_MODEL_LEN=3072, or set VLLM_CPU_KVCACHE_SPACE=33"
    assert memory(whole, CPU, VLLM_CPU_KVCACHE_SPACE="33").level is Level.OK
    shorter = candidate(CPU, MAX_MODEL_LEN="3072")
    assert memory(shorter, CPU, VLLM_CPU_KVCACHE_SPACE="1").level is Level.OK


def test_a_space_that_the_machine_has_not_is_never_proposed() -> None:
    whole = candidate(CPU, MAX_MODEL_LEN="131072")
    found = memory(whole, CPU, 40 * GIB, VLLM_CPU_KVCACHE_SPACE="1")
    assert (found.level, found.change) == (Level.FAIL, "set MAX_MODEL_LEN=3072")


def test_without_gpus_all_parts_of_a_model_share_the_memory() -> None:
    found = memory(candidate(CPU, TENSOR_PARALLEL_SIZE="2"), CPU, VLLM_CPU_KVCACHE_SPACE="100")
    assert "weights 29.9 GiB" in found.text


def test_a_space_larger_than_the_memory_is_to_be_lowered_to_what_fits() -> None:
    found = memory(candidate(CPU), CPU, 64 * GIB, VLLM_CPU_KVCACHE_SPACE="70")
    assert (found.level, found.topic) == (Level.FAIL, "memory")
    assert found.change == "set VLLM_CPU_KVCACHE_SPACE=32"
    lowered = memory(candidate(CPU), CPU, 64 * GIB, VLLM_CPU_KVCACHE_SPACE="32")
    assert lowered.topic == "cache"
    too_small = memory(candidate(CPU), CPU, 30 * GIB, VLLM_CPU_KVCACHE_SPACE="10")
    assert too_small.change.startswith("take a smaller model")


def both(own: float, space: str, on: Machine = CPU, runner: str = "auto") -> list[Finding]:
    engines = [candidate(on), candidate(on, RUNNER=runner)]
    return list(fit.together(engines, on, {"VLLM_CPU_KVCACHE_SPACE": space}, int(own)))


def test_the_caches_of_two_engines_add_up_in_the_machines_memory() -> None:
    found = only(both(80 * GIB, "20"))
    assert (found.level, found.change) == (Level.FAIL, "set VLLM_CPU_KVCACHE_SPACE=8")
    assert only(both(80 * GIB, "8")).level is Level.OK
    assert only(both(50 * GIB, "8")).change.startswith("take smaller models")


def test_an_embedder_may_keep_no_cache_beside_the_models() -> None:
    assert only(both(90 * GIB, "20", runner="pooling")).level is Level.WARN


def test_engines_on_gpus_share_none_of_the_machines_memory() -> None:
    assert both(1, "20", RTX_4090) == []
    assert list(fit.together([candidate(CPU)], CPU, {"VLLM_CPU_KVCACHE_SPACE": "20"}, 1)) == []


def test_a_length_beyond_the_models_own_fails() -> None:
    found = only(fit.context(candidate(MAX_MODEL_LEN="200000"), {}))
    assert found.level is Level.FAIL
    assert found.change == "set MAX_MODEL_LEN=131072, or leave it unset"


def test_vllm_can_be_set_to_allow_a_length_beyond_the_models_own() -> None:
    allowed = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    assert only(fit.context(candidate(MAX_MODEL_LEN="200000"), allowed)).level is Level.WARN


def test_overrides_of_the_configuration_count() -> None:
    longer = candidate(MAX_MODEL_LEN="200000", HF_OVERRIDES='{"max_position_embeddings": 262144}')
    assert only(fit.context(longer, {})).level is Level.OK


def test_heads_that_cannot_be_divided_fail() -> None:
    found = only(fit.parallel(candidate(CPU, models.QWEN_2_5_7B, TENSOR_PARALLEL_SIZE="8"), CPU))
    assert found.level is Level.FAIL
    assert found.change == "set it to one of 1, 2, 4, 7"


def test_a_vllm_for_gpus_needs_one() -> None:
    none = Machine(cpu=False)
    found = Candidate.of(arguments(CPU), LLAMA)
    assert only(fit.parallel(found, none)).level is Level.FAIL
    assert list(fit.fits(found, none, {}, 64 * GIB)) == []
