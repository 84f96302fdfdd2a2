"""What a scenario showed: its figures, what was broken, and the goals that were missed."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

# Lines of what was broken that are printed; the rest is counted.
_SHOWN = 20


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def machine() -> str:
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share (0 to 1) of the values does not exceed; 0 if there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass
class Report:
    """One scenario's: it holds if nothing was broken; a missed goal is a matter of speed."""

    scenario: str
    figures: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def check(self, holds: object, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)

    def goal(self, what: str, values: Sequence[float], share: float, most: float) -> None:
        """Add a figure in milliseconds, from seconds, and compare it with its goal."""
        value = percentile(values, share)
        name = f"{what} p50 {1000 * percentile(values, 0.5):.0f} p99"
        self.figures.append(f"{name} {1000 * percentile(values, 0.99):.0f} ms")
        if value > most:
            self.missed.append(f"{what}: {1000 * value:.0f} ms, not {1000 * most:.0f}")

    @property
    def good(self) -> bool:
        return not self.broken and not self.missed

    def print(self) -> None:
        for line in self.broken[:_SHOWN]:
            print_line(f"  broken: {line}")
        if (more := len(self.broken) - _SHOWN) > 0:
            print_line(f"  broken: {more} more")
        for line in self.missed:
            print_line(f"  missed: {line}")
        verdict = "good" if self.good else f"{len(self.broken)} broken, {len(self.missed)} missed"
        print_line(f"{self.scenario}: {'; '.join(self.figures)}: {verdict}")
