"""Whether weights and caches fit into memory: of GPUs, here or elsewhere, and of a CPU's machine.

Weights are counted from the headers of their files, the cache is vLLM's own plan, and what is
guessed besides stands in ``worker.process.estimates``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Fit, Verdict, readable_size
from worker.doctor.gpus.asked import Choice
from worker.engine.cache_plan import CachePlan
from worker.errors import MachineUnfit, StartFailed
from worker.process.estimates import EAGER_RESERVE, GIB, GRAPHS_RESERVE, TOO_MUCH
from worker.settings import Settings

# Types, by safetensors' names, that loading converts to the type that the model computes in.
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
# Bytes of an element of the other types; one, where it is not here.
_BYTES = {"I64": 8, "U64": 8, "C64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
# GPUs of one machine that are tried where fewer don't do.
_COUNTS = (1, 2, 4, 8)

FLOOR: int = Settings.model_fields["min_model_len"].default
# The worst verdict first.
_BAD = (Fit.NO, Fit.UNKNOWN, Fit.DOUBTFUL)

NO_WEIGHTS = "how large the model's weights are is not known"
UNBUILT = "vLLM can't build the model here"


class Range(NamedTuple):
    """An estimate in bytes: at least ``low``, at most ``high``."""

    low: float
    high: float


@dataclass(frozen=True)
class Judge:
    """Judges GPUs for the engines of one worker; ``floor`` is MIN_MODEL_LEN."""

    models: Sequence[Candidate]
    floor: int = FLOOR

    def verdict(self, choice: Choice) -> Verdict:
        """Judge GPUs, by the engine that fares worst, or else by the first."""
        found = [judge(model, choice, self.floor) for model in self.models]
        worst = (one for bad in _BAD for one in found if one.fit is bad)
        return next(worst, found[0])

    def verdicts(self, choice: Choice) -> list[Verdict]:
        """Judge GPUs of a kind, and several of them where fewer don't hold the whole context.

        Returns the verdict on those that were asked for, and on the fewest that hold it. One that
        they don't hold the model at all is left out if more of them do.
        """
        asked = self.verdict(choice)
        # The operator may have said how the model is divided.
        divided = "TENSOR_PARALLEL_SIZE" in self.models[0].engine.given
        if asked.fit in (Fit.FITS, Fit.UNKNOWN) or divided:
            return [asked]
        more = (replace(choice, count=count) for count in _COUNTS if count > choice.count)
        enough = next((one for one in map(self.verdict, more) if one.fit is Fit.FITS), asked)
        return [asked, enough] if asked.fit is not Fit.NO and enough != asked else [enough]


def judge(
    model: Candidate, choice: Choice, floor: int = FLOOR, tensor: int | None = None
) -> Verdict:
    """Judge GPUs for one engine.

    ``tensor`` of them share every layer; None: as many as in a start.
    """
    if not model.snapshot.weights:
        return Verdict(choice, Fit.UNKNOWN, NO_WEIGHTS)
    tensor = tensor or model.tensor(choice.count)
    if (needed := model.gpus(tensor)) > choice.count:
        return Verdict(choice, Fit.NO, f"the settings divide it among {needed} GPUs")
    gpu = None if choice.here else choice.gpu
    try:
        plan, whole = model.plan(tensor, gpu), model.plan(1, gpu)
    except MachineUnfit as error:
        return Verdict(choice, Fit.UNKNOWN, f"{UNBUILT}: {error.message}")
    except StartFailed as error:
        return Verdict(choice, Fit.NO, error.message)
    # The configuration of a GPU that is here has been checked by vLLM.
    types = () if choice.here else choice.types
    if old := [kind.name for kind in types if kind.capability < plan.capability]:
        least = f"{plan.capability // 10}.{plan.capability % 10}"
        method = plan.config.model_config.quantization
        why = f"{method} needs compute capability {least}: not {', '.join(old)}"
        return Verdict(choice, Fit.NO, why)
    part = plan.parameters / (whole.parameters or 1) / model.pipeline
    offloaded = float(model.arguments.cpu_offload_gb) * GIB
    held = Range(*(max(size * part - offloaded, 0) for size in weights(model, whole)))
    return _fitted(model, choice, plan, held, floor)


def _fitted(model: Candidate, choice: Choice, plan: CachePlan, held: Range, floor: int) -> Verdict:
    """Judge GPUs each of which holds so many bytes of weights."""
    arguments = model.arguments
    settled = arguments.kv_cache_memory_bytes
    budget = choice.gpu.memory * (1 if settled else arguments.gpu_memory_utilization)
    graphs = 0 if arguments.enforce_eager else GRAPHS_RESERVE
    reserve = EAGER_RESERVE + graphs + plan.adapters
    least, wanted = contexts(model, plan, floor)

    def verdict(weights: float, tolerance: float = 1) -> Verdict:
        room = budget * tolerance - weights - reserve
        cache = settled or room
        why = (
            f"weights {readable_size(weights)} + about {readable_size(reserve)} set aside "
            f"in {readable_size(budget)}"
        )
        if cache > room or room <= 0:
            return Verdict(choice, Fit.NO, why)
        fitted = plan.fitted(cache * model.pipeline, wanted)
        why += f", {readable_size(cache)} for the cache"
        if plan.token_bytes:
            why += f" ({plan.token_bytes:.0f} bytes a token)"
        if fitted.context < least:
            why += f", where {fitted.context} tokens would fit"
            return Verdict(choice, Fit.NO, why, fitted.context)
        fit = Fit.FITS if fitted.context >= wanted else Fit.SHORTER
        return Verdict(choice, fit, why, fitted.context, fitted.texts)

    sure = verdict(held.high)
    if sure.fit is not Fit.NO:
        return sure
    # What is set aside is an estimate, and so is what weights take that are quantized on loading.
    possible = held.low <= budget
    if plan.specs:
        possible = verdict(held.low, TOO_MUCH).fit is not Fit.NO
    doubt = f"{sure.why}: too close to tell"
    return replace(sure, fit=Fit.DOUBTFUL, why=doubt) if possible else sure


def contexts(model: Candidate, plan: CachePlan, floor: int) -> tuple[int, int]:
    """Return the tokens of the shortest and of the longest context that a start would have."""
    asked = model.arguments.max_model_len
    wanted = plan.length if asked in (None, -1) else int(asked)
    if asked != -1:
        return wanted, wanted
    # vLLM takes the longest context that fits; MIN_MODEL_LEN is the main engine's.
    return min(1 if model.engine.prefix else floor, wanted), wanted


def weights(model: Candidate, plan: CachePlan) -> Range:
    """Estimate the bytes of a model's weights, loaded, by the plan of the whole of it."""
    if (tensors := model.snapshot.tensors) is not None:
        floats = sum(count for name, count in tensors.items() if name in _FLOATS)
        others = tensors.keys() - _FLOATS
        rest = sum(tensors[name] * _BYTES.get(name, 1) for name in others)
    elif model.quantization:
        floats, rest = 0, model.snapshot.weights_size
    else:
        floats, rest = plan.parameters, 0
    loaded = floats * plan.element_bytes + rest
    target = "" if model.quantization else model.arguments.quantization or ""
    # Not everything is quantised, and nothing to less than four bits.
    element = (1.0 if "8" in target else 0.5) if target else plan.element_bytes
    # Experts may be divided among all replicas.
    arguments = model.arguments
    parts = arguments.data_parallel_size if arguments.enable_expert_parallel else 1
    return Range(min(loaded, floats * element + rest) / parts, loaded)
