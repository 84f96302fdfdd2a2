"""Pages of the documentation: all settings, and the limits of requests."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from catalogue import REFERENCE_MACHINE, Catalogue, ListedSetting
from table import LIBRARIES, SECTIONS, row

from worker.engine.machine import Machine
from worker.engine.options import INEFFECTIVE_OPTIONS, UNSUPPORTED_OPTIONS
from worker.engine.options.automatic import CPU_EXPORTS, TOTAL_GPU_SHARE, choose_option_defaults
from worker.limits.table import LIMITS
from worker.settings import history
from worker.settings.names import (
    CANONICAL_NAMES,
    FOREIGN_OPTIONS,
    NEGATED_NAMES,
    REMOVED_SETTINGS,
    SPECULATIVE_KEYS,
)

INTRODUCTION = Path(__file__).with_name("settings.md")
LIMITS_INTRODUCTION = Path(__file__).with_name("limits.md")

_TYPES = {
    "boolean": "boolean",
    "integer": "integer",
    "size": "integer, `1k`",
    "number": "number",
    "json": "JSON",
    "list": "list",
}
# Longer lists of accepted values are folded, at the end of the page.
MAX_LISTED_VALUES = 6
LONG_LISTS = "Long lists of values"


def build_settings_page(catalogue: Catalogue, vllm: str) -> str:
    """Return the content of ``docs/settings.md``."""
    listed = list(catalogue.table_settings())
    explained = {
        section: [setting for setting in listed if setting.row.section == section]
        for section in SECTIONS
    }
    introduction = INTRODUCTION.read_text().replace("{vllm}", vllm).rstrip()
    contents = " · ".join(f"[{section}](#{_anchor(section)})" for section in SECTIONS)
    libraries = explained.pop(LIBRARIES)
    others = sorted(
        catalogue.other_options(),
        key=lambda setting: (not setting.row.section, setting.row.section),
    )
    parts = [
        introduction.replace("{contents}", contents),
        *(f"## {section}\n\n{_settings_table(rows)}" for section, rows in explained.items()),
        f"## {LIBRARIES}\n\nThe worker's libraries read these variables, "
        "only from the environment.\n\n"
        + markdown_table(
            ("name", "meaning"), ([_code(setting.name), _meaning(setting)] for setting in libraries)
        ),
        *_other_options(others, vllm),
        _newer_options(),
        _long_lists([*listed, *others]),
        *_other_names(),
        "\n".join(_cpu_defaults()),
    ]
    return "\n\n".join(parts) + "\n"


def build_limits_page() -> str:
    """Return the content of ``docs/reference/limits.md``."""
    introduction, _, notes = LIMITS_INTRODUCTION.read_text().partition("<!-- the table -->\n")
    parts = [introduction.rstrip()]
    for limit in LIMITS:
        parts.append(f"## {limit.name}\n\n{limit.harm}")
        parts.append(markdown_table(("limit", "maximum", "remedy"), limit.lines))
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
    return markdown_table(
        ("name", "values", "meaning"),
        ([_code(setting.name), _values(setting), _meaning(setting)] for setting in listed),
    )


def _other_options(others: Iterable[ListedSetting], vllm: str) -> Iterator[str]:
    yield (
        "## All other options of vLLM\n\nBy the option's configuration class, as in "
        f"[vLLM's documentation](https://docs.vllm.ai/en/v{vllm}/cli/serve/), "
        "which describes them."
    )
    for section, members in groupby(others, key=lambda setting: setting.row.section):
        rows = [[_code(setting.name), _values(setting)] for setting in members]
        table = markdown_table(("name", "values"), rows)
        yield fold(f"{section or 'Server options'} ({len(rows)})", table)


def _newer_options() -> str:
    added = history.load_history()["added"]["options"].items()
    names = _group((f"vLLM {release}", name) for name, release in sorted(added))
    return (
        "## In newer releases of vLLM only\n\nAn image with an older vLLM does not have these "
        "options, and logs a warning.\n\n"
        + markdown_table(("since", "names"), sorted(map(list, names.items())))
    )


def _long_lists(listed: Iterable[ListedSetting]) -> str:
    names = _group(
        (", ".join(map(_code, setting.choices)), setting.name)
        for setting in listed
        if len(setting.choices) > MAX_LISTED_VALUES
    )
    lists = [f"- {settings}: {values}" for values, settings in names.items()]
    return f"## {LONG_LISTS}\n\n" + fold(f"{len(lists)} lists", "\n".join(lists))


def _other_names() -> Iterator[str]:
    # Names that vLLM has dropped, but that the worker still reads.
    read = {
        *CANONICAL_NAMES,
        *CANONICAL_NAMES.values(),
        *NEGATED_NAMES.values(),
        *SPECULATIVE_KEYS,
    }
    removed = history.load_history()["removed"]["options"].keys() | REMOVED_SETTINGS.keys()
    reasons = {
        name: REMOVED_SETTINGS.get(name, "vLLM has removed it") for name in removed - read
    } | {
        option.upper(): reason
        for option, reason in (UNSUPPORTED_OPTIONS | INEFFECTIVE_OPTIONS).items()
        if not row(option.upper())
    }
    names = _group((reason, name) for name, reason in sorted(reasons.items()))
    silent = ", ".join(_code(name) for name in sorted(FOREIGN_OPTIONS))
    yield "## Other spellings\n\n" + fold(
        f"{len([*_spellings()])} names that the worker also reads",
        markdown_table(("name", "is read as"), _spellings()),
    )
    yield (
        "## Without effect\n\nIf one of these is set, the worker logs a warning. "
        f"It ignores {silent} silently, since other programs use these names, too.\n\n"
        + fold(
            f"{len(reasons)} settings without effect, and alternatives",
            markdown_table(("reason, or alternative", "names"), map(list, names.items())),
        )
    )


def _spellings() -> Iterator[list[str]]:
    for name, canonical in sorted(CANONICAL_NAMES.items()):
        yield [_code(name), _code(canonical)]
    for name, canonical in sorted(NEGATED_NAMES.items()):
        yield [_code(name), f"the opposite of {_code(canonical)}"]
    for name, key in sorted(SPECULATIVE_KEYS.items()):
        yield [_code(name), f"{_code(key)} in `SPECULATIVE_CONFIG`"]


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the names of each key, as code and separated by commas."""
    names: dict[str, list[str]] = {}
    for key, name in pairs:
        names.setdefault(key, []).append(_code(name))
    return {key: ", ".join(members) for key, members in names.items()}


def _values(setting: ListedSetting) -> str:
    """Return the accepted values of a setting, and its default."""
    values = ", ".join(map(_code, setting.choices)) or _TYPES.get(setting.kind, setting.kind)
    if len(setting.choices) > MAX_LISTED_VALUES:
        values = f"[{len(setting.choices)} values](#{_anchor(LONG_LISTS)})"
    return f"{values}; default {_code(setting.default)}" if setting.default else values


def _meaning(setting: ListedSetting) -> str:
    """Return a setting's meaning, with an example if its values are neither numbers nor listed."""
    example = setting.row.example
    is_listed = 0 < len(setting.choices) <= MAX_LISTED_VALUES
    if not example or example[0].isdigit() or is_listed or example == setting.default:
        return setting.row.meaning
    return f"{setting.row.meaning} For example {_code(example)}."


def fold(summary: str, text: str) -> str:
    """Return a text that GitHub and the site fold; the site's generator needs the attribute."""
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{text}\n\n</details>'


def _anchor(heading: str) -> str:
    return heading.lower().replace(",", "").replace(" ", "-")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def markdown_table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    headings = list(headings)
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
