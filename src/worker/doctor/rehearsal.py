"""What a start would refuse, in its own words: its code is run up to where a core would begin."""

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level
from worker.doctor.parts import Part
from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Gpu
from worker.engine.model_config import load_classes
from worker.engine.start import configuring
from worker.engine.start.configuring import Refusal
from worker.engine.start.first_request import renders
from worker.settings.values import is_directory
from worker.store import Kind, Snapshot
from worker.store.files import CONFIG

# What a refusal is about, by the option for which there is one.
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
# Options that files besides config.json have a say in, whatever they say.
_READ_FROM_FILES = frozenset({"CONFIG_FORMAT", "GENERATION_CONFIG", "TOKENIZER_MODE"})


def rehearse(
    model: Candidate,
    parts: Mapping[Part, Snapshot | None],
    context: StartContext,
    system_prompt: str | None = None,
    gpu: Gpu | None = None,
) -> tuple[EngineArguments, list[Finding]]:
    """Run a start of an engine, without its weights.

    Args:
        model: the engine, whose model vLLM has code for.
        parts: what it loads besides the model, where it is now; None if it can't be had.
        context: for the steps of the start.
        system_prompt: opens conversations that have no system message.
        gpu: what it is to run on, if not on this machine.

    Returns:
        The engine without the options for which the start is refused, and the refusals.
    """
    engine, findings = model.engine, list[Finding]()
    with contextlib.ExitStack() as stack:
        names: dict[str, str] = {}
        placed = _placed(model, parts, stack, names)
        also = renders(system_prompt) if _has_tokenizer(model, parts) else None
        for refusal in configuring.refusals(placed, context, also, gpu):
            if refusal.unset == ("MAX_MODEL_LEN",) and model.pools and not model.local:
                # What it takes depends on files that are not here: the check of the context warns.
                continue
            engine = configuring.without(engine, refusal.unset)
            if gpu and refusal.on_gpu is None:
                # It is refused on CPUs only.
                continue
            if finding := _finding(model, refusal, names):
                findings.append(_not_for_certain(finding) if gpu and refusal.unlike else finding)
    refused = sorted(model.engine.given.keys() - engine.given.keys())
    left_out = [model.engine.setting(name) for name in refused]
    if findings and left_out:
        text = f"{findings[-1].text}\nwhat follows is judged without {', '.join(left_out)}"
        findings[-1] = replace(findings[-1], text=text)
    return engine, findings


def _finding(model: Candidate, refusal: Refusal, names: Mapping[str, str]) -> Finding | None:
    """Return the finding about a refusal; None if the model's own checks report it."""
    text, level = refusal.problem, Level.FAIL
    for folder, name in names.items():
        text = text.replace(folder, name)
    if not refusal.unset:
        if model.refusal or not model.served:
            return None
        level = Level.FAIL if model.local else Level.UNKNOWN
    if not model.local and _depends_on_files(model, refusal.unset):
        level = Level.UNKNOWN
    topic = _TOPICS.get(refusal.unset[0], "settings") if len(refusal.unset) == 1 else "settings"
    return Finding(level, topic, text, refusal.remedy)


def _not_for_certain(finding: Finding) -> Finding:
    """Return the finding about a refusal that a GPU may not share."""
    text = f"not known without the GPU, where vLLM may not say: {finding.text}"
    return Finding(Level.UNKNOWN, finding.topic, text)


def _depends_on_files(model: Candidate, unset: Sequence[str]) -> bool:
    """Whether a refusal of options may come of files that are not here."""
    return bool(_READ_FROM_FILES & {*unset}) or (
        "QUANTIZATION" in unset and _tells_quantization(model)
    )


def _tells_quantization(model: Candidate) -> bool:
    """Whether a file that is not here may say how the model is quantized."""
    files = (Path(file.name).name for file in model.snapshot.others)
    return any("quant" in name and name.endswith(".json") for name in files)


def _placed(
    model: Candidate,
    parts: Mapping[Part, Snapshot | None],
    stack: contextlib.ExitStack,
    names: dict[str, str],
) -> EngineArguments:
    """Return the engine's arguments with directories, in which there is what is known now.

    Args:
        model: the engine.
        parts: as in ``rehearse``.
        stack: removes those that are made for this.
        names: gets the models' names, by these directories.
    """
    place = _directory(model.snapshot, stack, names)
    changed: dict[str, Any] = {"model": place, "tokenizer": place}
    if not model.local:
        # The repository's code is not there.
        changed["trust_remote_code"] = False
    if not is_directory(model.arguments.hf_config_path or ""):
        changed["hf_config_path"] = None
    if not _has_tokenizer(model, parts):
        # They would read the tokenizer.
        changed |= {"reasoning_parser": "", "reasoning_config": None}
    drafts = [found for part, found in parts.items() if part.wanted.kind is Kind.MODEL]
    if drafts:
        changed["speculative_config"] = _with_draft(model, drafts[0], stack, names)
    elif model.arguments.speculative_config:
        changed["speculative_config"] = _with_own(model, place)
    tokenizers = [found for part, found in parts.items() if part.wanted.kind is Kind.TOKENIZER]
    if tokenizers and tokenizers[0]:
        changed["tokenizer"] = str(tokenizers[0].place)
    known = {
        part.wanted.model: str(found.place)
        for part, found in parts.items()
        if found and part.wanted.kind is Kind.ADAPTER and not found.missing
    }
    modules = [module for module in model.arguments.lora_modules or () if module.path in known]
    changed["lora_modules"] = [
        type(module)(name=module.name, path=known[module.path]) for module in modules
    ]
    return model.engine.with_options(**changed)


def _with_draft(
    model: Candidate,
    draft: Snapshot | None,
    stack: contextlib.ExitStack,
    names: dict[str, str],
) -> dict[str, Any] | None:
    if draft is None or not draft.config:
        return None
    architectures: Sequence[str] = draft.config.get("architectures") or ()
    load_classes(architectures)
    options: dict[str, Any] = dict(model.arguments.speculative_config)
    return {**options, "model": _directory(draft, stack, names), "revision": None}


def _with_own(model: Candidate, place: str) -> dict[str, Any]:
    """Return the speculative configuration, in which the model may be named as its own draft."""
    options: dict[str, Any] = dict(model.arguments.speculative_config)
    own = options.get("model") == model.arguments.model
    return {**options, "model": place} if own else options


def _directory(snapshot: Snapshot, stack: contextlib.ExitStack, names: dict[str, str]) -> str:
    """Return the directory of a model; of one that is not here, one with its config.json."""
    if (snapshot.place / CONFIG).is_file():
        return str(snapshot.place)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    (Path(folder) / CONFIG).write_text(json.dumps(snapshot.config))
    names[folder] = snapshot.model
    return folder


def _has_tokenizer(model: Candidate, parts: Mapping[Part, Snapshot | None]) -> bool:
    """Whether the tokenizer that the engine would load is on the disk."""
    own = [found for part, found in parts.items() if part.wanted.kind is Kind.TOKENIZER]
    if not own:
        return model.local and not model.snapshot.missing
    return all(found and not found.missing for found in own)
