"""Whether GPUs hold a worker's models: weights, reserve, and a cache as vLLM makes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from worker.doctor import fit
from worker.doctor.candidate import Candidate
from worker.doctor.gpus.asked import Choice
from worker.doctor.gpus.verdicts import Fit, Verdict
from worker.doctor.memory import GIB, TOO_MUCH, Split, readable_size
from worker.engine.cache_plan import CachePlan, batch_defaults
from worker.engine.machine import Gpu
from worker.engine.options.automatic import fitting_tensor_parallel_size
from worker.errors import MachineUnfit, StartFailed

# GPUs of one machine that are tried where fewer don't do.
_COUNTS = (1, 2, 4, 8)
# The worst first.
_BAD = (Fit.NO, Fit.UNKNOWN, Fit.DOUBTFUL)


@dataclass
class Judge:
    """Judges GPUs for the engines of one worker.

    Builds each model once for each way to share it, and for GPUs on which batches are alike.

    Attributes:
        models: of the engines; the first is the one whose texts are told.
        environ: the variables that are set.
    """

    models: Sequence[Candidate]
    environ: Mapping[str, str] = field(default_factory=dict)
    _plans: dict[tuple[int, int, tuple[int, int]], CachePlan | StartFailed] = field(
        default_factory=dict
    )

    def verdict(self, choice: Choice) -> Verdict:
        """Judge GPUs, by the engine that fares worst."""
        found = [self._of(number, choice) for number in range(len(self.models))]
        worst = (one for bad in _BAD for one in found if one.fit is bad)
        return next(worst, found[0])

    def verdicts(self, choice: Choice) -> list[Verdict]:
        """Judge GPUs of a kind, and several of them where fewer don't hold the whole context.

        Returns the verdict on those that were asked for, and on the fewest that hold it. One that
        they don't hold the model at all is left out if more of them do.
        """
        asked = self.verdict(choice)
        if asked.fit in (Fit.FITS, Fit.UNKNOWN) or self._divided:
            return [asked]
        more = (Choice(choice.name, choice.types, count) for count in _COUNTS)
        others = (self.verdict(one) for one in more if one.count > choice.count)
        enough = [next((one for one in others if one.fit is Fit.FITS), asked)]
        return [asked, *enough] if asked.fit is not Fit.NO and enough != [asked] else enough

    @property
    def _divided(self) -> bool:
        """Whether the operator has said how the model is divided."""
        return "TENSOR_PARALLEL_SIZE" in self.models[0].engine.given

    def _of(self, number: int, choice: Choice) -> Verdict:
        model = self.models[number]
        if not model.snapshot.weights:
            why = "how large the model's weights are is not known"
            return Verdict(choice, Fit.UNKNOWN, 0, 0.0, why)
        # An embedder runs on one GPU.
        split = Split() if number else _split(model, choice.count)
        if (needed := split.gpus * (1 if number else _replicas(model))) > choice.count:
            return Verdict(choice, Fit.NO, 0, 0.0, f"the settings divide it among {needed} GPUs")
        try:
            plan, whole = (self._plan(number, size, choice.gpu) for size in (split.tensor, 1))
        except MachineUnfit as error:
            why = f"vLLM can't build the model without a GPU: {error.message}"
            return Verdict(choice, Fit.UNKNOWN, 0, 0.0, why)
        except StartFailed as error:
            return Verdict(choice, Fit.NO, 0, 0.0, error.message)
        if old := [kind.name for kind in choice.types if kind.capability < plan.capability]:
            least = f"{plan.capability // 10}.{plan.capability % 10}"
            why = f"{plan.quantization} needs compute capability {least}: not {', '.join(old)}"
            return Verdict(choice, Fit.NO, 0, 0.0, why)
        part = plan.parameters / (whole.parameters or 1) / split.pipeline
        return _fitted(model, choice, plan, part, fit.least_context(model, self.environ))

    def _plan(self, number: int, tensor: int, gpu: Gpu) -> CachePlan:
        """Return a model's plan.

        Raises:
            StartFailed: there is none.
        """
        key = number, tensor, batch_defaults(gpu)
        if key not in self._plans:
            try:
                self._plans[key] = self.models[number].plan(tensor, gpu)
            except StartFailed as error:
                self._plans[key] = error
        plan = self._plans[key]
        if isinstance(plan, StartFailed):
            raise plan
        return plan


def _split(model: Candidate, gpus: int) -> Split:
    """Return how a start divides a model among GPUs: as the settings say, or as its heads allow."""
    pipeline = int(model.arguments.pipeline_parallel_size)
    if "TENSOR_PARALLEL_SIZE" in model.engine.given:
        return Split(int(model.arguments.tensor_parallel_size), pipeline)
    tensor = max(1, gpus // (pipeline * _replicas(model)))
    heads = model.shape.heads if model.shape else 0
    return Split(fitting_tensor_parallel_size(tensor, heads), pipeline)


def _replicas(model: Candidate) -> int:
    """Return how many engines have the same weights, each on GPUs of its own."""
    return int(model.arguments.data_parallel_size)


def _fitted(model: Candidate, choice: Choice, plan: CachePlan, part: float, least: int) -> Verdict:
    """Judge GPUs each of which holds a part of the weights, by the context that is left."""
    weights = model.whole_weights
    demand = _Demand(model, plan, part, least)
    sure = demand.verdict(choice, weights.high or weights.low)
    if sure.fit is not Fit.NO:
        return sure
    # What is set aside is an estimate, and so is what quantized weights take.
    held = demand.held(weights.low)
    if not plan.specs:
        possible = held <= demand.budget(choice)
    else:
        possible = demand.verdict(choice, weights.low, TOO_MUCH).fit is not Fit.NO
    return (
        replace(sure, fit=Fit.DOUBTFUL, why=f"{sure.why}: too close to tell") if possible else sure
    )


@dataclass(frozen=True)
class _Demand:
    """What one of a model's GPUs must hold.

    Attributes:
        model: the engine.
        plan: its cache.
        part: share of the weights.
        least: tokens of the shortest context that it would be started with.
    """

    model: Candidate
    plan: CachePlan
    part: float
    least: int

    def held(self, weights: float) -> float:
        """Return the bytes of the weights that the GPU holds, of all."""
        offloaded = float(self.model.arguments.cpu_offload_gb) * GIB
        return max(weights * self.part - offloaded, 0)

    def budget(self, choice: Choice) -> float:
        """Return the bytes of a GPU that the engine may use."""
        arguments = self.model.arguments
        share = 1 if arguments.kv_cache_memory_bytes else arguments.gpu_memory_utilization
        return float(choice.gpu.memory * share)

    def verdict(self, choice: Choice, weights: float, tolerance: float = 1) -> Verdict:
        """Judge by so many bytes of weights, on GPUs that may be so many times as large."""
        arguments, plan = self.model.arguments, self.plan
        held, budget = self.held(weights), self.budget(choice)
        reserve = fit.reserve(self.model) + plan.adapters
        room = budget * tolerance - held - reserve
        cache = arguments.kv_cache_memory_bytes or room
        sum_ = (
            f"weights {readable_size(held)} + about {readable_size(reserve)} set aside "
            f"in {readable_size(budget)}"
        )
        if cache > room or room <= 0:
            return Verdict(choice, Fit.NO, 0, 0.0, sum_)
        asked = arguments.max_model_len
        wanted = plan.length if asked in (None, -1) else int(asked)
        fitted = plan.fitted(cache * int(arguments.pipeline_parallel_size), wanted)
        left = f"{sum_}, {readable_size(cache)} for the cache"
        if plan.token_bytes:
            left += f" ({plan.token_bytes:.0f} bytes a token)"
        if fitted.context >= wanted:
            return Verdict(choice, Fit.FITS, fitted.context, fitted.texts, left)
        if fitted.context >= min(wanted, self.least):
            return Verdict(choice, Fit.SHORTER, fitted.context, fitted.texts, left)
        return Verdict(choice, Fit.NO, 0, 0.0, f"{left}, where {fitted.context} tokens would fit")
