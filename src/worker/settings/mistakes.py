"""Mistakes in settings, which are collected and then reported together."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from worker.errors import StartFailed


@dataclass(frozen=True)
class Mistake:
    """A wrong setting; ``advice`` is the reason and the accepted values.

    ``value`` is masked if it is a secret, and None if the setting is missing.
    """

    name: str
    value: str | None
    advice: str
    example: str | None = None

    def __str__(self) -> str:
        state = "is not set" if self.value is None else f"= {self.value!r}"
        # Another example would contradict a suggestion.
        has_example = self.example and not self.advice.startswith("did you mean")
        suggestion = f", for example {self.name}={self.example}" if has_example else ""
        return f"{self.name} {state}: {self.advice}{suggestion}"


class SettingsError(StartFailed):
    """The worker can't start because of wrong settings; the message lists all mistakes.

    ``warnings`` are about settings without effect, which may be related to a mistake.
    """

    def __init__(self, mistakes: list[Mistake], warnings: Sequence[str] = ()) -> None:
        self.mistakes = sorted(mistakes, key=str)
        self.warnings = tuple(warnings)
        count = "1 setting is" if len(mistakes) == 1 else f"{len(mistakes)} settings are"
        lines = [f"{count} wrong, so the worker does not start:", *map(str, self.mistakes)]
        if warnings:
            lines += ["\nWarnings:", *warnings]
        super().__init__("\n  ".join(lines).replace("\n  \n", "\n"))


@contextlib.contextmanager
def collect_mistakes(mistakes: list[Mistake]) -> Iterator[None]:
    """Catch a ``SettingsError`` of the block and add its mistakes to the list."""
    try:
        yield
    except SettingsError as error:
        mistakes += error.mistakes
