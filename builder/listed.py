"""What listings say of a setting besides its meaning: type, choices and default."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from table import ROWS, Row

from worker.engine.machine import Gpu, Machine
from worker.engine.options import IDLE, NEEDS, Options
from worker.engine.options.automatic import GPU_SHARE, automatic
from worker.engine.options.option import Option
from worker.errors import SettingsError
from worker.settings import Settings
from worker.settings.names import ALIASES, OPPOSITES
from worker.settings.values import text

# What listings are made for, wherever they are made: they show nothing of this machine.
GPU = Gpu("", 0)
WORKERS = Machine(cpu=False, gpus=(GPU,))

# Texts that one option or another refuses. Whether an option can refuse any is known by trying:
# the parser's conversions may be any function.
PROBES = ("nonsense", "{", "[", "-1", "a=b,c", "/no/such/file.py")

_KINDS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", Path: "path"}
# A model that no check looks up.
_MODEL = "org/name"


@dataclass(frozen=True)
class Listed:
    """A setting as listings show it; ``row`` where the table explains it."""

    name: str
    kind: str
    default: str
    choices: tuple[str, ...] = ()
    row: Row | None = None


class Catalogue:
    """All settings of the worker and of the installed vLLM."""

    def __init__(self, on: Machine = WORKERS) -> None:
        self.options = Options(on)
        self._chosen = {choice.name: choice.value for choice in automatic({}, WORKERS, GPU_SHARE)}
        several = Machine(cpu=False, gpus=(GPU, GPU))
        self._by_gpus = {choice.name for choice in automatic({}, several, GPU_SHARE)}

    def explained(self) -> Iterator[Listed]:
        """Yield what the table has, in its order."""
        fields = {name.upper(): field for name, field in Settings.model_fields.items()}
        for row in ROWS:
            if row.name in fields:
                yield _own(row, fields[row.name])
            elif row.name in ALIASES:
                option = self._option(ALIASES[row.name])
                yield replace(option, name=row.name, row=row)
            elif row.name in self.options.names:
                yield replace(self._option(row.name), row=row)
            else:
                yield Listed(row.name, "", "", row=row)

    def others(self) -> Iterator[tuple[str, Listed]]:
        """Yield the options that the table leaves to vLLM's documentation, by their group."""
        told = {row.name for row in ROWS} | set(ALIASES.values()) | OPPOSITES.keys()
        for name in sorted(self.options.names - told):
            if name.lower() not in IDLE:
                config = self.options[name].config
                yield config.__name__ if config else "", self._option(name)

    def left_open(self) -> set[str]:
        """Find the options that are better left unset than set to their default.

        What the worker would choose by its GPUs is not chosen then; others need a further option.
        """
        return self._by_gpus | NEEDS.keys()

    def mistakes(self, name: str, value: str, **beside: str) -> list[str]:
        """Try a value, alone or beside other options; return what is said of it."""
        try:
            self.options.parse({"MODEL": _MODEL, **beside, name: value})
        except SettingsError as refused:
            return [str(mistake) for mistake in refused.mistakes]
        return []

    def refused(self, name: str) -> str | None:
        """Find a text that an option refuses; none, if it takes any."""
        return next((probe for probe in PROBES if self.mistakes(name, probe)), None)

    def _option(self, name: str) -> Listed:
        option = self.options[name]
        kind = "any text" if _is_open(option) and not self.refused(name) else option.kind
        default = self._chosen.get(name, "" if name in self._by_gpus else option.default)
        return Listed(name, kind, default, option.choices)


def _own(row: Row, field: FieldInfo) -> Listed:
    kind = _KINDS.get(field.annotation, "text")
    default = "" if field.is_required() else text(field.default)
    return Listed(row.name, kind, default, row=row)


def _is_open(option: Option) -> bool:
    return option.kind == "text" and not option.choices
