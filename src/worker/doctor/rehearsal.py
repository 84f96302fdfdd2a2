"""What a start would refuse, in its own words: its code is run up to where a core would begin."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from worker.doctor.candidate import Candidate, directory
from worker.doctor.findings import Finding, Level
from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Gpu
from worker.engine.model_config import load_classes
from worker.engine.start import configuring
from worker.engine.start.configuring import Refusal
from worker.engine.start.first_request import check_rendering
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
    context: StartContext,
    system_prompt: str | None = None,
    gpu: Gpu | None = None,
) -> tuple[Candidate, list[Finding]]:
    """Run a start of an engine, without its weights, if vLLM has code for the model.

    Args:
        model: the engine.
        context: for the steps of the start.
        system_prompt: opens conversations that have no system message.
        gpu: what it is to run on, if not on this machine.

    Returns:
        The engine without the options for which the start is refused, and the refusals.
    """
    known = model.config or model.local
    if not known or (model.architectures and not model.runnable):
        return model, []
    engine, findings = model.engine, list[Finding]()
    pools = bool(model.engine.prefix) or model.arguments.runner == "pooling"
    with _placed(model, context) as (placed, names):
        render = partial(check_rendering, system_prompt=system_prompt)
        also = render if model.has_tokenizer else None
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
    return Candidate.of(engine, model.snapshot, model.parts) if findings else model, findings


def _findings(
    model: Candidate, refusal: Refusal, names: Mapping[str, str], *, elsewhere: bool
) -> Iterator[Finding]:
    """Yield the finding about a refusal, unless the check of the architecture reports it."""
    if not (refusal.unset or model.served):
        return
    topic = _TOPICS.get(refusal.unset[0], "settings") if len(refusal.unset) == 1 else "settings"
    text, change = refusal.problem, refusal.remedy
    for folder, name in names.items():
        text = text.replace(folder, name)
    if not refusal.unset and model.config and model.shape is None:
        topic = "configuration"
        alone = "vLLM does not know the model's shape by its config.json alone"
        text = f"{'vLLM refuses the model' if model.local else alone}: {text}"
        # The code that may be trusted is not here.
        change = "" if model.arguments.trust_remote_code else change
    level = Level.UNKNOWN if _depends_on_files(model, refusal.unset) else Level.FAIL
    # A GPU may not share it.
    if elsewhere and refusal.on_gpu != refusal.problem:
        level, change = Level.UNKNOWN, ""
        text = f"not known without the GPU, where vLLM may not say: {text}"
    yield Finding(level, topic, text, change)


def _depends_on_files(model: Candidate, unset: Sequence[str]) -> bool:
    """Whether a refusal of options, or of the model, may come of files that are not here."""
    if model.local:
        return False
    names = (Path(file.name).name for file in model.snapshot.others)
    quantized = any("quant" in name and name.endswith(".json") for name in names)
    return not unset or bool(_READ_FROM_FILES & {*unset}) or (quantized and "QUANTIZATION" in unset)


@contextlib.contextmanager
def _placed(
    model: Candidate, context: StartContext
) -> Iterator[tuple[EngineArguments, Mapping[str, str]]]:
    """Yield the engine's arguments with directories, as in a start, for all that is known now.

    And the models' names, by the directories that are made for them meanwhile.
    """
    wanted, *_ = wanted_by_arguments(model.engine)
    parts = model.parts.items()
    found = {part: at for part, at in parts if isinstance(at, Snapshot) and _usable(part, at)}
    used, names = dict[Wanted, Found](), dict[str, str]()
    with contextlib.ExitStack() as stack:
        for one, snapshot in {wanted: model.snapshot, **found}.items():
            place = snapshot.place
            if one.kind is Kind.MODEL:
                place = Path(stack.enter_context(directory(snapshot)))
            if place != snapshot.place:
                names[str(place)] = snapshot.model
            used[one] = Found(one, place, snapshot.origin)
        yield _without_lacking(model, replace(context, found=used)), names


def _without_lacking(model: Candidate, context: StartContext) -> EngineArguments:
    """Return the engine's arguments without the options that need what is not here."""
    engine = with_directories(model.engine, context)
    changed = model.offline
    if not model.has_tokenizer:
        # They would read the tokenizer.
        changed |= {"reasoning_parser": "", "reasoning_config": None}
        changed["tokenizer"] = engine.vllm.model
    lacking = model.parts.keys() - context.found.keys()
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
