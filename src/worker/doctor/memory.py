"""Estimates whether weights and caches fit into the memory of GPUs, here or elsewhere.

The size of the weights comes from the headers of their files, and the size of the cache from vLLM's
own plan. ``worker.process.estimates`` has the estimates for everything else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from worker.doctor.candidate import Candidate
from worker.doctor.findings import CANNOT_BUILD, NO_WEIGHTS, Fit, Verdict, readable_size
from worker.doctor.gpus.choice import GpuChoice
from worker.engine.cache_plan import KvCachePlan
from worker.errors import MachineUnfit, StartFailed
from worker.process.estimates import CUDA_GRAPHS_RESERVE, EAGER_RESERVE, ERROR_MARGIN, GIB
from worker.settings import Settings

# Types, by safetensors' names, that loading converts to the type in which the model computes.
_FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
# Bytes of an element of a type that loading doesn't convert; 1 for types that are missing here.
_ELEMENT_BYTES = {"I64": 8, "U64": 8, "C64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
# Numbers of GPUs of one machine to try if fewer are not enough.
_GPU_COUNTS = (1, 2, 4, 8)

DEFAULT_MIN_MODEL_LEN: int = Settings.model_fields["min_model_len"].default
# Verdicts on one engine that apply to the whole worker, the worst first.
_WORST_FIRST = (Fit.NO, Fit.UNKNOWN, Fit.DOUBTFUL)


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

        Return verdicts on the requested number, unless the model fits only on a larger one, and on
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
    offloaded = float(model.vllm_arguments.cpu_offload_gb) * GIB
    sizes = estimate_weight_bytes(model, whole)
    weights = SizeRange(*(max(size * share - offloaded, 0) for size in sizes))
    return _judge_weights(model, choice, plan, weights, min_model_len)


def _judge_weights(
    model: Candidate, choice: GpuChoice, plan: KvCachePlan, weights: SizeRange, min_model_len: int
) -> Verdict:
    """Judge GPUs, each of which stores ``weights`` bytes of weights."""
    arguments = model.vllm_arguments
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

    Args:
        models: The models that share the memory.
        weights: The bytes of the weights of all of them.
        is_close: Whether even the smallest size only fits if the other estimates are too large.
    """
    reasons = []
    if weights.low < weights.high:
        causes = [cause for model in models for cause in _causes_of_smaller_weights(model)]
        sizes = f"between {readable_size(weights.low)} and {readable_size(weights.high)}"
        reasons.append(f"{' and '.join(causes)}, which leaves {sizes}")
    if is_close:
        reasons.append("too close to tell, because the rest is estimated")
    return "; ".join(reasons)


def _causes_of_smaller_weights(model: Candidate) -> Iterator[str]:
    prefix, arguments = model.engine.prefix, model.vllm_arguments
    if arguments.quantization and not model.quantization_method:
        name = f"{prefix}QUANTIZATION={arguments.quantization}"
        yield f"{name} converts weights while they are loaded"
    if arguments.enable_expert_parallel and arguments.data_parallel_size > 1:
        yield f"{prefix}ENABLE_EXPERT_PARALLEL divides experts among the replicas"


def context_length_limits(
    model: Candidate, plan: KvCachePlan, min_model_len: int
) -> tuple[int, int]:
    """Return the shortest and the longest context, in tokens, with which the engine would start."""
    requested = model.vllm_arguments.max_model_len
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
    target = "" if model.quantization_method else model.vllm_arguments.quantization or ""
    # The lower bound assumes that quantization on loading covers all weights.
    element = (1.0 if "8" in target else 0.5) if target else plan.element_bytes
    # Experts may be divided among all replicas.
    arguments = model.vllm_arguments
    parts = arguments.data_parallel_size if arguments.enable_expert_parallel else 1
    return SizeRange(min(loaded, floats * element + rest) / parts, loaded)
