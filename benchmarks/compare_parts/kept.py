"""What comparisons found: kept in JSON files, which are read again and taken together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from compare_parts.figures import Arrivals, median_of

# Figures by their names, and these by what they belong to: a load, or the start.
Groups = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Round:
    """What one start of a side gave.

    Args:
        figures: of the loads, and of the start.
        phases: of the worker's start: seconds from its beginning to each one's begin and end.
        arrivals: of the tokens of one stream.
    """

    figures: Groups
    arrivals: Arrivals
    phases: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """All rounds of all sides.

    Args:
        machine: in words, for each run.
        model: the name of its directory.
        rounds: of each side.
        others: what the other benchmarks of the suite gave of the worker, for each run.
    """

    machine: list[str]
    model: str
    rounds: dict[str, list[Round]]
    others: list[Groups]

    def sides(self) -> dict[str, Groups]:
        """Return the medians of each side over all rounds."""
        found = {
            name: medians([one.figures for one in rounds]) for name, rounds in self.rounds.items()
        }
        if self.others and "worker" in found:
            found["worker"] |= medians(self.others)
        return found

    def phases(self) -> Groups:
        """Return the medians of the phases of the worker's start."""
        return medians([one.phases for one in self.rounds.get("worker", [])])

    def stream(self, side: str) -> Arrivals:
        """Return the arrivals of the stream whose time is the median of all rounds."""
        streams = sorted((one.arrivals for one in self.rounds[side]), key=lambda one: one[-1][0])
        return streams[len(streams) // 2]


FILE = TypeAdapter(Comparison)


def medians(rounds: Sequence[Groups]) -> Groups:
    """Return the medians over rounds, of the groups that all of them have."""
    everywhere = set.intersection(*map(set, rounds)) if rounds else set()
    names = [name for name in (rounds[0] if rounds else {}) if name in everywhere]
    return {name: median_of([one[name] for one in rounds]) for name in names}


def read(files: Sequence[Path]) -> Comparison:
    """Read the files of runs with the same model, and take all their rounds together.

    Raises:
        ValueError: they are of different models, or a file is something else.
    """
    runs = [FILE.validate_json(file.read_bytes()) for file in files]
    if len({run.model for run in runs}) > 1:
        raise ValueError("these runs are of different models")
    return Comparison(
        machine=[words for run in runs for words in run.machine],
        model=runs[0].model,
        rounds=_joined([run.rounds for run in runs]),
        others=[groups for run in runs for groups in run.others],
    )


def _joined(runs: Sequence[Mapping[str, list[Round]]]) -> dict[str, list[Round]]:
    sides = {side: None for run in runs for side in run}
    return {side: [one for run in runs for one in run.get(side, [])] for side in sides}
