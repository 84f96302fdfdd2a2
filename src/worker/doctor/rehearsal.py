"""Rehearses an engine's startup until a core process would start, to find vLLM's refusals."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from worker.doctor.candidate import Candidate, model_or_config_directory
from worker.doctor.findings import Finding, Level
from worker.engine.arguments import EngineArguments, StartupContext
from worker.engine.machine import Gpu
from worker.engine.model_config import import_model_classes
from worker.engine.start import configuring
from worker.engine.start.configuring import ConfigRefusal
from worker.engine.start.first_request import check_tokenizer_and_rendering
from worker.engine.start.needs import artifacts_in_arguments
from worker.engine.start.steps import with_artifact_directories
from worker.store import Artifact, ArtifactKind, ArtifactLocation, Snapshot

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
# Options whose validity depends on files other than config.json, whatever their value.
_READ_FROM_FILES = frozenset({"CONFIG_FORMAT", "GENERATION_CONFIG", "TOKENIZER_MODE"})


def rehearse_startup(
    model: Candidate,
    context: StartupContext,
    system_prompt: str | None = None,
    gpu: Gpu | None = None,
) -> tuple[Candidate, list[Finding]]:
    """Rehearse the startup of an engine without its weights, if vLLM has code for the model.

    Args:
        model: The engine and its model.
        context: Context of the startup steps.
        system_prompt: Prompt that opens conversations without a system message.
        gpu: The GPU on which the engine would run; None for this machine's.

    Returns:
        The engine without the refused options, and findings on the refusals.
    """
    known = model.config or model.is_on_disk
    if not known or (model.architectures and not model.is_runnable):
        return model, []
    engine, findings = model.engine, list[Finding]()
    pools = bool(model.engine.prefix) or model.vllm_arguments.runner == "pooling"
    with _arguments_with_local_paths(model, context) as (arguments, names):
        render = partial(check_tokenizer_and_rendering, system_prompt=system_prompt)
        check = render if model.has_tokenizer else None
        for refusal in configuring.find_config_refusals(arguments, context, check, gpu):
            if refusal.culprits == ("MAX_MODEL_LEN",) and pools and not model.is_on_disk:
                # The accepted length depends on missing files; ``check_context_length`` warns.
                continue
            # Some options are refused on CPUs only.
            if not gpu or refusal.problem_on_gpu is not None:
                findings += _to_findings(replace(model, engine=engine), refusal, names, gpu)
            engine = configuring.reset_options(engine, refusal.culprits)
    refused_names = sorted(model.engine.operator_options.keys() - engine.operator_options.keys())
    refused_settings = [model.engine.setting_name(name) for name in refused_names]
    if findings and refused_settings:
        text = f"{findings[-1].text}\nthe checks below ignore {', '.join(refused_settings)}"
        findings[-1] = replace(findings[-1], text=text)
    if findings:
        model = Candidate.from_snapshot(engine, model.snapshot, model.parts)
    return model, findings


def _to_findings(
    model: Candidate, refusal: ConfigRefusal, names: Mapping[str, str], gpu: Gpu | None
) -> Iterator[Finding]:
    """Yield the finding on a refusal, unless the check of the architecture reports it."""
    if not (refusal.culprits or model.has_route):
        return
    culprits, text, change = refusal.culprits, refusal.problem, refusal.remedy
    if culprits == ("MAX_MODEL_LEN",):
        change += model.propose_yarn(gpu)
    topic = _TOPICS.get(culprits[0], "settings") if len(culprits) == 1 else "settings"
    for folder, name in names.items():
        text = text.replace(folder, name)
    if not culprits and model.config and model.shape is None:
        topic = "configuration"
        alone = "vLLM can't derive the model's shape from config.json alone"
        text = f"{'vLLM refuses the model' if model.is_on_disk else alone}: {text}"
        # The cause may be that the trusted code is not on this machine; no change helps.
        change = "" if model.vllm_arguments.trust_remote_code else change
    level = Level.UNKNOWN if _depends_on_files(model, culprits) else Level.FAIL
    # vLLM may refuse an option on this machine's CPU but accept it on the GPU.
    if gpu and refusal.problem_on_gpu != refusal.problem:
        level, change = Level.UNKNOWN, ""
        text = f"unknown without the GPU, on which vLLM may accept it: {text}"
    yield Finding(level, topic, text, change)


def _depends_on_files(model: Candidate, unset: Sequence[str]) -> bool:
    """Return whether a refusal may result from files of the model that are missing here."""
    if model.is_on_disk:
        return False
    names = (Path(file.name).name for file in model.snapshot.others)
    quantized = any("quant" in name and name.endswith(".json") for name in names)
    return not unset or bool(_READ_FROM_FILES & {*unset}) or (quantized and "QUANTIZATION" in unset)


@contextlib.contextmanager
def _arguments_with_local_paths(
    model: Candidate, context: StartupContext
) -> Iterator[tuple[EngineArguments, Mapping[str, str]]]:
    """Yield the engine's arguments with local directories, as far as they are known.

    Also yields the models' names, by the temporary directories that replace them.
    """
    model_artifact, *_ = artifacts_in_arguments(model.engine)
    parts = model.parts.items()
    local = {
        key: one
        for key, one in parts
        if isinstance(one, Snapshot) and _has_non_weight_files(key, one)
    }
    locations, names = dict[Artifact, ArtifactLocation](), dict[str, str]()
    with contextlib.ExitStack() as stack:
        for artifact, snapshot in {model_artifact: model.snapshot, **local}.items():
            directory = snapshot.directory
            if artifact.kind is ArtifactKind.MODEL:
                directory = Path(stack.enter_context(model_or_config_directory(snapshot)))
            if directory != snapshot.directory:
                names[str(directory)] = snapshot.model
            locations[artifact] = ArtifactLocation(artifact, directory, snapshot.origin)
        yield _omit_missing_artifacts(model, replace(context, artifact_locations=locations)), names


def _omit_missing_artifacts(model: Candidate, context: StartupContext) -> EngineArguments:
    """Return the engine's arguments without the options that need missing artifacts."""
    engine = with_artifact_directories(model.engine, context)
    changed = model.hub_offline_options
    if not model.has_tokenizer:
        # If these options were set, vLLM would read the tokenizer.
        changed |= {"reasoning_parser": "", "reasoning_config": None}
        changed["tokenizer"] = engine.vllm_args.model
    missing = model.parts.keys() - context.artifact_locations.keys()
    if any(one.kind is ArtifactKind.MODEL for one in missing):
        changed["speculative_config"] = None
    missing_adapters = {one.model for one in missing if one.kind is ArtifactKind.ADAPTER}
    modules = engine.vllm_args.lora_modules or ()
    changed["lora_modules"] = [module for module in modules if module.path not in missing_adapters]
    return engine.with_options(**changed)


def _has_non_weight_files(artifact: Artifact, snapshot: Snapshot) -> bool:
    """Return whether an artifact has the files that vLLM reads before it loads weights."""
    if artifact.kind is ArtifactKind.MODEL:
        import_model_classes(snapshot.config.get("architectures") or ())
        return bool(snapshot.config)
    return artifact.kind is not ArtifactKind.ADAPTER or not snapshot.not_downloaded
