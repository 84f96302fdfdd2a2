"""Pages of the documentation: all settings, and the limits of requests."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from catalogue import REFERENCE_MACHINE, Catalogue, ListedSetting
from table import LIBRARIES, SECTIONS, row

from worker.engine.machine import Machine
from worker.engine.options.automatic import CPU_EXPORTS, TOTAL_GPU_SHARE, choose_option_defaults
from worker.engine.options.exclusions import INEFFECTIVE_OPTIONS, UNSUPPORTED_OPTIONS
from worker.limits.table import CHECKS
from worker.settings import history
from worker.settings.names import (
    CANONICAL_NAMES,
    FOREIGN_OPTIONS,
    NEGATED_NAMES,
    REMOVED_SETTINGS,
    SPECULATIVE_KEYS,
    explain_removal,
)

INTRODUCTION = Path(__file__).with_name("settings.md")
LIMITS_INTRODUCTION = Path(__file__).with_name("limits.md")

_TYPES = {
    "boolean": "boolean",
    "integer": "whole number",
    "size": "whole number, `1k`",
    "number": "number",
    "json": "JSON",
    "list": "list",
}


def build_settings_page(catalogue: Catalogue, vllm: str) -> str:
    """Return the content of ``docs/settings.md``."""
    listed = list(catalogue.table_settings())
    explained = {
        section: [setting for setting in listed if setting.row.section == section]
        for section in SECTIONS
    }
    libraries = explained.pop(LIBRARIES)
    parts = [
        INTRODUCTION.read_text().replace("{vllm}", vllm).rstrip(),
        "\n".join(_cpu_defaults()),
        *(f"## {section}\n\n{_settings_table(rows)}" for section, rows in explained.items()),
        f"## {LIBRARIES}\n\nThe worker's libraries read these variables, "
        "only from the environment.\n\n"
        + _markdown_table(
            ("name", "meaning"), ([_code(setting.name), _meaning(setting)] for setting in libraries)
        ),
        *_other_options(catalogue, vllm),
        *_other_names(),
    ]
    return "\n\n".join(parts) + "\n"


def build_limits_page() -> str:
    """Return the content of ``docs/reference/limits.md``."""
    introduction, _, notes = LIMITS_INTRODUCTION.read_text().partition("<!-- the table -->\n")
    parts = [introduction.rstrip()]
    for check in CHECKS:
        rows = (
            [" ".join(cell.split()) for cell in line.split("|")]
            for line in check.limits.strip().split("\n")
        )
        parts.append(f"## {check.name}\n\nFor {check.requests}.")
        parts.append(_markdown_table(("limit", "maximum", "setting, or remedy"), rows))
    return "\n\n".join([*parts, notes.strip()]) + "\n"


def _cpu_defaults() -> Iterator[str]:
    """Yield the lines about the defaults on a machine without a GPU."""
    yield "## Without a GPU\n"
    yield "Where the installed vLLM is its CPU build, these defaults differ:\n"
    gpu_choices = choose_option_defaults({}, REFERENCE_MACHINE, TOTAL_GPU_SHARE)
    cpu_choices = [
        choice
        for choice in choose_option_defaults({}, Machine(cpu=True), TOTAL_GPU_SHARE)
        if choice not in gpu_choices
    ]
    for name, value in (
        CPU_EXPORTS | {choice.name: choice.value for choice in cpu_choices}
    ).items():
        yield f"- `{name}={value}`"


def _settings_table(listed: Iterable[ListedSetting]) -> str:
    return _markdown_table(
        ("name", "type", "default", "meaning"),
        (
            [_code(setting.name), _type(setting), _code(setting.default), _meaning(setting)]
            for setting in listed
        ),
    )


def _other_options(catalogue: Catalogue, vllm: str) -> Iterator[str]:
    yield (
        "## All other options of vLLM\n\nThey are described in "
        f"[vLLM's documentation](https://docs.vllm.ai/en/v{vllm}/cli/serve/), "
        "by the option's configuration class."
    )
    others = sorted(
        catalogue.other_options(),
        key=lambda setting: (not setting.row.section, setting.row.section),
    )
    for section, members in groupby(others, key=lambda setting: setting.row.section):
        rows = (
            [_code(setting.name), _type(setting), _code(setting.default)] for setting in members
        )
        yield f"### {section or 'Server options'}\n\n" + _markdown_table(
            ("name", "type", "default"), rows
        )
    first = history.load_history()["added"]["options"]
    yield (
        "## In newer releases of vLLM only\n\nAn image with an older vLLM does not have these "
        "options, and logs a warning.\n\n"
        + _markdown_table(
            ("name", "since"), ([_code(name), f"vLLM {first[name]}"] for name in sorted(first))
        )
    )


def _other_names() -> Iterator[str]:
    # Names that vLLM has dropped, but that the worker still reads.
    read = {
        *CANONICAL_NAMES,
        *CANONICAL_NAMES.values(),
        *NEGATED_NAMES.values(),
        *SPECULATIVE_KEYS,
    }
    names = sorted(
        (history.load_history()["removed"]["options"].keys() | REMOVED_SETTINGS.keys()) - read
    )
    removed = [[_code(name), reason] for name in names if (reason := explain_removal(name))]
    yield "## Other spellings\n\n" + _markdown_table(("name", "is read as"), _spellings())
    yield (
        "## Without effect\n\nIf one of these is set, the worker logs a warning.\n\n"
        + _markdown_table(("name", "reason, and alternative"), removed)
    )
    idle = {
        name.upper(): reason
        for name, reason in sorted((UNSUPPORTED_OPTIONS | INEFFECTIVE_OPTIONS).items())
    }
    unsupported = [[_code(name), reason] for name, reason in idle.items() if not row(name)]
    others = ", ".join(_code(name) for name in sorted(FOREIGN_OPTIONS))
    yield (
        "## Unsupported\n\nOptions of vLLM's server that do nothing in a worker. "
        "Variables that other programs may have set are ignored silently: "
        f"{others}.\n\n" + _markdown_table(("name", "reason"), unsupported)
    )


def _spellings() -> Iterator[list[str]]:
    for name, canonical in sorted(CANONICAL_NAMES.items()):
        yield [_code(name), _code(canonical)]
    for name, canonical in sorted(NEGATED_NAMES.items()):
        yield [_code(name), f"the opposite of {_code(canonical)}"]
    for name, key in sorted(SPECULATIVE_KEYS.items()):
        yield [_code(name), f"{_code(key)} in `SPECULATIVE_CONFIG`"]


def _type(setting: ListedSetting) -> str:
    if setting.choices:
        return ", ".join(map(_code, setting.choices))
    return _TYPES.get(setting.kind, setting.kind)


def _meaning(setting: ListedSetting) -> str:
    example = f" For example {_code(setting.row.example)}." if setting.row.example else ""
    return setting.row.meaning + example


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _markdown_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = list(headings)
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
