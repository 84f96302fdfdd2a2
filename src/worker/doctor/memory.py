"""Estimates whether weights and caches fit into the memory of GPUs, or into a machine's RAM.

The size of the weights comes from the headers of their files, and the size of the cache from vLLM's
own plan. ``worker.process.memory`` has the estimates for everything else.

``GpuJudge`` makes the verdicts on GPUs that this machine doesn't have, ``check_memory`` checks this
machine and proposes changes if a model doesn't fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level, readable_size
from worker.doctor.gpus import (
    CANNOT_BUILD,
    FITTING,
    NO_WEIGHTS,
    POOLS,
    Fit,
    GpuChoice,
    GpuType,
    Verdict,
    verdict_finding,
)
from worker.engine.cache_plan import KvCachePlan, lacks_data
from worker.engine.machine import Machine
from worker.engine.options.automatic import CPU_EXPORTS
from worker.engine.start.checks import (
    CPU_KVCACHE_SPACE,
    NUM_GPU_BLOCKS_OVERRIDE,
    short_context_warning,
)
from worker.engine.start.refusals import error_message
from worker.errors import MachineUnfit, StartFailed
from worker.process.memory import (
    CUDA_GRAPHS_RESERVE,
    EAGER_RESERVE,
    ERROR_MARGIN,
    GIB,
    USABLE_MEMORY_SHARE,
)
from worker.settings import Settings
from worker.settings.environment import process_environ

# Types, by safetensors' names, that loading converts to the type in which the model computes.
_FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
# Bytes of an element of a type that loading doesn't convert; 1 for types that are missing here.
_ELEMENT_BYTES = {"I64": 8, "U64": 8, "C64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
# Numbers of GPUs of one machine to try if fewer are not enough.
_GPU_COUNTS = (1, 2, 4, 8)

DEFAULT_MIN_MODEL_LEN: int = Settings.model_fields["min_model_len"].default
# Verdicts on one engine that apply to the whole worker, the worst first.
_WORST_FIRST = (Fit.NO, Fit.UNKNOWN, Fit.DOUBTFUL)

# Maximum number of GPUs that platforms offer in one machine.
_MAX_GPUS = 8
# Proposed contexts are rounded down to a multiple of this number of tokens.
_MULTIPLE = 1024
# Maximum number of characters of a refusal: vLLM's contains lengthy advice.
_MAX_REFUSAL_LENGTH = 400
_SMALLER = "use a smaller model, or one that is quantized"


class SizeRange(NamedTuple):
    """Lower and upper bound of an estimate, in bytes."""

    low: float
    high: float


@dataclass(frozen=True)
class GpuJudge:
    """Judges GPUs for the engines of one worker; ``min_model_len`` is MIN_MODEL_LEN."""

    models: Sequence[Candidate]
    min_model_len: int = DEFAULT_MIN_MODEL_LEN

    def worst_verdict(self, choice: GpuChoice) -> Verdict:
        """Return the worst verdict of all engines, or the first engine's if all models fit."""
        verdicts = [judge_fit(model, choice, self.min_model_len) for model in self.models]
        worst = (one for bad in _WORST_FIRST for one in verdicts if one.fit is bad)
        return next(worst, verdicts[0])

    def verdicts(self, choice: GpuChoice) -> list[Verdict]:
        """Judge GPUs, and larger numbers of them if the whole context does not fit.

        The verdicts are on the requested number, unless the model fits only on a larger one, and on
        the smallest number on which the whole context fits.
        """
        verdict = self.worst_verdict(choice)
        # More GPUs don't help if the operator has set among how many the model is divided.
        is_divided = "TENSOR_PARALLEL_SIZE" in self.models[0].engine.operator_options
        if verdict.fit in (Fit.FITS, Fit.UNKNOWN) or is_divided:
            return [verdict]
        more = (replace(choice, count=count) for count in _GPU_COUNTS if count > choice.count)
        enough = next(
            (one for one in map(self.worst_verdict, more) if one.fit is Fit.FITS), verdict
        )
        return [verdict, enough] if verdict.fit is not Fit.NO and enough != verdict else [enough]


def judge_fit(
    model: Candidate,
    choice: GpuChoice,
    min_model_len: int = DEFAULT_MIN_MODEL_LEN,
    tensor_parallel: int | None = None,
) -> Verdict:
    """Judge whether the model of one engine fits on GPUs.

    ``tensor_parallel`` of the GPUs share every layer; None for as many as a real startup would use.
    """
    if not model.snapshot.weights:
        return Verdict(choice, Fit.UNKNOWN, NO_WEIGHTS)
    tensor_parallel = tensor_parallel or model.tensor_parallel_size(choice.count)
    if (needed := model.gpu_count(tensor_parallel)) > choice.count:
        return Verdict(choice, Fit.NO, f"the settings divide it among {needed} GPUs")
    gpu = None if choice.on_this_machine else choice.smallest_gpu
    try:
        plan, whole = model.cache_plan(tensor_parallel, gpu), model.cache_plan(1, gpu)
    except MachineUnfit as error:
        return Verdict(choice, Fit.UNKNOWN, f"{CANNOT_BUILD}: {error.message}")
    except StartFailed as error:
        return Verdict(choice, Fit.NO, error.message)
    # For this machine's GPUs, vLLM itself has already checked the compute capability.
    types = () if choice.on_this_machine else choice.types
    if too_old := [kind.name for kind in types if kind.capability < plan.min_capability]:
        least = f"{plan.min_capability // 10}.{plan.min_capability % 10}"
        method = plan.config.model_config.quantization
        why = f"{method} needs compute capability {least}: {', '.join(too_old)} lacks it"
        return Verdict(choice, Fit.NO, why)
    share = plan.parameter_count / (whole.parameter_count or 1) / model.pipeline_stage_count
    offloaded = float(model.engine.vllm_args.cpu_offload_gb) * GIB
    sizes = estimate_weight_bytes(model, whole)
    weights = SizeRange(*(max(size * share - offloaded, 0) for size in sizes))
    return _judge_weights(model, choice, plan, weights, min_model_len)


def _judge_weights(
    model: Candidate, choice: GpuChoice, plan: KvCachePlan, weights: SizeRange, min_model_len: int
) -> Verdict:
    """Judge GPUs, each of which stores ``weights`` bytes of weights."""
    arguments = model.engine.vllm_args
    fixed_cache = arguments.kv_cache_memory_bytes
    budget = choice.smallest_gpu.memory * (1 if fixed_cache else arguments.gpu_memory_utilization)
    graphs = 0 if arguments.enforce_eager else CUDA_GRAPHS_RESERVE
    reserve = EAGER_RESERVE + graphs + plan.adapter_bytes
    least, wanted = context_length_limits(model, plan, min_model_len)

    def verdict(size: float, tolerance: float = 1) -> Verdict:
        free = budget * tolerance - size - reserve
        cache = fixed_cache or free
        why = (
            f"weights {readable_size(size)} + about {readable_size(reserve)} reserved, "
            f"of {readable_size(budget)}"
        )
        if cache > free or free <= 0:
            return Verdict(choice, Fit.NO, why)
        fitted = plan.capacity(cache * model.pipeline_stage_count, wanted)
        why += f", {readable_size(cache)} for the cache"
        if plan.bytes_per_token:
            why += f" ({plan.bytes_per_token:.0f} bytes a token)"
        if fitted.context_length < least:
            why += f", where {fitted.context_length} tokens would fit"
            return Verdict(choice, Fit.NO, why, fitted.context_length)
        fit = Fit.FITS if fitted.context_length >= wanted else Fit.SHORTER
        return Verdict(choice, fit, why, fitted.context_length, fitted.sequences)

    worst_case = verdict(weights.high)
    if worst_case.fit is not Fit.NO:
        return worst_case
    # The reserve is only an estimate.
    is_close = verdict(weights.low).fit is Fit.NO
    may_fit = not is_close or weights.low <= budget
    if is_close and plan.specs:
        may_fit = verdict(weights.low, ERROR_MARGIN).fit is not Fit.NO
    doubt = f"{worst_case.reason}; {describe_doubt([model], weights, is_close=is_close)}"
    return replace(worst_case, fit=Fit.DOUBTFUL, reason=doubt) if may_fit else worst_case


def describe_doubt(models: Sequence[Candidate], weights: SizeRange, *, is_close: bool) -> str:
    """Return the reasons why the memory that models need is not known exactly.

    ``weights`` are of all of them. ``is_close`` means that even the smallest size only fits if the
    other estimates are too large.
    """
    reasons = []
    if weights.low < weights.high:
        causes = []
        for model in models:
            prefix, arguments = model.engine.prefix, model.engine.vllm_args
            if arguments.quantization and not model.quantization_method:
                name = f"{prefix}QUANTIZATION={arguments.quantization}"
                causes.append(f"{name} converts weights while they are loaded")
            if arguments.enable_expert_parallel and arguments.data_parallel_size > 1:
                setting = f"{prefix}ENABLE_EXPERT_PARALLEL"
                causes.append(f"{setting} divides experts among the replicas")
        sizes = f"between {readable_size(weights.low)} and {readable_size(weights.high)}"
        reasons.append(f"{' and '.join(causes)}, which leaves {sizes}")
    if is_close:
        reasons.append("too close to tell, because the rest is estimated")
    return "; ".join(reasons)


def context_length_limits(
    model: Candidate, plan: KvCachePlan, min_model_len: int
) -> tuple[int, int]:
    """Return the shortest and the longest context, in tokens, with which the engine would start."""
    requested = model.engine.vllm_args.max_model_len
    wanted = plan.default_context_length if requested in (None, -1) else int(requested)
    if requested != -1:
        return wanted, wanted
    # vLLM uses the longest context that fits; MIN_MODEL_LEN applies to the main engine only.
    return min(1 if model.engine.prefix else min_model_len, wanted), wanted


def estimate_weight_bytes(model: Candidate, plan: KvCachePlan) -> SizeRange:
    """Estimate the bytes of a model's loaded weights; ``plan`` is for the undivided model."""
    if (tensors := model.snapshot.tensors) is not None:
        floats = sum(count for name, count in tensors.items() if name in _FLOAT_TYPES)
        others = tensors.keys() - _FLOAT_TYPES
        rest = sum(tensors[name] * _ELEMENT_BYTES.get(name, 1) for name in others)
    elif model.quantization_method:
        floats, rest = 0, model.snapshot.weights_size
    else:
        floats, rest = plan.parameter_count, 0
    loaded = floats * plan.element_bytes + rest
    target = "" if model.quantization_method else model.engine.vllm_args.quantization or ""
    # The lower bound assumes that quantization on loading covers all weights.
    element = (1.0 if "8" in target else 0.5) if target else plan.element_bytes
    # Experts may be divided among all replicas.
    arguments = model.engine.vllm_args
    parts = arguments.data_parallel_size if arguments.enable_expert_parallel else 1
    return SizeRange(min(loaded, floats * element + rest) / parts, loaded)


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
    """Check that a model fits; else propose changes, each of which would be sufficient."""
    tensor_size = model.tensor_parallel_size(len(machine.gpus))
    used = machine.gpus[: model.gpu_count(tensor_size)]
    smallest = min(used, key=lambda gpu: gpu.memory)
    kind = GpuType(smallest.name, smallest.name, smallest.memory / GIB, smallest.capability)
    choice = GpuChoice(smallest.name, (kind,), len(used), on_this_machine=True)
    verdict = judge_fit(model, choice, min_len, tensor_size)
    if verdict.fit in FITTING:
        return verdict_finding(verdict, "")

    def fits(other: GpuChoice, tensor_size: int) -> bool:
        return judge_fit(model, other, min_len, tensor_size).fit in FITTING

    changes = []
    if shorter := verdict.context // _MULTIPLE * _MULTIPLE:
        changes.append(f"set {model.engine.prefix}MAX_MODEL_LEN={shorter}")
    heads = model.shape.attention_heads if model.shape else 1
    for more in range(tensor_size + 1, _MAX_GPUS + 1):
        if heads % more == 0 and fits(replace(choice, count=model.gpu_count(more)), more):
            name = f"{model.engine.prefix}TENSOR_PARALLEL_SIZE={more}"
            changes.append(f"set {name} (with as many GPUs)")
            break
    larger = (pool for pool in POOLS if fits(replace(choice, types=pool.types), tensor_size))
    if pool := next(larger, None):
        changes.append(f"use a GPU with {pool.gb} GB")
    return verdict_finding(verdict, ", or ".join(changes) or _SMALLER)


def _check_ram(topic: str, models: Sequence[Candidate], ram: int) -> Finding:
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
    requested = model.engine.vllm_args.max_model_len
    requested = None if requested == -1 else requested
    shorter = None
    try:
        context = plan.fit_context_length(space, requested)
        if requested is None:
            with plan.override_context_length(context):
                shorter = short_context_warning(
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
    fitted = plan.capacity(_cpu_kv_cache_bytes(), least).context_length
    if shorter := fitted // _MULTIPLE * _MULTIPLE:
        changes.append(f"set {model.engine.prefix}MAX_MODEL_LEN={shorter}")
    sizes = range(plan.max_bytes_per_sequence(least) // GIB, int(max_cache_size // GIB) + 1)
    enough = (gib for gib in sizes if plan.capacity(gib * GIB, least).context_length >= least)
    if larger := next(enough, None):
        changes.append(f"set {CPU_KVCACHE_SPACE}={larger}")
    return ", or ".join(changes) or _SMALLER


def _cpu_kv_cache_bytes() -> int:
    # The checks of the settings have validated the number.
    gib = process_environ().get(CPU_KVCACHE_SPACE, "").strip() or CPU_EXPORTS[CPU_KVCACHE_SPACE]
    return int(gib) * GIB
