"""What is looked at beside memory: where the model comes from, what it is, how long it takes."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence

from worker.doctor import memory
from worker.doctor.findings import Finding, Level
from worker.doctor.model import Model
from worker.engine.options.architectures import Support, knows_quantization, support
from worker.settings import history
from worker.store import Origin, Snapshot

# How long the platform waits for a worker that does not say how long it takes, in seconds.
INIT_TIMEOUT = "RUNPOD_INIT_TIMEOUT"
DEFAULT_INIT_TIMEOUT_S = 420

# What a start is assumed to take. Seconds:
IMPORT_S = 20
# to compile the model and capture its CUDA graphs, the first time.
COMPILE_S = 60
# Bytes a second: from the hub, and from a network volume.
DOWNLOAD_RATE = 200_000_000
READ_RATE = 500_000_000
# Room for a slower day, in the value that is proposed, and what it is rounded up to.
SLACK = 1.5
ROUND_S = 60


def origin(snapshot: Snapshot) -> Iterator[Finding]:
    """Tell where the model comes from, and whether it may be read."""
    commit = f" at commit {snapshot.commit[:12]}" if snapshot.commit else ""
    whole = sum(file.size for file in (*snapshot.weights, *snapshot.others))
    told = {
        Origin.DIRECTORY: f"is a directory, {memory.written(whole)}",
        Origin.DOWNLOAD: f"is to be downloaded: {memory.written(snapshot.missing_size)} of "
        f"{memory.written(whole)}",
    }.get(snapshot.origin, f"is there, from the {snapshot.origin}, {memory.written(whole)}")
    passed = f"; passed over: {'; '.join(snapshot.passed)}" if snapshot.passed else ""
    yield Finding(Level.OK, "model", f"{snapshot.model}{commit} {told}{passed}")
    if snapshot.gated:
        yield Finding(
            Level.OK, "access", "the repository is gated, and HF_TOKEN gives access to it"
        )


def weights(snapshot: Snapshot, load_format: str) -> Iterator[Finding]:
    """Tell a model that is not whole, or has nothing to load."""
    again = "download the model again, or name another one"
    if snapshot.damaged:
        yield Finding(Level.FAIL, "weights", snapshot.damaged, again)
    if snapshot.lacking:
        text = f"{_listed(snapshot.lacking)} named in the index of the weights, but not there"
        yield Finding(Level.FAIL, "weights", text, again)
    if not (snapshot.weights or snapshot.lacking) and load_format in ("auto", "hf", "safetensors"):
        text = "there are no weights: no *.safetensors, *.bin or *.pt"
        yield Finding(Level.FAIL, "weights", text, "name a model that vLLM can load")
    if not snapshot.config:
        text = "there is no config.json that can be read, so nothing is known of the model's shape"
        yield Finding(Level.UNKNOWN, "architecture", text)


def disk(snapshot: Snapshot) -> Iterator[Finding]:
    """Hold what is to be downloaded to the room on the disk."""
    if not snapshot.missing:
        return
    place = next(each for each in (snapshot.place, *snapshot.place.parents) if each.is_dir())
    free, needed = shutil.disk_usage(place).free, snapshot.missing_size
    sizes = memory.written(needed), memory.written(free)
    told = f"{sizes[0]} are to be downloaded to {snapshot.place.parent}, where {sizes[1]} are free"
    if needed > free:
        change = "take a larger volume or container disk, or set BASE_PATH to where there is room"
        yield Finding(Level.FAIL, "disk", told, change)
    else:
        close = needed * memory.TOO_MUCH > free
        yield Finding(Level.WARN if close else Level.OK, "disk", told)


def architecture(model: Model) -> Iterator[Finding]:
    """Ask vLLM's registry for the model's architecture."""
    names = model.architectures
    if not names:
        return
    named = ", ".join(names)
    found = support(names, model.config, model.arguments.model_impl)
    if found is Support.OWN:
        yield Finding(Level.OK, "architecture", named)
    elif found is Support.TRANSFORMERS:
        text = f"{named} is not vLLM's own: it runs by transformers' code, if that fits vLLM"
        yield Finding(Level.WARN, "architecture", text)
    elif found is Support.CODE and model.arguments.trust_remote_code:
        text = f"{named} is not vLLM's own: it runs by the repository's code, if that fits vLLM"
        yield Finding(Level.WARN, "architecture", text)
    elif found is Support.CODE:
        text = f"{named} is not vLLM's own, and the repository's own code is not trusted"
        change = f"set {model.prefix}TRUST_REMOTE_CODE=1 if you trust it"
        yield Finding(Level.FAIL, "architecture", text, change)
    else:
        yield _unsupported(names)


def _unsupported(names: Sequence[str]) -> Finding:
    text = f"the installed vLLM does not know {', '.join(names)}"
    removals = [each for name in names if (each := history.removal("architectures", name))]
    later = [first for name in names if (first := history.first_release("architectures", name))]
    if removals:
        change = f"take an image with vLLM {removals[0].last}, the last release known to have it"
    elif later:
        change = f"take an image with vLLM {later[0]} or a later one"
    else:
        change = "take another model, or an image with a vLLM that knows it"
    return Finding(Level.FAIL, "architecture", text, change)


def quantization(model: Model) -> Iterator[Finding]:
    """Ask vLLM for the method by which the checkpoint is quantised."""
    method = memory.quantised(model.config)
    if not method:
        return
    if knows_quantization(method):
        yield Finding(Level.OK, "quantization", method)
        return
    removal = history.removal("choices", f"QUANTIZATION={method}")
    # Some go by another name in vLLM, which finds out by itself.
    level = Level.FAIL if removal and method not in _RENAMED else Level.WARN
    known = f"; vLLM {removal.last} had it" if removal else ""
    text = f"the checkpoint is quantised by {method}, which the installed vLLM does not list{known}"
    yield Finding(level, "quantization", text, "take a checkpoint that is quantised by another")


_RENAMED = frozenset({"auto-round", "marlin", "gptq_marlin_24"})


def start_time(models: Sequence[Model], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Hold the time that the platform waits to the time that a start may take."""
    given = environ.get(INIT_TIMEOUT, "").strip()
    if given and not given.isdecimal():
        text = f"{INIT_TIMEOUT}={given} is no whole number of seconds"
        yield Finding(Level.WARN, "start-up time", text, f"set {INIT_TIMEOUT}=600")
        return
    limit = int(given) if given else DEFAULT_INIT_TIMEOUT_S
    download = sum(model.snapshot.missing_size for model in models) / DOWNLOAD_RATE
    read = sum(model.snapshot.weights_size for model in models) / READ_RATE
    compiled = sum(not model.arguments.enforce_eager for model in models)
    parts = {
        "to import": IMPORT_S,
        f"to download at {DOWNLOAD_RATE / 1e6:.0f} MB/s": download,
        f"to read weights at {READ_RATE / 1e6:.0f} MB/s": read,
        "to compile": compiled * COMPILE_S,
    }
    total = sum(parts.values())
    told = ", ".join(f"{math.ceil(each)} s {name}" for name, each in parts.items() if each >= 1)
    text = f"about {math.ceil(total)} s ({told}) of {limit} s"
    if total > limit:
        proposed = math.ceil(total * SLACK / ROUND_S) * ROUND_S
        volume = ", or put the model on a network volume" if download >= 1 else ""
        change = f"set {INIT_TIMEOUT}={proposed}{volume}"
        yield Finding(Level.WARN, "start-up time", text, change)
    else:
        yield Finding(Level.OK, "start-up time", text)


def _listed(names: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more} {'are' if len(names) > 1 else 'is'}"
