"""Checks the engines that the settings configure: their files, their models and their memory.

The start finds the mistakes: the doctor runs its phases until a core would start, collects all
refusals instead of the first, and adds the sizes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from worker.doctor import checks, this_machine
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level
from worker.doctor.lookups import Lookups, report_part
from worker.doctor.memory import GpuJudge
from worker.engine.arguments import EngineArguments
from worker.engine.machine import engine_ram_limit
from worker.engine.model_config import architectures_in, import_model_classes
from worker.engine.start import Start
from worker.engine.start.artifacts import artifacts_in_arguments
from worker.engine.start.configuring import configure_engine, find_problem_on_gpu, reset_options
from worker.engine.start.rehearsal import rehearse_core
from worker.engine.start.steps import with_artifact_directories
from worker.errors import StartFailed
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


def check_engines(
    lookups: Lookups, start: Start | None, judge: JudgeGpus | None
) -> Iterator[Finding]:
    """Check all engines, and yield the findings.

    If invalid settings prevent a start, only the models are looked up.
    """
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
            else this_machine.check_memory(models, start.machine, min_len, engine_ram_limit())
        )
    yield from checks.check_startup_timeout(models, process_environ())


def _check_engine(
    engine: EngineArguments | None,
    found: Mapping[Artifact, Snapshot | Finding],
    start: Start | None,
) -> tuple[list[Finding], Candidate | None]:
    """Return the findings on an engine and its artifacts, and the engine if its model is accepted.

    The model comes first in ``found``. Without an engine, only its files are checked.
    """
    model_result, *_ = found.values()
    model, findings = None, list[Finding]()
    if isinstance(model_result, Finding):
        findings.append(model_result)
    else:
        findings += [*checks.report_origin(model_result), *checks.check_disk_space(model_result)]
        if refusal := model_result.refusal:
            findings.append(Finding(Level.FAIL, "weights", refusal.problem, refusal.remedy))
        if start and engine:
            model, refusals = rehearse_start(engine, found, start)
            findings += refusals
            if model:
                # Omit other findings on the topic of a refusal.
                topics = {refusal.topic for refusal in refusals}
                reports = chain.from_iterable(report(model) for report in checks.MODEL_REPORTS)
                findings += [report for report in reports if report.topic not in topics]
    if engine:
        findings += [report_part(part, one, engine) for part, one in [*found.items()][1:]]
    return findings, model


def rehearse_start(
    engine: EngineArguments, found: Mapping[Artifact, Snapshot | Finding], start: Start
) -> tuple[Candidate | None, list[Finding]]:
    """Run the start of an engine until its core would start, again after each refused option.

    ``found`` are the snapshots of its artifacts, of which the model is the first.

    Returns the engine without the refused options, or None if its model is refused; and findings on
    the refusals.
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
            on_gpu: str | None = failure.problem
            if start.simulated_gpu:
                on_gpu = find_problem_on_gpu(engine, start, check)
            findings += _to_findings(failure, on_gpu, names_by_folder)
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


def _to_findings(
    failure: StartFailed, on_gpu: str | None, names_by_folder: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the finding on a refusal; none if only this machine, without the GPU, refuses it.

    ``on_gpu`` is vLLM's message for the GPU, if there is one.
    """
    if on_gpu is None:
        return
    culprits, text, change, level = failure.culprits, failure.problem, failure.remedy, Level.FAIL
    topic = "settings" if culprits else "model"
    topic = _TOPICS.get(culprits[0], topic) if len(culprits) == 1 else topic
    for folder, name in names_by_folder.items():
        text, change = text.replace(folder, name), change.replace(folder, name)
    # vLLM may refuse an option on this machine's CPU but accept it on the GPU.
    if on_gpu != failure.problem:
        level, change = Level.UNKNOWN, ""
        text = f"unknown without the GPU, on which vLLM may accept it: {text}"
    yield Finding(level, topic, text, change)
