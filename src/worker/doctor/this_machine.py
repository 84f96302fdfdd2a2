"""Checks whether models fit into the memory of this machine, and proposes changes if they don't."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from worker.doctor.candidate import Candidate
from worker.doctor.findings import (
    CANNOT_BUILD,
    FITTING,
    NO_WEIGHTS,
    Finding,
    Level,
    Verdict,
    readable_size,
    verdict_finding,
)
from worker.doctor.gpus.choice import GpuChoice
from worker.doctor.gpus.pools import POOLS, GpuType
from worker.doctor.memory import (
    SizeRange,
    context_length_limits,
    describe_doubt,
    estimate_weight_bytes,
    judge_fit,
)
from worker.engine.cache_plan import KvCachePlan, lacks_data
from worker.engine.machine import Machine
from worker.engine.options.automatic import CPU_EXPORTS
from worker.engine.start import checks
from worker.engine.start.checks import CPU_KVCACHE_SPACE, NUM_GPU_BLOCKS_OVERRIDE
from worker.engine.start.refusals import error_message
from worker.errors import MachineUnfit, StartFailed
from worker.process.estimates import ERROR_MARGIN, GIB, USABLE_MEMORY_SHARE
from worker.settings.environment import process_environ

# Maximum number of GPUs that platforms offer in one machine.
_MAX_GPUS = 8
# Proposed contexts are rounded down to a multiple of this number of tokens.
_MULTIPLE = 1024
# Maximum number of characters of a refusal: vLLM's contains lengthy advice.
_MAX_REFUSAL_LENGTH = 400
_SMALLER = "use a smaller model, or one that is quantized"


def check_memory(
    models: Sequence[Candidate], machine: Machine, min_len: int, ram: int
) -> Iterator[Finding]:
    """Check that weights and caches fit into the memory of the GPUs, or into the RAM without GPUs.

    ``ram`` is in bytes; ``min_len`` is MIN_MODEL_LEN. The checks of the settings cover the number
    of GPUs, and engines that share a GPU.
    """
    if not machine.cpu and not machine.gpus:
        text = "this machine has no GPU, and the installed vLLM needs one"
        yield Finding(Level.FAIL, "parallel", text, "run the check on a machine like the worker's")
        return
    are_sizes_known = True
    for model in models:
        if unknown := _unknown_size_finding(model, machine):
            are_sizes_known, findings = False, [unknown]
        elif machine.cpu:
            findings = [_check_ram("memory", [model], ram), _check_kv_cache(model, min_len, ram)]
        else:
            findings = [_check_gpus(model, machine, min_len)]
        yield from (finding.with_engine_prefix(model.engine.prefix) for finding in findings)
    if machine.cpu and are_sizes_known and len(models) > 1:
        yield _check_ram("memory together", models, ram)


def _unknown_size_finding(model: Candidate, machine: Machine) -> Finding | None:
    """Return a finding on why the size of a model is unknown; None if it is known."""
    if not model.snapshot.weights:
        return Finding(Level.UNKNOWN, "memory", NO_WEIGHTS)
    try:
        model.cache_plan(model.tensor_parallel_size(len(machine.gpus)))
        model.cache_plan()
    except MachineUnfit as error:
        # The core builds the same layers, but with data and, on a GPU, with further kernels.
        level = Level.FAIL if machine.cpu and not lacks_data(error) else Level.UNKNOWN
        return Finding(level, "memory", f"{CANNOT_BUILD}: {error.message}")
    except StartFailed as error:
        return Finding(Level.FAIL, "model", error.message)
    return None


def _check_gpus(model: Candidate, machine: Machine, min_len: int) -> Finding:
    tensor_size = model.tensor_parallel_size(len(machine.gpus))
    used = machine.gpus[: model.gpu_count(tensor_size)]
    smallest = min(used, key=lambda gpu: gpu.memory)
    kind = GpuType(smallest.name, smallest.name, smallest.memory / GIB, smallest.capability)
    choice = GpuChoice(smallest.name, (kind,), len(used), on_this_machine=True)
    verdict = judge_fit(model, choice, min_len, tensor_size)
    change = "" if verdict.fit in FITTING else _gpu_remedies(model, verdict, tensor_size, min_len)
    return verdict_finding(verdict, change)


def _gpu_remedies(model: Candidate, verdict: Verdict, tensor_size: int, min_len: int) -> str:
    """Propose changes, each of which would be sufficient on its own."""
    changes, choice = [], verdict.choice
    if shorter := verdict.context // _MULTIPLE * _MULTIPLE:
        changes.append(f"set {model.engine.prefix}MAX_MODEL_LEN={shorter}")
    heads = model.shape.attention_heads if model.shape else 1
    for more in range(tensor_size + 1, _MAX_GPUS + 1):
        several = replace(choice, count=model.gpu_count(more))
        if heads % more == 0 and judge_fit(model, several, min_len, more).fit in FITTING:
            name = f"{model.engine.prefix}TENSOR_PARALLEL_SIZE={more}"
            changes.append(f"set {name} (with as many GPUs)")
            break
    for pool in POOLS:
        if judge_fit(model, replace(choice, types=pool.types), min_len, tensor_size).fit in FITTING:
            changes.append(f"use a GPU with {pool.gb} GB")
            break
    return ", or ".join(changes) or _SMALLER


def _check_ram(topic: str, models: Sequence[Candidate], ram: int) -> Finding:
    """Check that weights and caches fit into a machine's main memory of ``ram`` bytes."""
    sizes = [estimate_weight_bytes(model, model.cache_plan()) for model in models]
    low, high = weights = SizeRange(*map(sum, zip(*sizes, strict=True)))
    # A model without a KV cache, such as an encoder, needs no space for it.
    space, caches = _cpu_kv_cache_bytes(), sum(bool(model.cache_plan().specs) for model in models)
    text = f"weights {'at least ' * (low < high)}{readable_size(low)}"
    if caches:
        count = "a cache" if caches == 1 else f"{caches} caches"
        text += f" + {count} of {readable_size(space)}"
    text += f" in {readable_size(ram)} (this machine's memory)"
    if high + caches * space <= ram * USABLE_MEMORY_SHARE:
        return Finding(Level.OK, topic, text)
    smaller = int((ram * USABLE_MEMORY_SHARE - high) / caches // GIB) if caches else 0
    others = _SMALLER if len(models) == 1 else "use smaller models, or only one"
    change = f"set {CPU_KVCACHE_SPACE}={smaller}" if smaller > 0 else others
    if low + caches * space > ram * ERROR_MARGIN:
        return Finding(Level.FAIL, topic, text, change)
    is_close = low + caches * space > ram * USABLE_MEMORY_SHARE
    doubt = describe_doubt(models, weights, is_close=is_close)
    return Finding(Level.WARN, topic, f"{text}; {doubt}", change)


def _check_kv_cache(model: Candidate, min_len: int, ram: int) -> Finding:
    """Check how many tokens fit into a CPU's KV cache, with the same messages as the startup."""
    plan, space = model.cache_plan(model.tensor_parallel_size()), _cpu_kv_cache_bytes()
    if not plan.specs:
        return Finding(Level.OK, "cache", "the model has no KV cache")
    requested = model.vllm_arguments.max_model_len
    requested = None if requested == -1 else requested
    shorter = None
    try:
        context = plan.fit_context_length(space, requested)
        if requested is None:
            with plan.override_context_length(context):
                shorter = checks.short_context_warning(
                    replace(model.engine, config=plan.config), plan.default_context_length, min_len
                )
    except (ValueError, StartFailed) as error:
        most = ram * USABLE_MEMORY_SHARE - estimate_weight_bytes(model, model.cache_plan()).high
        change = _cpu_remedies(model, plan, min_len, most)
        return Finding(Level.FAIL, "cache", error_message(error, _MAX_REFUSAL_LENGTH), change)
    if shorter:
        return Finding(Level.WARN, "cache", shorter)
    text = (
        f"cache {readable_size(plan.max_bytes_per_sequence(context))} for {context} tokens "
        f"({plan.bytes_per_token:.0f} bytes each) in {readable_size(space)} "
        f"({CPU_KVCACHE_SPACE}={space / GIB:g})"
    )
    return Finding(Level.OK, "cache", text)


def _cpu_remedies(model: Candidate, plan: KvCachePlan, min_len: int, max_cache_size: float) -> str:
    """Propose changes, each of which would be sufficient; ``max_cache_size`` is in bytes."""
    if NUM_GPU_BLOCKS_OVERRIDE in model.engine.operator_options:
        return f"leave {model.engine.setting_name(NUM_GPU_BLOCKS_OVERRIDE)} unset"
    changes, least = [], context_length_limits(model, plan, min_len)[0]
    if (
        shorter := plan.capacity(_cpu_kv_cache_bytes(), least).context_length
        // _MULTIPLE
        * _MULTIPLE
    ):
        changes.append(f"set {model.engine.prefix}MAX_MODEL_LEN={shorter}")
    sizes = range(plan.max_bytes_per_sequence(least) // GIB, int(max_cache_size // GIB) + 1)
    enough = (gib for gib in sizes if plan.capacity(gib * GIB, least).context_length >= least)
    if larger := next(enough, None):
        changes.append(f"set {CPU_KVCACHE_SPACE}={larger}")
    return ", or ".join(changes) or _SMALLER


def _cpu_kv_cache_bytes() -> int:
    """Return the bytes of each CPU engine's KV cache, as set or by default."""
    # The checks of the settings have validated the number.
    gib = process_environ().get(CPU_KVCACHE_SPACE, "").strip() or CPU_EXPORTS[CPU_KVCACHE_SPACE]
    return int(gib) * GIB
