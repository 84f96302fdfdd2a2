"""Settings of ``worker-vllm``, each with a documented value, or a value of its documented type.

They are in settings.json. A row of "works" has a value, or a list: a value, the path of the changed
value in the plan of the startup (vLLM's argument of that name by default), and the changed value if
it differs. "needed" has settings without which a setting, or all settings of a subject, have no
effect or are refused.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from support.tables.migration import Verdict

_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())

# Settings that libraries read from the environment.
LIBRARY_SETTINGS: dict[str, str] = _DATA["library variables"]
# Settings that have no effect and cause no warning, as in the release of August 2026.
IGNORED: dict[str, str] = _DATA["ignored"]
# Documented values that prevent a startup.
REFUSED = [(name, value) for name, value in _DATA["refused"]]
# Settings that vLLM has removed, or that have no meaning in the worker: they cause a warning.
IDLE = sorted(
    [*((name, "1") for name in _DATA["no effect"]), *_DATA["no effect, with a value"].items()]
)
# Settings that the hub's form sets in each new endpoint, even if the user does not change them; and
# those of them that have no effect here.
FORMS = {
    name: _DATA["forms"]["both"] | form for name, form in _DATA["forms"].items() if name != "both"
}
FORMS_IDLE = set(_DATA["no effect in a form"])


class WorkingSetting(NamedTuple):
    """A setting with a value, where its effect is visible, and the settings that it needs."""

    name: str
    value: str
    path: str
    effect: Any
    needed: Mapping[str, str]


def _read_working() -> Iterator[WorkingSetting]:
    needed = _DATA["needed"]
    for about, rows in _DATA["works"].items():
        for name, row in rows.items():
            value, path, effect = _row(name, row)
            beside = needed.get(name, needed.get(about, {}))
            yield WorkingSetting(name, value, path, effect, beside)


def _row(name: str, row: Any) -> tuple[str, str, Any]:
    value, path, *effect = row if isinstance(row, list) else (row, f"vllm.{name.lower()}")
    if value == "<plugin>":  # any existing file
        value = __file__
    return value if isinstance(value, str) else json.dumps(value), path, *(effect or [value])


WORKING_SETTINGS = [*_read_working()]


class DifferentSetting(NamedTuple):
    """A setting that is accepted, and how it differs.

    Attributes:
        differs: The difference, for the page.
        settings: The settings to test.
        effects: Values by their paths in the plan of the startup, as ``differs`` says.
    """

    name: str
    differs: str
    settings: Mapping[str, str]
    effects: Mapping[str, Any]


DIFFERENT_SETTINGS = [DifferentSetting(**row) for row in _DATA["differs"]]


class BuildArgument(NamedTuple):
    """An argument of ``docker build``, with its default if that differs here."""

    name: str
    verdict: Verdict
    differs: str
    default: str | None


BUILD = [
    BuildArgument(name, Verdict(verdict), differs, default)
    for name, verdict, differs, default in _DATA["build arguments"]
]
