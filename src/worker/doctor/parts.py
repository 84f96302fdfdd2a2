"""What an engine loads besides its model: adapters, and a tokenizer that is not the model's own."""

from dataclasses import dataclass, replace

from worker.doctor.findings import Finding, Level
from worker.engine.adapters.files import CONFIG, WEIGHTS
from worker.engine.arguments import EngineArguments
from worker.start.needs import wanted_by_arguments
from worker.store import Kind, Origin, Snapshot, Wanted
from worker.store.files import loadable


@dataclass(frozen=True)
class Part:
    """A tokenizer or an adapter; ``name`` is the setting's, or the one the setting gives it."""

    topic: str
    name: str
    wanted: Wanted


def parts_of(arguments: EngineArguments) -> list[Part]:
    """Return what the engine loads besides its model."""
    names = {module.path: module.name for module in arguments.vllm.lora_modules or ()}
    return [
        Part(wanted.kind, names.get(wanted.model, wanted.setting), wanted)
        for wanted in wanted_by_arguments(arguments)
        if wanted.kind is not Kind.MODEL
    ]


def check_part(part: Part, found: Snapshot | Finding) -> Finding:
    """Return whether a part is there, and has the files of its kind."""
    if isinstance(found, Finding):
        return replace(found, topic=part.topic, text=f"{part.name}: {found.text}")
    names = [file.name for file in (*found.weights, *found.others)]
    if part.wanted.kind is Kind.ADAPTER:
        problem = _adapter_problem(names, found)
    else:
        problem = "" if loadable(names, part.wanted) else "there are no files of a tokenizer"
    if problem:
        text = f"{part.name}: {problem} in {part.wanted.model}"
        return Finding(Level.FAIL, part.topic, text, f"name another {part.topic}")
    where = {Origin.DIRECTORY: "is a directory", Origin.DOWNLOAD: "is on the hub"}.get(
        found.origin, f"is there (from the {found.origin})"
    )
    return Finding(Level.OK, part.topic, f"{part.name}: {part.wanted.model} {where}")


def _adapter_problem(names: list[str], found: Snapshot) -> str:
    if CONFIG not in names:
        return f"there is no {CONFIG}"
    return (found.damaged or "") if found.weights else f"there is no {WEIGHTS}"
