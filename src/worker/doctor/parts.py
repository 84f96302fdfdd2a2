"""What an engine loads besides its model: adapters, a draft model, another tokenizer."""

from dataclasses import dataclass, replace

from worker.doctor.findings import Finding, Level
from worker.engine.arguments import EngineArguments
from worker.engine.start.needs import wanted_by_arguments
from worker.store import Kind, Origin, Snapshot, Wanted
from worker.store.files import loadable
from worker.volume.adapters import CONFIG, WEIGHTS


@dataclass(frozen=True)
class Part:
    """Something to load; ``name`` is the setting's, or the one that the setting gives it."""

    topic: str
    name: str
    wanted: Wanted


def parts_of(arguments: EngineArguments) -> list[Part]:
    """Return what the engine loads besides its model."""
    names = {module.path: module.name for module in arguments.vllm.lora_modules or ()}
    _, *besides = wanted_by_arguments(arguments)
    return [
        Part(_topic(wanted), names.get(wanted.model, wanted.setting), wanted) for wanted in besides
    ]


def _topic(wanted: Wanted) -> str:
    return "draft model" if wanted.kind is Kind.MODEL else wanted.kind


def check_part(part: Part, found: Snapshot | Finding) -> Finding:
    """Return whether a part is there, and has the files of its kind."""
    if isinstance(found, Finding):
        return replace(found, topic=part.topic, text=f"{part.name}: {found.text}")
    names = [file.name for file in (*found.weights, *found.others)]
    if part.wanted.kind is Kind.ADAPTER:
        problem = _adapter_problem(names, found)
    elif part.wanted.kind is Kind.MODEL:
        problem = "" if found.weights else "there are no weights"
        problem = found.damaged or problem
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
