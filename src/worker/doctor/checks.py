"""Checks of a model's source, files and properties, and of the startup time; not of memory."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level, readable_size
from worker.engine.model_config import TRANSCRIPTION_ONLY, ModelSupport, supports_quantization
from worker.engine.options.combinations import AUTO, REASONING_PARSER, TOOL_PARSER
from worker.engine.start.parsers import choose_family_by_files
from worker.process.estimates import ERROR_MARGIN
from worker.settings import history
from worker.store import Origin, Snapshot
from worker.store.files import weight_patterns

# Variable for the time that the platform waits for a startup, and its default in seconds.
INIT_TIMEOUT = "RUNPOD_INIT_TIMEOUT"
DEFAULT_INIT_TIMEOUT_S = 420

# Assumed durations in seconds: of importing vLLM; of compiling a model and capturing CUDA graphs.
IMPORT_S = 20
COMPILE_S = 60
# Assumed rates in bytes per second: of downloads from the hub, and of reads from a network volume.
DOWNLOAD_RATE = 200_000_000
READ_RATE = 500_000_000
# A proposed timeout is the estimate times this factor, rounded up to a multiple of these seconds.
TIMEOUT_MARGIN = 1.5
ROUND_S = 60


def report_origin(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield findings on where the model comes from, and on access to a gated repository."""
    commit = f" at commit {snapshot.commit[:12]}" if snapshot.commit else ""
    total_size = sum(file.size for file in (*snapshot.weights, *snapshot.others))
    where = {
        Origin.DIRECTORY: f"is a directory, {readable_size(total_size)}",
        Origin.DOWNLOAD: f"will be downloaded: {readable_size(snapshot.download_size)} of "
        f"{readable_size(total_size)}",
    }.get(snapshot.origin, f"was found in the {snapshot.origin}, {readable_size(total_size)}")
    skipped = f"; skipped: {'; '.join(snapshot.skipped)}" if snapshot.skipped else ""
    yield Finding(Level.OK, "model", f"{snapshot.model}{commit} {where}{skipped}")
    if snapshot.gated:
        yield Finding(
            Level.OK, "access", "the repository is gated, and HF_TOKEN gives access to it"
        )


def check_weights(snapshot: Snapshot, load_format: str) -> Iterator[Finding]:
    """Check that the weights exist and are complete, and that config.json can be read."""
    remedy = "download the model again, or name another one"
    if snapshot.damage:
        yield Finding(Level.FAIL, "weights", snapshot.damage, remedy)
    if snapshot.absent_weights:
        names = _names_with_verb(snapshot.absent_weights)
        text = f"{names} in the index of the weights, but missing"
        yield Finding(Level.FAIL, "weights", text, remedy)
    patterns = weight_patterns(load_format)
    if patterns and not (snapshot.weights or snapshot.absent_weights):
        text = f"there are no weights: no {' or '.join(patterns)}"
        yield Finding(Level.FAIL, "weights", text, "name a model that vLLM can load")
    if not snapshot.config:
        text = "there is no readable config.json, so the model's shape is unknown"
        yield Finding(Level.UNKNOWN, "architecture", text)


def check_disk_space(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that the disk has enough space for the download."""
    if not snapshot.not_downloaded:
        return
    folders = (snapshot.directory, *snapshot.directory.parents)
    existing = next(folder for folder in folders if folder.is_dir())
    free, needed = shutil.disk_usage(existing).free, snapshot.download_size
    cache, sizes = snapshot.directory.parent, (readable_size(needed), readable_size(free))
    text = f"the download to {cache} needs {sizes[0]}, and {sizes[1]} are free"
    if needed > free:
        change = "use a larger volume or container disk, or set BASE_PATH to a larger one"
        yield Finding(Level.FAIL, "disk", text, change)
    else:
        close = needed * ERROR_MARGIN > free
        yield Finding(Level.WARN if close else Level.OK, "disk", text)


def check_architecture(model: Candidate) -> Iterator[Finding]:
    """Check that vLLM supports the model's architecture, and that a route can use the model."""
    names = model.architectures
    if not names:
        return
    named = ", ".join(names)
    if not model.has_route:
        change = "use a model that generates text, embeds or ranks"
        yield Finding(Level.FAIL, "architecture", f"{named}: {TRANSCRIPTION_ONLY}", change)
    elif model.support is ModelSupport.OWN:
        yield Finding(Level.OK, "architecture", named)
    elif model.support is ModelSupport.NONE:
        yield _unknown_architecture_finding(names)
    elif model.is_runnable:
        owner = (
            "transformers'" if model.support is ModelSupport.TRANSFORMERS else "the repository's"
        )
        text = f"vLLM has no code for {named}: it runs {owner} code, if that is compatible"
        yield Finding(Level.WARN, "architecture", text)
    else:
        text = f"vLLM has no code for {named}, and the repository's own code is not trusted"
        change = f"set {model.engine.prefix}TRUST_REMOTE_CODE=1 if you trust it"
        yield Finding(Level.FAIL, "architecture", text, change)


def _unknown_architecture_finding(names: Sequence[str]) -> Finding:
    text = f"the installed vLLM does not support {', '.join(names)}"
    removals = [last for name in names if (last := history.find_removal("architectures", name))]
    later = [new for name in names if (new := history.find_first_release("architectures", name))]
    if removals:
        change = f"use an image with vLLM {removals[0].last}, the last release known to support it"
    elif later:
        change = f"use an image with vLLM {later[0]} or a later one"
    else:
        change = "use another model, or an image with a vLLM that supports it"
    return Finding(Level.FAIL, "architecture", text, change)


def check_context_length(model: Candidate) -> Iterator[Finding]:
    """Check MAX_MODEL_LEN against the lengths that vLLM accepts for the model."""
    if (shape := model.shape) is None:
        return
    requested, name = model.vllm_arguments.max_model_len, f"{model.engine.prefix}MAX_MODEL_LEN"
    if requested in (None, -1):
        key = shape.length_key
        source = f"the model's own ({key})" if key else "vLLM's, since the model has none"
        how = "at most " if requested == -1 else ""
        yield Finding(Level.OK, "context", f"{how}{shape.default_length} tokens, {source}")
    elif shape.max_length and requested > shape.max_length:
        limit = f"{shape.length_key} is {shape.max_length}"
        text = f"{name}={requested} is more than the model supports: {limit}"
        # This is only a warning: vLLM may be configured to allow the length, and the limit of an
        # embedding model may depend on files that are not on this machine.
        change = f"set {name}={shape.max_length}, or leave it unset{model.propose_yarn()}"
        yield Finding(Level.WARN, "context", text, change)
    else:
        text = f"{requested} of the model's {shape.max_length or 'any'} tokens"
        yield Finding(Level.OK, "context", text)


def check_quantization(model: Candidate) -> Iterator[Finding]:
    """Check that vLLM supports the checkpoint's quantization method."""
    method = model.quantization_method
    if not method:
        return
    # If vLLM has read the model's shape, it knows the method, perhaps by another name.
    if supports_quantization(method) or model.shape:
        yield Finding(Level.OK, "quantization", method)
        return
    removal = history.find_removal("choices", f"QUANTIZATION={method}")
    level = Level.FAIL if removal else Level.WARN
    known = f"; vLLM {removal.last} supported it" if removal else ""
    text = f"the installed vLLM does not support the checkpoint's quantization, {method}{known}"
    yield Finding(level, "quantization", text, "use a checkpoint with another quantization")


def report_parsers(model: Candidate) -> Iterator[Finding]:
    """Report which parsers ``auto`` selects; finding none is only a warning."""
    options = model.vllm_arguments
    auto = [key for key in (TOOL_PARSER, REASONING_PARSER) if getattr(options, key.lower()) == AUTO]
    if not auto:
        return
    if model.is_on_disk:
        directory = str(model.snapshot.directory)
        options = model.engine.with_options(model=directory).vllm_args
    choice = choose_family_by_files(options, model.architectures)
    level = Level.OK if choice.family else Level.WARN
    yield Finding(level, "parsers", choice.describe_parsers(auto))


# Checks of a ``Candidate``, except the memory check.
MODEL_CHECKS = (check_architecture, check_quantization, report_parsers, check_context_length)


def check_startup_timeout(
    models: Sequence[Candidate], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Check that the platform's timeout is as long as the startup may take."""
    value = environ.get(INIT_TIMEOUT, "").strip()
    if value and not value.isdecimal():
        text = f"{INIT_TIMEOUT}={value} is not a whole number of seconds"
        yield Finding(Level.WARN, "start-up time", text, f"set {INIT_TIMEOUT}=600")
        return
    limit = int(value) if value else DEFAULT_INIT_TIMEOUT_S
    download = sum(model.snapshot.download_size for model in models) / DOWNLOAD_RATE
    read = sum(model.snapshot.weights_size for model in models) / READ_RATE
    compiled = sum(not model.vllm_arguments.enforce_eager for model in models)
    parts = {
        "to import": IMPORT_S,
        f"to download at {DOWNLOAD_RATE / 1e6:.0f} MB/s": download,
        f"to read weights at {READ_RATE / 1e6:.0f} MB/s": read,
        "to compile": compiled * COMPILE_S,
    }
    total = sum(parts.values())
    steps = ", ".join(f"{math.ceil(time)} s {name}" for name, time in parts.items() if time >= 1)
    origin = INIT_TIMEOUT if value else f"the default of {INIT_TIMEOUT}"
    text = (
        f"about {math.ceil(total)} s ({steps}); the platform stops a start after {limit} s "
        f"({origin})"
    )
    if total > limit:
        proposed = math.ceil(total * TIMEOUT_MARGIN / ROUND_S) * ROUND_S
        volume = ", or put the model on a network volume" if download >= 1 else ""
        change = f"set {INIT_TIMEOUT}={proposed}{volume}"
        yield Finding(Level.WARN, "start-up time", text, change)
    else:
        yield Finding(Level.OK, "start-up time", text)


def _names_with_verb(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'are' if len(names) > 1 else 'is'}"
