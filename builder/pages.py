"""Pages of the documentation: all settings, and all that a request may hold."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from listed import WORKERS, Catalogue, Listed
from table import LIBRARIES, SECTIONS, row

from worker.engine.machine import Machine
from worker.engine.options.automatic import CPU_EXPORTS, GPU_SHARE, automatic
from worker.engine.options.excluded import IDLE, REFUSED
from worker.limits.table import CHECKS
from worker.settings import history
from worker.settings.names import FOREIGN, OPPOSITES, REMOVED, SPECULATIVE, SPELLINGS, removed

INTRODUCTION = Path(__file__).with_name("settings.md")
OF_LIMITS = Path(__file__).with_name("limits.md")

_TYPES = {
    "boolean": "boolean",
    "integer": "whole number",
    "size": "whole number, `1k`",
    "number": "number",
    "json": "JSON",
    "list": "list",
}


def settings(catalogue: Catalogue, vllm: str) -> str:
    """Write ``docs/settings.md``."""
    listed = list(catalogue.explained())
    explained = {
        section: [setting for setting in listed if setting.row.section == section]
        for section in SECTIONS
    }
    libraries = explained.pop(LIBRARIES)
    parts = [
        INTRODUCTION.read_text().replace("{vllm}", vllm).rstrip(),
        "\n".join(_without_a_gpu()),
        *(f"## {section}\n\n{_table(rows)}" for section, rows in explained.items()),
        f"## {LIBRARIES}\n\nThe worker's libraries read these, from the environment alone.\n\n"
        + _rows(("name", "meaning"), ([_code(one.name), _meaning(one)] for one in libraries)),
        *_others(catalogue, vllm),
        *_without_effect(),
    ]
    return "\n\n".join(parts) + "\n"


def limits() -> str:
    """Write ``docs/reference/limits.md``."""
    introduction, _, notes = OF_LIMITS.read_text().partition("<!-- the table -->\n")
    parts = [introduction.rstrip()]
    for check in CHECKS:
        rows = (
            [" ".join(cell.split()) for cell in line.split("|")]
            for line in check.limits.strip().split("\n")
        )
        parts.append(f"## {check.name}\n\nFor {check.requests}.")
        parts.append(_rows(("what", "at most", "setting, or what helps"), rows))
    return "\n\n".join([*parts, notes.strip()]) + "\n"


def _without_a_gpu() -> Iterator[str]:
    """Yield the lines about the defaults on a machine without a GPU."""
    yield "## Without a GPU\n"
    yield "Where the installed vLLM is its CPU build, these defaults differ:\n"
    elsewhere = automatic({}, WORKERS, GPU_SHARE)
    here = [one for one in automatic({}, Machine(cpu=True), GPU_SHARE) if one not in elsewhere]
    for name, value in (CPU_EXPORTS | {one.name: one.value for one in here}).items():
        yield f"- `{name}={value}`"


def _table(listed: Iterable[Listed]) -> str:
    return _rows(
        ("name", "type", "default", "meaning"),
        ([_code(one.name), _type(one), _code(one.default), _meaning(one)] for one in listed),
    )


def _others(catalogue: Catalogue, vllm: str) -> Iterator[str]:
    yield (
        "## All other options of vLLM\n\nTheir meaning is in "
        f"[vLLM's documentation](https://docs.vllm.ai/en/v{vllm}/cli/serve/), "
        "by the class of its configuration that an option belongs to."
    )
    others = sorted(catalogue.others(), key=lambda one: (not one.row.section, one.row.section))
    for section, members in groupby(others, key=lambda one: one.row.section):
        rows = ([_code(one.name), _type(one), _code(one.default)] for one in members)
        yield f"### {section or 'Of the server'}\n\n" + _rows(("name", "type", "default"), rows)
    first = history.record()["added"]["options"]
    yield (
        "## In newer releases of vLLM only\n\nAn image with an older vLLM has no such options, and "
        "says so in its log.\n\n"
        + _rows(("name", "since"), ([_code(name), f"vLLM {first[name]}"] for name in sorted(first)))
    )


def _without_effect() -> Iterator[str]:
    # Names that vLLM has dropped, but that the worker still reads.
    read = {*SPELLINGS, *SPELLINGS.values(), *OPPOSITES.values(), *SPECULATIVE}
    names = sorted((history.record()["removed"]["options"].keys() | REMOVED.keys()) - read)
    gone = [[_code(name), why] for name in names if (why := removed(name))]
    yield "## Other spellings\n\n" + _rows(("name", "is read as"), _spellings())
    yield (
        "## Without effect any more\n\nA worker that is given one of these says so in its log.\n\n"
        + _rows(("name", "why, and what instead"), gone)
    )
    idle = {name.upper(): why for name, why in sorted((REFUSED | IDLE).items())}
    never = [[_code(name), why] for name, why in idle.items() if not row(name)]
    others = ", ".join(_code(name) for name in sorted(FOREIGN))
    yield (
        "## Not taken\n\nOptions that vLLM's server has, but that do nothing in a worker. "
        "Variables that others may have set for themselves are ignored silently: "
        f"{others}.\n\n" + _rows(("name", "why"), never)
    )


def _spellings() -> Iterator[list[str]]:
    for name, meant in sorted(SPELLINGS.items()):
        yield [_code(name), _code(meant)]
    for name, meant in sorted(OPPOSITES.items()):
        yield [_code(name), f"the opposite of {_code(meant)}"]
    for name, key in sorted(SPECULATIVE.items()):
        yield [_code(name), f"{_code(key)} in `SPECULATIVE_CONFIG`"]


def _type(setting: Listed) -> str:
    if setting.choices:
        return ", ".join(map(_code, setting.choices))
    return _TYPES.get(setting.kind, setting.kind)


def _meaning(setting: Listed) -> str:
    shown = f" For example {_code(setting.row.example)}." if setting.row.example else ""
    return setting.row.meaning + shown


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _rows(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
