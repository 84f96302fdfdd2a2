"""What an engine loads beside its model: adapters, and a tokenizer that is not the model's own."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from worker.doctor.findings import Finding, Level
from worker.engine.adapter_files import CONFIG, WEIGHTS
from worker.store import Origin, Snapshot, Wanted

# What names of a tokenizer's files have in them, and how those end that have not.
_TOKENIZERS = ("tok", "vocab", "tekken")
_TOKENIZER_ENDINGS = (".model", ".tiktoken")

_FOUND = {
    Origin.DIRECTORY: "is a directory",
    Origin.CACHE: "is in the cache",
    Origin.DOWNLOAD: "is on the hub",
}


@dataclass(frozen=True)
class Part:
    """A tokenizer, or an adapter; ``told`` is how the settings name it."""

    topic: str
    told: str
    wanted: Wanted


def parts(arguments: Namespace, prefix: str = "") -> list[Part]:
    """Name what the engine is to load beside its model."""
    return [*_tokenizer(arguments, prefix), *_adapters(arguments)]


def judged(part: Part, found: Snapshot | Finding) -> Finding:
    """Say whether a part is there, and is what it is taken for."""
    if isinstance(found, Finding):
        return replace(found, topic=part.topic, text=f"{part.told}: {found.text}")
    names = [file.name for file in (*found.weights, *found.others)]
    lacks = _adapters_lack(names, found) if part.topic == "adapter" else _tokenizers_lack(names)
    if lacks:
        text = f"{part.told}: {lacks} in {part.wanted.model}"
        return Finding(Level.FAIL, part.topic, text, f"name another {part.topic}")
    return Finding(Level.OK, part.topic, f"{part.told}: {part.wanted.model} {_FOUND[found.origin]}")


def _tokenizer(arguments: Namespace, prefix: str) -> Iterator[Part]:
    name = arguments.tokenizer
    if name in (None, arguments.model) or arguments.skip_tokenizer_init:
        return
    # As vLLM, which looks for the model's revision of a tokenizer that has none of its own.
    revision = arguments.tokenizer_revision or arguments.revision
    wanted = Wanted(name, revision, "dummy", part=True)
    yield Part("tokenizer", f"{prefix}TOKENIZER_NAME", wanted)


def _adapters(arguments: Namespace) -> Iterator[Part]:
    for module in arguments.lora_modules or ():
        folder = str(Path(module.path).expanduser()) if module.path[:1] == "~" else module.path
        yield Part("adapter", module.name, Wanted(folder, part=True))


def _adapters_lack(names: list[str], found: Snapshot) -> str:
    if CONFIG not in names:
        return f"there is no {CONFIG}"
    return (found.damaged or "") if found.weights else f"there is no {WEIGHTS}"


def _tokenizers_lack(names: list[str]) -> str:
    known = any(
        name.endswith(_TOKENIZER_ENDINGS) or any(word in name for word in _TOKENIZERS)
        for name in names
    )
    return "" if known else "there are no files of a tokenizer"
