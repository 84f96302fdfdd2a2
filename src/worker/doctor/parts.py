"""What an engine loads beside its model: adapters, and a tokenizer that is not the model's own."""

from dataclasses import dataclass, replace

from worker.doctor.findings import Finding, Level
from worker.engine.adapters.files import CONFIG, WEIGHTS
from worker.engine.arguments import EngineArguments
from worker.start.needs import wanted_by_arguments
from worker.store import Kind, Origin, Snapshot, Wanted
from worker.store.files import loadable


@dataclass(frozen=True)
class Part:
    """A tokenizer, or an adapter; ``told`` is how the settings name it."""

    topic: str
    told: str
    wanted: Wanted


def parts(arguments: EngineArguments) -> list[Part]:
    """Name what the engine is to load beside its model."""
    names = {module.path: module.name for module in arguments.vllm.lora_modules or ()}
    return [
        Part(each.kind, names.get(each.model, each.setting), each)
        for each in wanted_by_arguments(arguments)
        if each.kind is not Kind.MODEL
    ]


def judged(part: Part, found: Snapshot | Finding) -> Finding:
    """Say whether a part is there, and is what it is taken for."""
    if isinstance(found, Finding):
        return replace(found, topic=part.topic, text=f"{part.told}: {found.text}")
    names = [file.name for file in (*found.weights, *found.others)]
    if part.wanted.kind is Kind.ADAPTER:
        lacks = _adapters_lack(names, found)
    else:
        lacks = "" if loadable(names, part.wanted) else "there are no files of a tokenizer"
    if lacks:
        text = f"{part.told}: {lacks} in {part.wanted.model}"
        return Finding(Level.FAIL, part.topic, text, f"name another {part.topic}")
    origin = found.origin
    where = {Origin.DIRECTORY: "is a directory", Origin.DOWNLOAD: "is on the hub"}.get(
        origin, f"is there (from the {origin})"
    )
    return Finding(Level.OK, part.topic, f"{part.told}: {part.wanted.model} {where}")


def _adapters_lack(names: list[str], found: Snapshot) -> str:
    if CONFIG not in names:
        return f"there is no {CONFIG}"
    return (found.damaged or "") if found.weights else f"there is no {WEIGHTS}"
