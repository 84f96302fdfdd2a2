"""The report of a scenario: its figures, the violations, and the missed goals."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

# Number of violations that are printed; the others are counted.
MAX_PRINTED = 20


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def describe_machine() -> str:
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share (0 to 1) of the values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass
class Report:
    """The report of one scenario.

    Violations (``broken``) are wrong behaviour; missed goals are slow behaviour.
    """

    scenario: str
    figures: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def check(self, is_ok: object, problem: str) -> None:
        if not is_ok:
            self.broken.append(problem)

    def add_goal(self, title: str, values: Sequence[float], share: float, limit: float) -> None:
        """Add a figure in milliseconds from values in seconds, and compare it with its limit."""
        value = percentile(values, share)
        name = f"{title} p50 {1000 * percentile(values, 0.5):.0f} p99"
        self.figures.append(f"{name} {1000 * percentile(values, 0.99):.0f} ms")
        if value > limit:
            self.missed.append(f"{title}: {1000 * value:.0f} ms, not {1000 * limit:.0f}")

    @property
    def is_good(self) -> bool:
        return not self.broken and not self.missed

    def print(self) -> None:
        for line in self.broken[:MAX_PRINTED]:
            print_line(f"  broken: {line}")
        if (more := len(self.broken) - MAX_PRINTED) > 0:
            print_line(f"  broken: {more} more")
        for line in self.missed:
            print_line(f"  missed: {line}")
        verdict = (
            "good" if self.is_good else f"{len(self.broken)} broken, {len(self.missed)} missed"
        )
        print_line(f"{self.scenario}: {'; '.join(self.figures)}: {verdict}")
