"""Reports of a model's source and properties; checks of the disk's space and the startup time."""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level, readable_size
from worker.engine.options.combinations import AUTO, REASONING_PARSER, TOOL_PARSER
from worker.engine.start.parsers import choose_family_by_files
from worker.process.estimates import ERROR_MARGIN
from worker.store import Origin, Snapshot

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


def report_architecture(model: Candidate) -> Iterator[Finding]:
    """Report whose code runs the model."""
    if not model.architectures or model.engine.config is None:
        return
    named = ", ".join(model.architectures)
    if model.engine.config.model_config.using_transformers_backend():
        text = (
            f"vLLM has no code for {named}: it runs that of transformers or of the repository, if "
            "that is compatible"
        )
        yield Finding(Level.WARN, "architecture", text)
    else:
        yield Finding(Level.OK, "architecture", named)


def report_context_length(model: Candidate) -> Iterator[Finding]:
    """Report the context's length; warn if it is longer than the model's own."""
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
        # vLLM was configured to allow the length, or the configuration has been refused.
        change = f"set {name}={shape.max_length}, or leave it unset"
        yield Finding(Level.WARN, "context", text, change)
    else:
        text = f"{requested} of the model's {shape.max_length or 'any'} tokens"
        yield Finding(Level.OK, "context", text)


def report_quantization(model: Candidate) -> Iterator[Finding]:
    """Report the checkpoint's quantization method."""
    if method := model.quantization_method:
        yield Finding(Level.OK, "quantization", method)


def report_parsers(model: Candidate) -> Iterator[Finding]:
    """Report which parsers ``auto`` selects; finding none is only a warning."""
    options = model.vllm_arguments
    auto = [key for key in (TOOL_PARSER, REASONING_PARSER) if getattr(options, key.lower()) == AUTO]
    if not auto:
        return
    choice = choose_family_by_files(options, model.architectures)
    level = Level.OK if choice.family else Level.WARN
    yield Finding(level, "parsers", choice.describe_parsers(auto))


# Reports of a ``Candidate`` that vLLM accepts.
MODEL_REPORTS = (
    report_architecture,
    report_quantization,
    report_parsers,
    report_context_length,
)


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
