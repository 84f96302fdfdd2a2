"""What a start would refuse, in its own words: its code is run up to where a core would begin."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from worker.doctor.candidate import Candidate, directory, is_local
from worker.doctor.findings import Finding, Level
from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Gpu
from worker.engine.model_config import load_classes
from worker.engine.start import configuring
from worker.engine.start.configuring import Refusal
from worker.engine.start.first_request import renders
from worker.engine.start.needs import wanted_by_arguments
from worker.engine.start.steps import with_directories
from worker.store import Found, Kind, Snapshot, Wanted

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
    parts: Mapping[Wanted, Snapshot | None],
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
        pools = bool(model.prefix) or model.arguments.runner == "pooling"
        placed = _placed(model, parts, context, stack, names)
        also = renders(system_prompt) if _has_tokenizer(model, parts) else None
        for refusal in configuring.refusals(placed, context, also, gpu):
            if refusal.unset == ("MAX_MODEL_LEN",) and pools and not model.local:
                # What it takes depends on files that are not here: the check of the context warns.
                continue
            engine = configuring.without(engine, refusal.unset)
            # Some are refused on CPUs only.
            if not gpu or refusal.on_gpu is not None:
                findings += _findings(model, refusal, names, elsewhere=gpu is not None)
    names_left = sorted(model.engine.given.keys() - engine.given.keys())
    left_out = [model.engine.setting(name) for name in names_left]
    if findings and left_out:
        text = f"{findings[-1].text}\nwhat follows is judged without {', '.join(left_out)}"
        findings[-1] = replace(findings[-1], text=text)
    return engine, findings


def _findings(
    model: Candidate, refusal: Refusal, names: Mapping[str, str], *, elsewhere: bool
) -> Iterator[Finding]:
    """Yield the finding about a refusal, unless the model's own checks report it."""
    if not refusal.unset and (model.refusal or not model.served):
        return
    text = refusal.problem
    for folder, name in names.items():
        text = text.replace(folder, name)
    level = Level.UNKNOWN if _depends_on_files(model, refusal.unset) else Level.FAIL
    if elsewhere and refusal.unlike:
        level = Level.UNKNOWN
        text = f"not known without the GPU, where vLLM may not say: {text}"
    topic = _TOPICS.get(refusal.unset[0], "settings") if len(refusal.unset) == 1 else "settings"
    yield Finding(level, topic, text, "" if elsewhere and refusal.unlike else refusal.remedy)


def _depends_on_files(model: Candidate, unset: Sequence[str]) -> bool:
    """Whether a refusal of options, or of the model, may come of files that are not here."""
    if model.local:
        return False
    names = (Path(file.name).name for file in model.snapshot.others)
    quantized = any("quant" in name and name.endswith(".json") for name in names)
    return not unset or bool(_READ_FROM_FILES & {*unset}) or (quantized and "QUANTIZATION" in unset)


def _placed(
    model: Candidate,
    parts: Mapping[Wanted, Snapshot | None],
    context: StartContext,
    stack: contextlib.ExitStack,
    names: dict[str, str],
) -> EngineArguments:
    """Return the engine's arguments with directories, as in a start, for all that is known now.

    Args:
        model: the engine.
        parts: as in ``rehearse``.
        context: likewise.
        stack: removes directories that are made for this.
        names: gets the models' names, by such directories.
    """
    wanted, *_ = wanted_by_arguments(model.engine)
    found = {part: found for part, found in parts.items() if found and _usable(part, found)}
    used = {}
    for one, snapshot in {wanted: model.snapshot, **found}.items():
        place = stack.enter_context(directory(snapshot)) if one.kind is Kind.MODEL else None
        if place and not is_local(snapshot):
            names[place] = snapshot.model
        used[one] = Found(one, Path(place or snapshot.place), snapshot.origin)
    engine = with_directories(model.engine, replace(context, found=used))
    changed = model.offline
    if not _has_tokenizer(model, parts):
        # They would read the tokenizer.
        changed |= {"reasoning_parser": "", "reasoning_config": None}
        changed["tokenizer"] = engine.vllm.model
    lacking = parts.keys() - used.keys()
    if any(one.kind is Kind.MODEL for one in lacking):
        changed["speculative_config"] = None
    gone = {one.model for one in lacking if one.kind is Kind.ADAPTER}
    modules = engine.vllm.lora_modules or ()
    changed["lora_modules"] = [module for module in modules if module.path not in gone]
    return engine.with_options(**changed)


def _usable(wanted: Wanted, found: Snapshot) -> bool:
    """Whether vLLM can read what it would of a part before it starts: more than is downloaded."""
    if wanted.kind is Kind.MODEL:
        load_classes(found.config.get("architectures") or ())
        return bool(found.config)
    return wanted.kind is not Kind.ADAPTER or not found.missing


def _has_tokenizer(model: Candidate, parts: Mapping[Wanted, Snapshot | None]) -> bool:
    """Whether the tokenizer that the engine would load is on the disk."""
    own = [found for part, found in parts.items() if part.kind is Kind.TOKENIZER]
    if not own:
        return model.local and not model.snapshot.missing
    return all(found and not found.missing for found in own)
