"""Whether a model fits: its text into its own limits, its weights and its cache into memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from worker.doctor import memory
from worker.doctor.cache import held
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level
from worker.doctor.memory import FITS, GIB, TOO_MUCH, Demand, Range, Split, readable_size
from worker.engine.machine import Machine
from worker.engine.start.fitting import BLOCKS, FLOOR
from worker.settings import Settings

# Tokens that a proposed context is rounded down to a multiple of.
_ROUND = 1024
# GPUs that platforms offer in one machine, at most.
_MOST_GPUS = 8

CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_OWN_MEMORY = "this machine's memory"
_NO_LENGTH = "vLLM's, since the model has none"


@dataclass(frozen=True)
class Room:
    """The bytes that one engine may use of one GPU, or of the machine's own memory.

    Attributes:
        budget: all of them.
        name: what they are a part of, for messages.
        cache: what is set aside for the cache, if that is settled; otherwise the cache gets what
            the budget leaves.
        share: of a GPU's memory, where it is one.
        most: what a part that is set aside may be enlarged to.
    """

    budget: float
    name: str
    cache: float | None = None
    share: float | None = None
    most: float = 0


def context(model: Candidate, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check MAX_MODEL_LEN against the lengths that vLLM accepts for the model."""
    if (own := model.shape) is None:
        return
    asked, name = model.arguments.max_model_len, f"{model.prefix}MAX_MODEL_LEN"
    if asked in (None, -1):
        source = f"the model's own ({own.length_key})" if own.length_key else _NO_LENGTH
        how = "at most " if asked == -1 else ""
        yield Finding(Level.OK, "context", f"{how}{own.length} tokens, {source}")
    elif own.longest and asked > own.longest:
        text = f"{name}={asked} is more than the model takes: {own.length_key} is {own.longest}"
        # The values that vLLM takes for true.
        allowed = environ.get(ALLOW_LONG, "").strip().lower() in ("1", "true")
        # What an embedder takes also depends on files besides config.json.
        level = Level.WARN if allowed or model.pools else Level.FAIL
        yield Finding(level, "context", text, f"set {name}={own.longest}, or leave it unset")
    else:
        yield Finding(Level.OK, "context", f"{asked} of the model's {own.longest or 'any'} tokens")


def parallel(model: Candidate, machine: Machine) -> Iterator[Finding]:
    """Check that the model's heads can be divided as asked, and that there is a GPU at all.

    Whether there are enough GPUs is checked with the settings.
    """
    tensor, prefix = model.split.tensor, model.prefix
    if model.shape and model.shape.heads % tensor:
        heads = model.shape.heads
        text = f"{prefix}TENSOR_PARALLEL_SIZE={tensor} does not divide {heads} heads"
        sizes = ", ".join(map(str, _divisors(heads)))
        yield Finding(Level.FAIL, "parallel", text, f"set it to one of {sizes}")
    if not machine.cpu and not machine.gpus:
        text = "this machine has no GPU, and the installed vLLM needs one"
        yield Finding(Level.FAIL, "parallel", text, "check on a machine like the worker's")


def fits(
    model: Candidate, machine: Machine, environ: Mapping[str, str], own: int
) -> Iterator[Finding]:
    """Check that weights and cache fit into the memory.

    Args:
        model: the engine.
        machine: where it is to run.
        environ: the variables that are set.
        own: bytes of the machine's memory.
    """
    if (room := _room(model, machine, environ, own)) is None:
        return
    if not model.snapshot.weights:
        text = "how large the model's weights are is not known"
        yield Finding(Level.UNKNOWN, "memory", text)
        return
    token = model.token(model.split)
    least = least_context(model, environ)
    demand = Demand(
        # Without GPUs all parts of a model share the machine's memory.
        weights=model.whole_weights if machine.cpu else model.weights,
        token=token or Range(0, None),
        reserve=0 if machine.cpu else reserve(model),
        offloaded=0 if machine.cpu else int(model.arguments.cpu_offload_gb * GIB),
    )
    if room.cache is None:
        yield _verdict(model, demand, room, "memory", least)
        return
    settled = replace(demand, token=Range(0, 0), reserve=demand.reserve + int(room.cache))
    yield _verdict(model, settled, room, "memory", least)
    only_cache = Demand(Range(0, 0), demand.token)
    name = f"{CPU_SPACE}={room.cache / GIB:g}" if machine.cpu else "KV_CACHE_MEMORY_BYTES"
    most = room.budget * FITS - (demand.weights.high or demand.weights.low)
    of_cache = Room(room.cache, name, most=most)
    calculated = _calculated(model, only_cache, of_cache, least) if machine.cpu else None
    yield calculated or _verdict(model, only_cache, of_cache, "cache", least)


def _room(model: Candidate, machine: Machine, environ: Mapping[str, str], own: int) -> Room | None:
    """Return the memory for one engine; None if there are too few GPUs for it."""
    if machine.cpu:
        return Room(own, _OWN_MEMORY, _space(environ) or None)
    used = machine.gpus[: model.split.gpus]
    if len(used) < model.split.gpus:
        return None
    smallest = min(used, key=lambda gpu: gpu.memory)
    share, cache = model.arguments.gpu_memory_utilization, model.arguments.kv_cache_memory_bytes
    share = 1 if cache else share
    name = f"{share:g} of {smallest.name}, {smallest.memory / GIB:.1f} GiB"
    return Room(smallest.memory * share, name, cache or None, share)


def _space(environ: Mapping[str, str]) -> int:
    """Return the bytes of each engine's cache in the machine's own memory; 0 if left open."""
    # The settings' check made sure that it is a number.
    return int(environ.get(CPU_SPACE, "").strip() or 0) * GIB


def together(
    models: Sequence[Candidate], machine: Machine, environ: Mapping[str, str], own: int
) -> Iterator[Finding]:
    """Check that several engines fit into the machine's own memory, each with its own cache.

    How they share a GPU is checked with the settings.
    """
    space = _space(environ)
    if not machine.cpu or len(models) < 2 or not space:
        return
    weights = [model.whole_weights for model in models]
    low = sum(whole.low for whole in weights)
    high = sum(whole.high or whole.low for whole in weights)
    # An engine that only encodes has no cache.
    certain = sum(not model.pools for model in models) * space
    needed = Range(low + certain, high + len(models) * space)
    text = (
        f"weights {readable_size(low)} + {len(models)} caches of {readable_size(space)} "
        f"in {readable_size(own)} ({_OWN_MEMORY})"
    )
    if needed.high is None or needed.high <= own * FITS:
        yield Finding(Level.OK, "memory together", text)
        return
    level = Level.FAIL if needed.low > own * TOO_MUCH else Level.WARN
    smaller = int((own * FITS - high) / len(models) // GIB)
    change = f"set {CPU_SPACE}={smaller}" if smaller > 0 else "take smaller models, or only one"
    yield Finding(level, "memory together", text, change)


def reserve(model: Candidate) -> int:
    """Return the bytes of a GPU that are neither weights nor cache, roughly."""
    graphs = 0 if model.arguments.enforce_eager else memory.GRAPHS_RESERVE
    return memory.EAGER_RESERVE + graphs


def least_context(model: Candidate, environ: Mapping[str, str]) -> int:
    """Return the tokens of the shortest context that the engine would be started with."""
    if model.arguments.max_model_len != -1:
        return model.context
    # vLLM takes the longest context that fits.
    if model.prefix:
        return memory.BLOCK
    # The settings' check made sure that it is a number.
    floor = int(environ.get(FLOOR, "").strip() or Settings.model_fields["min_model_len"].default)
    return min(floor, model.context) if model.context else floor


def _calculated(model: Candidate, demand: Demand, room: Room, least: int) -> Finding | None:
    """Return what vLLM makes of a cache of known size; None if that is not known."""
    if (found := held(model, room.budget, least)) is None:
        return None
    if found.unbuilt:
        return Finding(Level.FAIL, "model", found.unbuilt)
    if found.refusal:
        blocks = BLOCKS in model.engine.given
        change = (
            f"leave {model.engine.setting(BLOCKS)} unset"
            if blocks
            else _change(model, demand, room, least)
        )
        return Finding(Level.FAIL, "cache", found.refusal, change)
    if found.shorter:
        return Finding(Level.WARN, "cache", found.shorter)
    return Finding(Level.OK, "cache", _sum(demand, room, found.context))


def _verdict(model: Candidate, demand: Demand, room: Room, topic: str, context: int) -> Finding:
    """Return whether a demand fits with a context, and what to change if it does not."""
    needed = demand.total(context)
    text = _sum(demand, room, context) + _longest(model, demand, room)
    if needed.low > room.budget * TOO_MUCH:
        return Finding(Level.FAIL, topic, text, _change(model, demand, room, context))
    if needed.high is None:
        return Finding(Level.UNKNOWN, topic, f"{text}; what a token takes is not known")
    if needed.high > room.budget * FITS:
        doubt = "too close to tell" if demand.token.exact else "at most, maybe less"
        change = _change(model, demand, room, context)
        return Finding(Level.WARN, topic, f"{text}: {doubt}", change)
    return Finding(Level.OK, topic, text)


def _sum(demand: Demand, room: Room, context: int) -> str:
    """Write what is needed, part by part, and what there is."""
    parts = []
    if demand.weights.high != 0:
        about = "" if demand.weights.exact else "at least "
        size = readable_size(max(0, demand.weights.low - demand.offloaded))
        parts.append(f"weights {about}{size}")
    if demand.token.high:
        about, token = "" if demand.token.exact else "at most ", demand.token.high
        size = readable_size(token * context)
        parts.append(f"cache {about}{size} for {context} tokens ({token:.0f} bytes each)")
    elif demand.token.high is None:
        parts.append("a cache")
    if demand.reserve:
        parts.append(f"about {readable_size(demand.reserve)} set aside")
    return f"{' + '.join(parts)} in {readable_size(room.budget)} ({room.name})"


def _longest(model: Candidate, demand: Demand, room: Room) -> str:
    """Write how long a text would fit, if the model takes a longer one."""
    longest, most = demand.longest(room.budget), model.shape and model.shape.longest
    shorter = longest and (not most or longest < most)
    return f"; {longest} tokens would fit" if shorter else ""


def _change(model: Candidate, demand: Demand, room: Room, context: int) -> str:
    """Write the changes, any one of which would be enough."""
    changes = []
    prefix, longest = model.prefix, demand.longest(room.budget) or 0
    if demand.token.high and longest >= _ROUND:
        shorter = min(longest // _ROUND * _ROUND, context)
        changes.append(f"set {prefix}MAX_MODEL_LEN={shorter}")
    needed = demand.total(context)
    most = needed.low if needed.high is None else needed.high
    if room.share is not None:
        if tensor := _tensor(model, demand, room, context):
            changes.append(f"set {prefix}TENSOR_PARALLEL_SIZE={tensor} (with as many GPUs)")
        if card := memory.card_for(most / FITS, room.share):
            changes.append(f"take a GPU with {card} GB")
    elif space := _other_space(room, most):
        changes.append(f"set {CPU_SPACE}={space}")
    return ", or ".join(changes) or "take a smaller model, or one that is quantised"


def _other_space(room: Room, most: float) -> int:
    """Return the whole GiB of a CPU's cache with which ``most`` bytes would fit; 0 if none."""
    if room.cache is not None:
        return max(0, int((room.budget * FITS - (most - room.cache)) // GIB))
    space = -int(-most / FITS // GIB) if room.name.startswith(CPU_SPACE) else 0
    # Never more than the machine has beside the weights.
    return space if space * GIB <= room.most else 0


def _tensor(model: Candidate, demand: Demand, room: Room, context: int) -> int | None:
    """Return the smallest number of GPUs a layer on which the model fits; None if none is known."""
    for tensor in _divisors(model.shape.heads) if model.shape else ():
        split = Split(tensor, model.split.pipeline)
        if (token := model.token(split)) is None:
            return None
        part = model.split.tensor / tensor
        shared = Range(demand.weights.low * part, (demand.weights.high or 0) * part)
        needed = replace(demand, weights=shared, token=token).total(context)
        if needed.high is not None and needed.high <= room.budget * FITS:
            return tensor
    return None


def _divisors(heads: int) -> list[int]:
    return [size for size in range(1, _MOST_GPUS + 1) if heads % size == 0]
