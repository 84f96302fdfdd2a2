"""Checks of everything but memory: where a model comes from, what it is, how long a start takes."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level, readable_size
from worker.engine.model_config import UNSERVED, Support, knows_quantization
from worker.engine.options.combinations import AUTO, REASONING, TOOLS
from worker.engine.start.parsers import chosen
from worker.process.estimates import TOO_MUCH
from worker.settings import history
from worker.store import Origin, Snapshot

# Load formats whose weights are files of the repository, and how they are named.
_FROM_FILES = {
    **dict.fromkeys(("auto", "hf"), "*.safetensors, *.bin or *.pt"),
    "mistral": "consolidated*.safetensors",
    "pt": "*.pt",
    "safetensors": "*.safetensors",
}

# How long the platform waits for a worker: the variable, and the default in seconds.
INIT_TIMEOUT = "RUNPOD_INIT_TIMEOUT"
DEFAULT_INIT_TIMEOUT_S = 420

# Assumed durations in seconds: to import vLLM; to compile a model and capture its CUDA graphs.
IMPORT_S = 20
COMPILE_S = 60
# Assumed rates in bytes a second: from the hub, and from a network volume.
DOWNLOAD_RATE = 200_000_000
READ_RATE = 500_000_000
# Reserve in a proposed timeout, and the seconds that it is rounded up to a multiple of.
SLACK = 1.5
ROUND_S = 60


def origin(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield where the model comes from, and whether it may be read."""
    commit = f" at commit {snapshot.commit[:12]}" if snapshot.commit else ""
    whole = sum(file.size for file in (*snapshot.weights, *snapshot.others))
    where = {
        Origin.DIRECTORY: f"is a directory, {readable_size(whole)}",
        Origin.DOWNLOAD: f"is to be downloaded: {readable_size(snapshot.missing_size)} of "
        f"{readable_size(whole)}",
    }.get(snapshot.origin, f"is there, from the {snapshot.origin}, {readable_size(whole)}")
    passed = f"; passed over: {'; '.join(snapshot.passed)}" if snapshot.passed else ""
    yield Finding(Level.OK, "model", f"{snapshot.model}{commit} {where}{passed}")
    if snapshot.gated:
        yield Finding(
            Level.OK, "access", "the repository is gated, and HF_TOKEN gives access to it"
        )


def weights(snapshot: Snapshot, load_format: str) -> Iterator[Finding]:
    """Check that the model's files are complete, and that there are weights to load."""
    again = "download the model again, or name another one"
    if snapshot.damaged:
        yield Finding(Level.FAIL, "weights", snapshot.damaged, again)
    if snapshot.lacking:
        text = f"{_listed(snapshot.lacking)} named in the index of the weights, but not there"
        yield Finding(Level.FAIL, "weights", text, again)
    if not (snapshot.weights or snapshot.lacking) and load_format in _FROM_FILES:
        text = f"there are no weights: no {_FROM_FILES[load_format]}"
        yield Finding(Level.FAIL, "weights", text, "name a model that vLLM can load")
    if not snapshot.config:
        text = "there is no config.json that can be read, so nothing is known of the model's shape"
        yield Finding(Level.UNKNOWN, "architecture", text)


def disk(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the disk has room for what is to be downloaded."""
    if not snapshot.missing:
        return
    folders = (snapshot.place, *snapshot.place.parents)
    existing = next(folder for folder in folders if folder.is_dir())
    free, needed = shutil.disk_usage(existing).free, snapshot.missing_size
    sizes = readable_size(needed), readable_size(free)
    text = f"{sizes[0]} are to be downloaded to {snapshot.place.parent}, where {sizes[1]} are free"
    if needed > free:
        change = "take a larger volume or container disk, or set BASE_PATH to where there is room"
        yield Finding(Level.FAIL, "disk", text, change)
    else:
        close = needed * TOO_MUCH > free
        yield Finding(Level.WARN if close else Level.OK, "disk", text)


def architecture(model: Candidate) -> Iterator[Finding]:
    """Check that vLLM can run the model's architecture."""
    names = model.architectures
    if not names:
        return
    named = ", ".join(names)
    if not model.served:
        change = "take a model that generates text, embeds or ranks"
        yield Finding(Level.FAIL, "architecture", f"{named}: {UNSERVED}", change)
    elif model.support is Support.OWN:
        yield Finding(Level.OK, "architecture", named)
    elif model.support is Support.NONE:
        yield _unsupported(names)
    elif model.runnable:
        whose = "transformers'" if model.support is Support.TRANSFORMERS else "the repository's"
        text = f"{named} is not vLLM's own: it runs by {whose} code, if that fits vLLM"
        yield Finding(Level.WARN, "architecture", text)
    else:
        text = f"{named} is not vLLM's own, and the repository's own code is not trusted"
        change = f"set {model.engine.prefix}TRUST_REMOTE_CODE=1 if you trust it"
        yield Finding(Level.FAIL, "architecture", text, change)


def _unsupported(names: Sequence[str]) -> Finding:
    text = f"the installed vLLM does not know {', '.join(names)}"
    removals = [last for name in names if (last := history.removal("architectures", name))]
    later = [first for name in names if (first := history.first_release("architectures", name))]
    if removals:
        change = f"take an image with vLLM {removals[0].last}, the last release known to have it"
    elif later:
        change = f"take an image with vLLM {later[0]} or a later one"
    else:
        change = "take another model, or an image with a vLLM that knows it"
    return Finding(Level.FAIL, "architecture", text, change)


def context(model: Candidate) -> Iterator[Finding]:
    """Check MAX_MODEL_LEN against the lengths that vLLM accepts for the model."""
    if (own := model.shape) is None:
        return
    asked, name = model.arguments.max_model_len, f"{model.engine.prefix}MAX_MODEL_LEN"
    if asked in (None, -1):
        key = own.length_key
        source = f"the model's own ({key})" if key else "vLLM's, since the model has none"
        how = "at most " if asked == -1 else ""
        yield Finding(Level.OK, "context", f"{how}{own.length} tokens, {source}")
    elif own.longest and asked > own.longest:
        text = f"{name}={asked} is more than the model takes: {own.length_key} is {own.longest}"
        # vLLM is set to allow it, or it is not refused since it depends on files of an embedder.
        change = f"set {name}={own.longest}, or leave it unset"
        yield Finding(Level.WARN, "context", text, change)
    else:
        yield Finding(Level.OK, "context", f"{asked} of the model's {own.longest or 'any'} tokens")


def quantization(model: Candidate) -> Iterator[Finding]:
    """Check that vLLM has the method by which the checkpoint is quantised."""
    method = model.quantization
    if not method:
        return
    # vLLM has some methods under other names, and recognises them.
    if knows_quantization(method) or model.shape:
        yield Finding(Level.OK, "quantization", method)
        return
    removal = history.removal("choices", f"QUANTIZATION={method}")
    level = Level.FAIL if removal else Level.WARN
    known = f"; vLLM {removal.last} had it" if removal else ""
    text = f"the checkpoint is quantised by {method}, which the installed vLLM does not list{known}"
    yield Finding(level, "quantization", text, "take a checkpoint that is quantised by another")


def parsers(model: Candidate) -> Iterator[Finding]:
    """Say which parsers ``auto`` stands for; a model without any is served all the same."""
    options = model.arguments
    asked = [name for name in (TOOLS, REASONING) if getattr(options, name.lower()) == AUTO]
    if not asked:
        return
    if model.local:
        place = str(model.snapshot.place)
        options = model.engine.with_options(model=place).vllm
    found = chosen(options, model.architectures)
    level = Level.OK if found.family else Level.WARN
    yield Finding(level, "parsers", found.told(asked))


# All checks of an engine and its model but that of the memory.
OF_MODEL = (architecture, quantization, parsers, context)


def start_time(models: Sequence[Candidate], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the platform waits as long as a start may take."""
    value = environ.get(INIT_TIMEOUT, "").strip()
    if value and not value.isdecimal():
        text = f"{INIT_TIMEOUT}={value} is no whole number of seconds"
        yield Finding(Level.WARN, "start-up time", text, f"set {INIT_TIMEOUT}=600")
        return
    limit = int(value) if value else DEFAULT_INIT_TIMEOUT_S
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
    steps = ", ".join(f"{math.ceil(time)} s {name}" for name, time in parts.items() if time >= 1)
    text = f"about {math.ceil(total)} s ({steps}) of {limit} s"
    if total > limit:
        proposed = math.ceil(total * SLACK / ROUND_S) * ROUND_S
        volume = ", or put the model on a network volume" if download >= 1 else ""
        change = f"set {INIT_TIMEOUT}={proposed}{volume}"
        yield Finding(Level.WARN, "start-up time", text, change)
    else:
        yield Finding(Level.OK, "start-up time", text)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'are' if len(names) > 1 else 'is'}"
