"""Whether a model fits: its text into its own limits, its weights and its cache into memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from worker.doctor import memory, shape
from worker.doctor.findings import Finding, Level
from worker.doctor.memory import FITS, GIB, TOO_MUCH, Demand, Range, Split
from worker.doctor.model import Model
from worker.engine.machine import Machine

# A context that is proposed is rounded down to a multiple of this, tokens.
_ROUND = 1024
# GPUs that platforms offer in one machine.
_MOST_GPUS = 8

CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"
ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_OWN_MEMORY = "this machine's memory"


@dataclass(frozen=True)
class Room:
    """What there is for one engine on one GPU, or in the machine's own memory.

    ``cache`` is what is set aside for the cache, if that is settled; else the cache gets what is
    left of the ``budget``. ``share`` is of a card. ``told`` names the budget.
    """

    budget: float
    told: str
    cache: float | None = None
    share: float | None = None


def context(model: Model, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Hold MAX_MODEL_LEN to what the model takes, as vLLM does."""
    asked, own = model.arguments.max_model_len, shape.length(model.config)
    name = f"{model.prefix}MAX_MODEL_LEN"
    if not model.config:
        return
    if asked in (None, -1):
        of = f"the model's own ({own.key})" if own.key else "vLLM's, since the model has none"
        how = "at most " if asked == -1 else ""
        yield Finding(Level.OK, "context", f"{how}{own.default} tokens, {of}")
    elif own.key and asked > own.most:
        told = f"{name}={asked} is more than the model takes: {own.key} is {own.most}"
        # vLLM reads it so, in fewer words than the worker's own settings.
        allowed = environ.get(ALLOW_LONG, "").strip().lower() in ("1", "true")
        # What an embedder takes also depends on files beside config.json.
        level = Level.WARN if allowed or model.pools else Level.FAIL
        yield Finding(level, "context", told, f"set {name}={own.most}, or leave it unset")
    else:
        yield Finding(Level.OK, "context", f"{asked} of the model's {own.most or 'any'} tokens")


def parallel(model: Model, machine: Machine) -> Iterator[Finding]:
    """Look whether the model can be divided as it is asked, and whether there is a GPU at all.

    Whether there are enough is a matter of the settings, and told with those.
    """
    tensor, prefix = model.split.tensor, model.prefix
    attention = shape.attention(model.config)
    if attention and attention.heads % tensor:
        told = f"{prefix}TENSOR_PARALLEL_SIZE={tensor} does not divide {attention.heads} heads"
        sizes = ", ".join(str(each) for each in _divisors(attention.heads))
        yield Finding(Level.FAIL, "parallel", told, f"set it to one of {sizes}")
    if not machine.cpu and not machine.gpus:
        told = "this machine has no GPU, and the installed vLLM needs one"
        yield Finding(Level.FAIL, "parallel", told, "check on a machine like the worker's")


def fits(model: Model, machine: Machine, environ: Mapping[str, str], own: int) -> Iterator[Finding]:
    """Hold weights and cache to the memory that there is.

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
    demand = Demand(
        weights=model.weights,
        token=token or Range(0, None),
        reserve=0 if machine.cpu else _reserve(model),
        offloaded=0 if machine.cpu else int(model.arguments.cpu_offload_gb * GIB),
    )
    if room.cache is None:
        yield _verdict(model, demand, room, "memory")
        return
    settled = replace(demand, token=Range(0, 0), reserve=demand.reserve + int(room.cache))
    yield _verdict(model, settled, room, "memory")
    only_cache = Demand(Range(0, 0), demand.token)
    told = f"{CPU_SPACE}={room.cache / GIB:g}" if machine.cpu else "KV_CACHE_MEMORY_BYTES"
    yield _verdict(model, only_cache, Room(room.cache, told), "cache")


def _room(model: Model, machine: Machine, environ: Mapping[str, str], own: int) -> Room | None:
    """Say what there is; None, if there is not even the machine for it."""
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
    """Return the bytes of each engine's cache in the machine's own memory; 0 if that is open."""
    # That it is a number was looked at with the settings.
    return int(environ.get(CPU_SPACE, "").strip() or 0) * GIB


def together(
    models: Sequence[Model], machine: Machine, environ: Mapping[str, str], own: int
) -> Iterator[Finding]:
    """Hold several engines to the machine's own memory, where each has a cache beside the other's.

    How they share a GPU is a matter of the settings, and told with those.
    """
    space = _space(environ)
    if not machine.cpu or len(models) < 2 or not space:
        return
    low = sum(model.weights.low for model in models)
    high = sum(model.weights.high or model.weights.low for model in models)
    # One that only encodes keeps nothing.
    certain = sum(not model.pools for model in models) * space
    needed = Range(low + certain, high + len(models) * space)
    text = (
        f"weights {memory.written(low)} + {len(models)} caches of {memory.written(space)} "
        f"in {memory.written(own)} ({_OWN_MEMORY})"
    )
    if needed.high is None or needed.high <= own * FITS:
        yield Finding(Level.OK, "memory together", text)
        return
    level = Level.FAIL if needed.low > own * TOO_MUCH else Level.WARN
    each = int((own * FITS - high) / len(models) // GIB)
    change = f"set {CPU_SPACE}={each}" if each > 0 else "take smaller models, or only one"
    yield Finding(level, "memory together", text, change)


def _reserve(model: Model) -> int:
    graphs = 0 if model.arguments.enforce_eager else memory.GRAPHS_RESERVE
    return memory.EAGER_RESERVE + graphs


def _verdict(model: Model, demand: Demand, room: Room, topic: str) -> Finding:
    """Say whether a demand fits, and what to change if it does not."""
    automatic = model.arguments.max_model_len == -1
    # vLLM then takes the longest text that fits.
    context = memory.BLOCK if automatic else model.context
    needed = demand.total(context)
    told = _told(demand, room, context, _longest(model, demand, room))
    if needed.low > room.budget * TOO_MUCH:
        return Finding(Level.FAIL, topic, told, _change(model, demand, room, context))
    if needed.high is None:
        return Finding(Level.UNKNOWN, topic, f"{told}; what a token takes is not known")
    if needed.high > room.budget * FITS:
        text = (
            f"{told}: too close to tell" if demand.token.exact else f"{told}: at most, maybe less"
        )
        return Finding(Level.WARN, topic, text, _change(model, demand, room, context))
    return Finding(Level.OK, topic, told)


def _longest(model: Model, demand: Demand, room: Room) -> int | None:
    """Return the longest text for which there is room, if the model takes a longer one."""
    longest, most = demand.longest(room.budget), shape.length(model.config).most
    return longest if longest and (longest < most or not most) else None


def _told(demand: Demand, room: Room, context: int, longest: int | None) -> str:
    parts = []
    if demand.weights.high != 0:
        about = "" if demand.weights.exact else "at least "
        parts.append(
            f"weights {about}{memory.written(max(0, demand.weights.low - demand.offloaded))}"
        )
    if demand.token.high != 0:
        each = demand.token.high or demand.token.low
        about = "" if demand.token.exact else "at most "
        cache = (
            f"{about}{memory.written(each * context)} for {context} tokens ({each:.0f} bytes each)"
        )
        parts.append(f"cache {cache}" if demand.token.high else "a cache")
    if demand.reserve:
        parts.append(f"about {memory.written(demand.reserve)} set aside")
    fitting = f"; {longest} tokens would fit" if longest else ""
    return f"{' + '.join(parts)} in {memory.written(room.budget)} ({room.told}){fitting}"


def _change(model: Model, demand: Demand, room: Room, context: int) -> str:
    """Name the changes of which each one alone would do."""
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
    elif room.cache is not None:
        smaller = int((room.budget * FITS - (most - room.cache)) // GIB)
        if smaller > 0:
            changes.append(f"set {CPU_SPACE}={smaller}")
    elif room.told.startswith(CPU_SPACE):
        changes.append(f"set {CPU_SPACE}={-int(-most / FITS // GIB)}")
    return ", or ".join(changes) or "take a smaller model, or one that is quantised"


def _tensor(model: Model, demand: Demand, room: Room, context: int) -> int | None:
    """Find the least number of GPUs a layer on which the model fits."""
    attention = shape.attention(model.config)
    for tensor in _divisors(attention.heads) if attention else ():
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
    return [each for each in range(1, _MOST_GPUS + 1) if heads % each == 0]
