"""Checks the engines that the settings configure: their files, their models and their memory.

The start finds the mistakes: the doctor runs its phases until a core would start, collects all
refusals instead of the first, and adds the sizes and the time.
"""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level, readable_size
from worker.doctor.lookups import Lookups
from worker.doctor.memory import GpuJudge, check_memory
from worker.engine.arguments import EngineArguments
from worker.engine.machine import engine_ram_limit
from worker.engine.model_config import architectures_in, import_model_classes
from worker.engine.options.combinations import AUTO, REASONING_PARSER, TOOL_PARSER
from worker.engine.start import Start
from worker.engine.start.artifacts import artifacts_in_arguments
from worker.engine.start.configuring import configure_engine, find_problem, reset_options
from worker.engine.start.parsers import choose_family_by_files
from worker.engine.start.rehearsal import rehearse_core
from worker.engine.start.steps import with_artifact_directories
from worker.errors import StartFailed
from worker.process.memory import ERROR_MARGIN
from worker.settings.environment import process_environ
from worker.store import Artifact, ArtifactKind, ArtifactLocation, Origin, Snapshot

# Function that yields findings on the GPUs of ``--gpu``, in place of this machine's memory check.
JudgeGpus = Callable[[GpuJudge], Iterator[Finding]]
# Topics of refusals, by the option that is refused.
_TOPICS = {
    "BLOCK_SIZE": "block size",
    "CHAT_TEMPLATE": "chat template",
    "CHAT_TEMPLATE_CONTENT_FORMAT": "chat template",
    "DATA_PARALLEL_SIZE": "parallel",
    "LORA_MODULES": "adapter",
    "MAX_LORA_RANK": "adapter",
    "MAX_MODEL_LEN": "context",
    "PIPELINE_PARALLEL_SIZE": "parallel",
    "QUANTIZATION": "quantization",
    "SPECULATIVE_CONFIG": "draft model",
    "TENSOR_PARALLEL_SIZE": "parallel",
    "TOKENIZER_MODE": "tokenizer",
}

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


def check_engines(
    lookups: Lookups, start: Start | None, judge: JudgeGpus | None
) -> Iterator[Finding]:
    """Check all engines; if invalid settings prevent a start, only look up the models."""
    engines = {engine.prefix: engine for engine in start.engines} if start else {}
    # The engines may use models other than those that the settings name.
    artifacts = {prefix: [model] for prefix, model in lookups.models.items()}
    artifacts |= {prefix: artifacts_in_arguments(engine) for prefix, engine in engines.items()}
    for artifact in chain.from_iterable(artifacts.values()):
        lookups.start_lookup(artifact)
    models = []
    for prefix, parts in artifacts.items():
        found = {part: lookups.wait_for_result(part) for part in parts}
        findings, model = _check_engine(engines.get(prefix), found, start)
        models += [model] if model else []
        yield from (finding.with_engine_prefix(prefix) for finding in findings)
    if not (start and models):
        return
    if len(models) == len(engines):
        min_len = start.settings.min_model_len
        yield from (
            judge(GpuJudge(models, min_len))
            if judge
            else check_memory(models, start.machine, min_len, engine_ram_limit())
        )
    yield from check_startup_timeout(models, process_environ())


def _check_engine(
    engine: EngineArguments | None,
    found: Mapping[Artifact, Snapshot | Finding],
    start: Start | None,
) -> tuple[list[Finding], Candidate | None]:
    """Return the findings on an engine and its artifacts, and the engine if its model is accepted.

    ``found`` has the result for the model, then those for the engine's other artifacts. Without an
    engine, only the model's files are checked.
    """
    model_result, *_ = found.values()
    candidate, findings = None, list[Finding]()
    if isinstance(model_result, Finding):
        findings.append(model_result)
    else:
        findings += [*report_origin(model_result), *check_disk_space(model_result)]
        if refusal := model_result.refusal:
            findings.append(Finding(Level.FAIL, "weights", refusal.problem, refusal.remedy))
        if start and engine:
            candidate, refusals = rehearse_start(engine, found, start)
            findings += refusals
            if candidate:
                # Omit other findings on the topic of a refusal.
                topics = {refusal.topic for refusal in refusals}
                reports = chain.from_iterable(report(candidate) for report in MODEL_REPORTS)
                findings += [report for report in reports if report.topic not in topics]
    if engine:
        findings += [report_part(part, one, engine) for part, one in [*found.items()][1:]]
    return findings, candidate


def rehearse_start(
    engine: EngineArguments, found: Mapping[Artifact, Snapshot | Finding], start: Start
) -> tuple[Candidate | None, list[Finding]]:
    """Run the start of an engine until its core would start, again after each refused option.

    The model is the first artifact in ``found``. Return the engine without the refused options, or
    None if its model is refused; and findings on the refusals.
    """
    snapshots = {part: one for part, one in found.items() if isinstance(one, Snapshot)}
    start.locations = {
        part: ArtifactLocation(part, one.small_files, one.origin, one.commit)
        for part, one in snapshots.items()
        # An adapter is checked with its weights.
        if not (part.kind is ArtifactKind.ADAPTER and one.origin is Origin.DOWNLOAD)
    }
    names_by_folder = {str(one.small_files): one.model for one in snapshots.values()}
    snapshot, *_ = snapshots.values()
    import_model_classes(architectures_in(snapshot.config))
    engine = _omit_missing_parts(with_artifact_directories(engine, start), found, start)

    check = partial(rehearse_core, start=start)
    original, findings, model = engine, list[Finding](), None
    while model is None:
        try:
            model = Candidate(configure_engine(engine, start, check), snapshot)
        except StartFailed as failure:
            problem: str | None = failure.problem
            if start.simulated_gpu:
                problem = find_problem(engine, start, check, as_cuda=True)
            # Without a problem on the GPU, only this machine refuses it.
            if problem is not None:
                is_certain = problem == failure.problem
                findings.append(_refusal_finding(failure, names_by_folder, is_certain=is_certain))
            if not failure.culprits:
                break
            engine = reset_options(engine, failure.culprits)
    refused = sorted(original.operator_options.keys() - engine.operator_options.keys())
    if findings and refused:
        listed = ", ".join(map(original.setting_name, refused))
        text = f"{findings[-1].text}\nthe checks below ignore {listed}"
        findings[-1] = replace(findings[-1], text=text)
    return model, findings


def _omit_missing_parts(
    engine: EngineArguments, found: Mapping[Artifact, Snapshot | Finding], start: Start
) -> EngineArguments:
    """Omit parts that have no directory: a finding says so, or the weights of an adapter lack."""
    missing = [part for part in found if part not in start.locations]
    adapters = {part.model for part in missing if part.kind is ArtifactKind.ADAPTER}
    modules = engine.vllm_args.lora_modules or ()
    changed: dict[str, Any] = {}
    if adapters:
        changed["lora_modules"] = [one for one in modules if one.path not in adapters]
    if any(part.kind is ArtifactKind.MODEL for part in missing):
        changed["speculative_config"] = None
    if any(part.kind is ArtifactKind.TOKENIZER for part in missing):
        changed["tokenizer"] = engine.vllm_args.model
    return engine.with_options(**changed) if changed else engine


def _refusal_finding(
    failure: StartFailed, names_by_folder: Mapping[str, str], *, is_certain: bool
) -> Finding:
    """Return the finding on a refusal, which names models instead of directories.

    It is not certain if vLLM refuses something on this machine's CPU and may accept it on the GPU.
    """
    text, change = failure.problem, failure.remedy
    for folder, name in names_by_folder.items():
        text, change = text.replace(folder, name), change.replace(folder, name)
    topic = "settings" if failure.culprits else "model"
    if len(failure.culprits) == 1:
        topic = _TOPICS.get(failure.culprits[0], topic)
    if is_certain:
        return Finding(Level.FAIL, topic, text, change)
    text = f"unknown without the GPU, on which vLLM may accept it: {text}"
    return Finding(Level.UNKNOWN, topic, text)


def report_part(artifact: Artifact, result: Snapshot | Finding, engine: EngineArguments) -> Finding:
    topic = "draft model" if artifact.kind is ArtifactKind.MODEL else artifact.kind
    # A finding names an adapter as the setting does, and other artifacts by the setting's name.
    names = {module.path: module.name for module in engine.vllm_args.lora_modules or ()}
    name = names.get(artifact.model, artifact.setting)
    if isinstance(result, Finding):
        return Finding(result.level, topic, f"{name}: {result.text}", result.change)
    if result.refusal:
        text = f"{name}: {result.refusal.problem}"
        return Finding(Level.FAIL, topic, text, result.refusal.remedy)
    where = {Origin.DIRECTORY: "is a directory", Origin.DOWNLOAD: "is on the hub"}.get(
        result.origin, f"was found in the {result.origin}"
    )
    return Finding(Level.OK, topic, f"{name}: {artifact.model} {where}")


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
    requested, name = model.engine.vllm_args.max_model_len, f"{model.engine.prefix}MAX_MODEL_LEN"
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
    if method := model.quantization_method:
        yield Finding(Level.OK, "quantization", method)


def report_parsers(model: Candidate) -> Iterator[Finding]:
    """Report which parsers ``auto`` selects; finding none is only a warning."""
    options = model.engine.vllm_args
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
    compiled = sum(not model.engine.vllm_args.enforce_eager for model in models)
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
