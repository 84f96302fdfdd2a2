"""All settings as listings show them: their rows of the table with type, choices and default."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from table import ROWS, Row

from worker.engine.machine import Gpu, Machine
from worker.engine.options import Options
from worker.engine.options.automatic import GPU_SHARE, automatic
from worker.engine.options.excluded import IDLE, NEEDS
from worker.engine.start.tables import mistakes_in
from worker.settings import Jobs, Settings
from worker.settings.names import ALIASES, OPPOSITES
from worker.settings.values import text

# The machine that listings are made for: they must not depend on the one they are made on.
GPU = Gpu("", 0)
WORKERS = Machine(cpu=False, gpus=(GPU,))

# Texts that most options refuse. The parser's conversions may be any function, so only trying
# shows whether an option refuses anything.
PROBES = ("nonsense", "{", "[", "-1", "a=b,c", "/no/such/file.py")

_KINDS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", Path: "path"}
_KINDS[get_args(Jobs)[0]] = "whole number, `auto`"
# A model that the checks do not look up.
_MODEL = "org/name"


@dataclass(frozen=True)
class Listed:
    """A setting as listings show it.

    ``row`` is that of the table; of an option that the table leaves to vLLM's documentation, one
    without a meaning, whose section is the option's class of vLLM's configuration.
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

    def __init__(self, on: Machine = WORKERS) -> None:
        self.options = Options(on)
        self._chosen = {choice.name: choice.value for choice in automatic({}, WORKERS, GPU_SHARE)}
        several = Machine(cpu=False, gpus=(GPU, GPU))
        self._by_gpus = {choice.name for choice in automatic({}, several, GPU_SHARE)}

    def explained(self) -> Iterator[Listed]:
        """Yield the settings that the table has, in its order."""
        fields = {name.upper(): field for name, field in Settings.model_fields.items()}
        for row in ROWS:
            option = ALIASES.get(row.name, row.name)
            if row.name in fields:
                yield own(row, fields[row.name])
            elif option in self.options.names:
                yield self._option(option, row)
            else:
                yield Listed(row)

    def others(self) -> Iterator[Listed]:
        """Yield the options that the table leaves to vLLM's documentation."""
        explained = {row.name for row in ROWS} | set(ALIASES.values()) | OPPOSITES.keys()
        for name in sorted(self.options.names - explained):
            if name.lower() not in IDLE:
                config = self.options[name].config
                section = config.__name__ if config else ""
                yield self._option(name, Row(name, section, title=name, meaning=""))

    def left_open(self) -> set[str]:
        """Return the options that a form must leave unset rather than set to their default.

        Once set, the worker does not choose them by its GPUs, or they need a further option.
        """
        return self._by_gpus | NEEDS.keys()

    def mistakes(self, name: str, value: str, **others: str) -> list[str]:
        """Return the messages about an option's value, set alone or together with others."""
        arguments, wrong = self.options.parse({"MODEL": _MODEL, **others, name: value})
        wrong += mistakes_in(arguments, self.options.machine)
        return [str(mistake) for mistake in wrong]

    def refused(self, name: str) -> str | None:
        """Return a text that an option refuses, or None if it takes all that are tried."""
        return next((probe for probe in PROBES if self.mistakes(name, probe)), None)

    def _option(self, name: str, row: Row) -> Listed:
        option = self.options[name]
        is_open = option.kind == "text" and not option.choices
        kind = "any text" if is_open and not self.refused(name) else option.kind
        default = self._chosen.get(name, "" if name in self._by_gpus else option.default)
        return Listed(row, kind, default, option.choices)


def own(row: Row, field: FieldInfo) -> Listed:
    """List a setting of the worker's own."""
    kind = _KINDS.get(field.annotation, "text")
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return Listed(row, kind, "" if field.is_required() else text(field.default), choices)
