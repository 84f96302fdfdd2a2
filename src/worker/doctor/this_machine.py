"""Whether models fit into the memory of this machine, and what to change if they do not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import ValidationError

from worker.doctor.candidate import Candidate
from worker.doctor.findings import HELD, Finding, Level, Verdict, finding, readable_size
from worker.doctor.gpus.asked import Choice
from worker.doctor.gpus.pools import POOLS, GpuType
from worker.doctor.memory import NO_WEIGHTS, UNBUILT, contexts, judge, weights
from worker.engine.cache_plan import CachePlan
from worker.engine.machine import Machine
from worker.engine.options.automatic import CPU_EXPORTS
from worker.engine.start import fitting
from worker.engine.start.fitting import BLOCKS, CPU_SPACE
from worker.engine.start.refusals import words
from worker.errors import MachineUnfit, StartFailed
from worker.process.estimates import FITS, GIB, TOO_MUCH
from worker.settings.environment import process_environ

# GPUs that platforms offer in one machine, at most.
_MOST_GPUS = 8
# Tokens that a proposed context is rounded down to a multiple of.
_ROUND = 1024
# Characters of a refusal: vLLM's has advice that goes on.
_MOST = 300
_SMALLER = "take a smaller model, or one that is quantised"


def check(models: Sequence[Candidate], machine: Machine, floor: int, own: int) -> Iterator[Finding]:
    """Check that weights and caches fit into the memory.

    How many GPUs there are, and how several engines share one, is checked with the settings.
    ``floor`` is MIN_MODEL_LEN, and ``own`` the bytes of the machine's own memory.
    """
    if not machine.cpu and not machine.gpus:
        text = "this machine has no GPU, and the installed vLLM needs one"
        yield Finding(Level.FAIL, "parallel", text, "check on a machine like the worker's")
        return
    known = True
    for model in models:
        if unknown := _unknown(model, machine):
            known, findings = False, [unknown]
        elif machine.cpu:
            findings = [_own_memory("memory", [model], own), _cache(model, floor, own)]
        else:
            findings = [_on_gpus(model, machine, floor)]
        yield from (finding.of_engine(model.engine.prefix) for finding in findings)
    if machine.cpu and known and len(models) > 1:
        yield _own_memory("memory together", models, own)


def _unknown(model: Candidate, machine: Machine) -> Finding | None:
    """Return why it is not known what a model takes; None if it is."""
    if not model.snapshot.weights:
        return Finding(Level.UNKNOWN, "memory", NO_WEIGHTS)
    try:
        model.plan(model.tensor(len(machine.gpus)))
        model.plan()
    except MachineUnfit as error:
        return Finding(Level.UNKNOWN, "memory", f"{UNBUILT}: {error.message}")
    except StartFailed as error:
        # An unknown architecture and an invalid configuration have findings of their own.
        reported = model.shape is None or isinstance(error.__cause__, ValidationError)
        if model.local and not reported and isinstance(error.__cause__, LookupError | ValueError):
            # The start builds the same layers, but with memory behind them.
            return Finding(Level.FAIL, "model", error.message)
        why = "" if reported else f": {error.message}"
        text = f"how much memory the model takes is not known{why}"
        return Finding(Level.UNKNOWN, "memory", text)
    return None


def _on_gpus(model: Candidate, machine: Machine, floor: int) -> Finding:
    tensor = model.tensor(len(machine.gpus))
    used = machine.gpus[: model.gpus(tensor)]
    smallest = min(used, key=lambda gpu: gpu.memory)
    kind = GpuType(smallest.name, smallest.name, smallest.memory / GIB, smallest.capability)
    here = Choice(smallest.name, (kind,), len(used), here=True)
    verdict = judge(model, here, floor, tensor)
    change = "" if verdict.fit in HELD else _ways_on_gpus(model, verdict, tensor, floor)
    return finding(verdict, change)


def _ways_on_gpus(model: Candidate, verdict: Verdict, tensor: int, floor: int) -> str:
    """Return changes, any one of which would be enough."""
    changes, here = [], verdict.choice
    if shorter := verdict.context // _ROUND * _ROUND:
        changes.append(f"set {model.engine.prefix}MAX_MODEL_LEN={shorter}")
    heads = model.shape.heads if model.shape else 1
    for more in range(tensor + 1, _MOST_GPUS + 1):
        several = replace(here, count=model.gpus(more))
        if heads % more == 0 and judge(model, several, floor, more).fit in HELD:
            name = f"{model.engine.prefix}TENSOR_PARALLEL_SIZE={more}"
            changes.append(f"set {name} (with as many GPUs)")
            break
    for pool in POOLS:
        if judge(model, replace(here, types=pool.types), floor, tensor).fit in HELD:
            changes.append(f"take a GPU with {pool.gb} GB")
            break
    return ", or ".join(changes) or _SMALLER


def _own_memory(topic: str, models: Sequence[Candidate], own: int) -> Finding:
    """Check that weights and caches fit into so many bytes of the machine's own memory."""
    low, high = map(sum, zip(*(weights(model, model.plan()) for model in models), strict=True))
    # What keeps nothing of a text has no cache.
    space, caches = _space(), sum(bool(model.plan().specs) for model in models)
    text = f"weights {'at least ' * (low < high)}{readable_size(low)}"
    if caches:
        count = "a cache" if caches == 1 else f"{caches} caches"
        text += f" + {count} of {readable_size(space)}"
    text += f" in {readable_size(own)} (this machine's memory)"
    if high + caches * space <= own * FITS:
        return Finding(Level.OK, topic, text)
    smaller = int((own * FITS - high) / caches // GIB) if caches else 0
    others = _SMALLER if len(models) == 1 else "take smaller models, or only one"
    change = f"set {CPU_SPACE}={smaller}" if smaller > 0 else others
    if low + caches * space > own * TOO_MUCH:
        return Finding(Level.FAIL, topic, text, change)
    return Finding(Level.WARN, topic, f"{text}: too close to tell", change)


def _cache(model: Candidate, floor: int, own: int) -> Finding:
    """Check what a CPU's cache holds of the model's texts, in the words of a start."""
    plan, space = model.plan(model.tensor()), _space()
    if not plan.specs:
        return Finding(Level.OK, "cache", "nothing is kept of a text")
    asked = model.arguments.max_model_len
    asked = None if asked == -1 else asked
    shorter = None
    try:
        context = plan.context(space, asked)
        if asked is None:
            with plan.served_with(context):
                shorter = fitting.told(model.engine, plan.config, plan.length, floor)
    except (ValueError, StartFailed) as error:
        most = own * FITS - weights(model, model.plan()).high
        change = _ways_on_cpu(model, plan, floor, most)
        return Finding(Level.FAIL, "cache", words(error, _MOST), change)
    if shorter:
        return Finding(Level.WARN, "cache", shorter)
    text = (
        f"cache {readable_size(plan.text_bytes(context))} for {context} tokens "
        f"({plan.token_bytes:.0f} bytes each) in {readable_size(space)} "
        f"({CPU_SPACE}={space / GIB:g})"
    )
    return Finding(Level.OK, "cache", text)


def _ways_on_cpu(model: Candidate, plan: CachePlan, floor: int, most: float) -> str:
    """Return changes, any one of which would be enough, where a cache has ``most`` bytes."""
    if BLOCKS in model.engine.given:
        return f"leave {model.engine.setting(BLOCKS)} unset"
    changes, least = [], contexts(model, plan, floor)[0]
    if shorter := plan.fitted(_space(), least).context // _ROUND * _ROUND:
        changes.append(f"set {model.engine.prefix}MAX_MODEL_LEN={shorter}")
    sizes = range(plan.text_bytes(least) // GIB, int(most // GIB) + 1)
    enough = (gib for gib in sizes if plan.fitted(gib * GIB, least).context >= least)
    if larger := next(enough, None):
        changes.append(f"set {CPU_SPACE}={larger}")
    return ", or ".join(changes) or _SMALLER


def _space() -> int:
    """Return the bytes of each engine's cache in the machine's own memory."""
    # The settings' check made sure that it is a number.
    return int(process_environ().get(CPU_SPACE, "").strip() or CPU_EXPORTS[CPU_SPACE]) * GIB
