"""All settings as listings show them: rows of the table with types, choices and defaults."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from table import ROWS, Row

from worker.engine.machine import Gpu, Machine
from worker.engine.options import INEFFECTIVE_OPTIONS, PREREQUISITES, Options
from worker.engine.options.automatic import TOTAL_GPU_SHARE, choose_option_defaults
from worker.engine.start.tables import find_option_mistakes
from worker.settings import Concurrency, Settings
from worker.settings.names import NEGATED_NAMES, OPTION_BY_SETTING
from worker.settings.values import format_value

# The listings are made for this machine, so that they don't depend on the machine they are made on.
GPU = Gpu("", 0)
REFERENCE_MACHINE = Machine(cpu=False, gpus=(GPU,))

# Values that most options refuse. The parser's conversions may be any function, so only a trial
# shows whether an option refuses a value.
PROBES = ("nonsense", "{", "[", "-1", "a=b,c", "/no/such/file.py")

_KINDS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", Path: "path"}
_KINDS |= {str: "text", SecretStr: "text"}
_KINDS[get_args(Concurrency)[0]] = "whole number, `auto`"
# A model that the checks do not look up.
_MODEL = "org/name"


@dataclass(frozen=True)
class ListedSetting:
    """A setting as listings show it.

    An option that the table leaves to vLLM's documentation has a ``row`` without a meaning; the
    section
    of that row is the option's class in vLLM's configuration.
    """

    row: Row
    kind: str = ""
    default: str = ""
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.row.name


class Catalogue:
    """All settings of the worker and of the installed vLLM."""

    def __init__(self, machine: Machine = REFERENCE_MACHINE) -> None:
        self.options = Options(machine)
        self._chosen = {
            choice.name: choice.value
            for choice in choose_option_defaults({}, REFERENCE_MACHINE, TOTAL_GPU_SHARE)
        }
        two_gpus = Machine(cpu=False, gpus=(GPU, GPU))
        self._gpu_dependent = {
            choice.name for choice in choose_option_defaults({}, two_gpus, TOTAL_GPU_SHARE)
        }

    def table_settings(self) -> Iterator[ListedSetting]:
        """Yield the settings of the table, in its order."""
        fields = {name.upper(): field for name, field in Settings.model_fields.items()}
        for row in ROWS:
            option = OPTION_BY_SETTING.get(row.name, row.name)
            if row.name in fields:
                yield list_own_setting(row, fields[row.name])
            elif option in self.options.names:
                yield self._option(option, row)
            else:
                yield ListedSetting(row)

    def other_options(self) -> Iterator[ListedSetting]:
        """Yield the options that the table leaves to vLLM's documentation."""
        explained_names = (
            {row.name for row in ROWS} | set(OPTION_BY_SETTING.values()) | NEGATED_NAMES.keys()
        )
        for name in sorted(self.options.names - explained_names):
            if name.lower() not in INEFFECTIVE_OPTIONS:
                config = self.options[name].config
                section = config.__name__ if config else ""
                yield self._option(name, Row(name, name, "", section=section))

    def options_to_leave_unset(self) -> set[str]:
        """Return the options that a form must leave unset instead of setting them to their default.

        If they are set, the worker does not choose them by its GPUs, or they need another option.
        """
        return self._gpu_dependent | PREREQUISITES.keys()

    def find_mistakes(self, name: str, value: str, **others: str) -> list[str]:
        """Return the messages about an option's value, set alone or together with others."""
        arguments, mistakes = self.options.parse_engine_settings(
            {"MODEL": _MODEL, **others, name: value}
        )
        mistakes += find_option_mistakes(arguments, self.options.machine)
        return [str(mistake) for mistake in mistakes]

    def find_refused_value(self, name: str) -> str | None:
        """Return a value that an option refuses, or None if it accepts all tried values."""
        return next((probe for probe in PROBES if self.find_mistakes(name, probe)), None)

    def _option(self, name: str, row: Row) -> ListedSetting:
        option = self.options[name]
        is_open = option.kind == "text" and not option.choices
        kind = "any text" if is_open and not self.find_refused_value(name) else option.kind
        default = self._chosen.get(name, "" if name in self._gpu_dependent else option.default)
        return ListedSetting(row, kind, default, option.choices)


def list_own_setting(row: Row, field: FieldInfo) -> ListedSetting:
    """Return a setting of the worker's own as listings show it.

    Raises:
        TypeError: The listings don't know the setting's type.
    """
    annotation = without_none(field).annotation
    origin, default = get_origin(annotation), "" if field.is_required() else field.default
    if origin is Literal:
        return ListedSetting(row, "text", format_value(default), get_args(annotation))
    kind = "list" if origin is tuple else _KINDS.get(annotation)
    if kind is None:
        raise TypeError(
            f"{row.name}: the listings don't know the type {annotation}: add it to _KINDS in "
            "builder/catalogue.py, or use a type that is there"
        )
    return ListedSetting(row, kind, format_value(default))


def without_none(field: FieldInfo) -> FieldInfo:
    """Return a field without None as an alternative, with the constraints of its type."""
    members = [member for member in get_args(field.annotation) if member is not NoneType]
    if len(members) != 1 or get_origin(field.annotation) not in {Union, UnionType}:
        return field
    inner = FieldInfo.from_annotation(members[0])
    inner.metadata += field.metadata
    return inner
