"""Settings of ``worker-vllm``, each with a documented value, or one of its documented type.

They are in settings.json: "works" has a value, or a value with the path of what it changes in the
start that is read (by default vLLM's argument of that name), and perhaps the effect there. "needed"
has settings without which one of a name, or all about a subject, have no effect or are refused.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from support.tables.migration import Verdict

_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())

# Names of settings with the same meaning here, by what they are about.
WORKS: dict[str, list[str]] = {about: [*rows] for about, rows in _DATA["works"].items()}
# Read by libraries, which find them in the environment here, too.
OF_LIBRARIES: dict[str, str] = _DATA["of libraries"]
# Have no effect here without a word, as in the release of August 2026.
PASSED_OVER: dict[str, str] = _DATA["passed over"]
# Documented values that stop the start.
REFUSED = [(name, value) for name, value in _DATA["refused"]]
# Removed from vLLM, or without a meaning inside the worker: the start's log says so.
IDLE = sorted(
    [*((name, "1") for name in _DATA["no effect"]), *_DATA["no effect, with a value"].items()]
)
# What the hub's form writes into each new endpoint, whether or not it was touched, and what of it
# has no effect here.
FORMS = {
    name: _DATA["forms"]["both"] | form for name, form in _DATA["forms"].items() if name != "both"
}
FORMS_IDLE = set(_DATA["no effect in a form"])


class Working(NamedTuple):
    """A setting as it is tried: where its effect is seen, and the settings that it needs."""

    name: str
    value: str
    path: str
    effect: Any
    needed: Mapping[str, str]


def _working() -> Iterator[Working]:
    needed = _DATA["needed"]
    for about, rows in _DATA["works"].items():
        for name, row in rows.items():
            value, path, effect = _row(name, row)
            beside = needed.get(name, needed.get(about, {}))
            yield Working(name, value, path, effect, beside)


def _row(name: str, row: Any) -> tuple[str, str, Any]:
    value, path, *effect = row if isinstance(row, list) else (row, f"vllm.{name.lower()}")
    if value == "<plugin>":  # any file that is there
        value = __file__
    return value if isinstance(value, str) else json.dumps(value), path, *(effect or [value])


WORKING = [*_working()]


class Different(NamedTuple):
    """A setting that is accepted, and what differs.

    Attributes:
        differs: for the page.
        settings: what is set.
        effects: paths in the start that was read, with the values that ``differs`` says.
    """

    name: str
    differs: str
    settings: Mapping[str, str]
    effects: Mapping[str, Any]


DIFFERENT = [Different(**row) for row in _DATA["differs"]]


class BuildArgument(NamedTuple):
    """An argument of ``docker build``; with a default, where it has another one here."""

    name: str
    verdict: Verdict
    differs: str
    default: str | None


BUILD = [
    BuildArgument(name, Verdict(verdict), differs, default)
    for name, verdict, differs, default in _DATA["build arguments"]
]
