"""Results of comparisons, stored in JSON files that can be read and combined."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from proof.measure.figures import Arrivals, median_of

# Figures by name, grouped by their subject: a load, or the startup.
Groups = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Round:
    """The results of one start of a side.

    Args:
        figures: Figures of the loads and of the startup.
        phases: Phases of the worker's startup: seconds from its beginning to each one's begin and
            end.
        arrivals: Arrivals of the tokens of one stream.
    """

    figures: Groups
    arrivals: Arrivals = field(default_factory=list)
    phases: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """All rounds of all sides.

    Args:
        machine: A description of the machine for each run.
        model: Name of the model's directory.
        conditions: Description of the conditions that all sides share.
        rounds: The rounds of each side.
        others: The figures of the worker from other benchmarks, for each run.
    """

    machine: list[str]
    model: str
    conditions: str
    rounds: dict[str, list[Round]]
    others: list[Groups]

    def sides(self) -> dict[str, Groups]:
        """Return the medians of each side over all rounds."""
        found = side_medians(self.rounds)
        if self.others and "worker" in found:
            found["worker"] |= medians(self.others)
        return found

    def phases(self) -> Groups:
        """Return the medians of the phases of the worker's startup."""
        return medians([each.phases for each in self.rounds.get("worker", [])])


FILE_FORMAT = TypeAdapter(Comparison)


def medians(rounds: Sequence[Groups]) -> Groups:
    """Return the medians of each group over the rounds that have it."""
    names = {name: None for groups in rounds for name in groups}
    return {
        name: median_of([groups[name] for groups in rounds if name in groups]) for name in names
    }


def side_medians(rounds: Mapping[str, Sequence[Round]]) -> dict[str, Groups]:
    """Return the medians of each side."""
    return {side: medians([each.figures for each in found]) for side, found in rounds.items()}


def median_stream(rounds: Sequence[Round]) -> Arrivals:
    """Return the arrivals of the stream whose duration is the median of all rounds."""
    arrivals = (each.arrivals for each in rounds if each.arrivals)
    streams = sorted(arrivals, key=lambda each: each[-1][0])
    return streams[len(streams) // 2]


def read(files: Sequence[Path]) -> Comparison:
    """Read the files of runs with the same model and conditions, and combine their rounds.

    Raises:
        ValueError: If the runs have different models or conditions, or a file is not such a file.
    """
    runs = [FILE_FORMAT.validate_json(file.read_bytes()) for file in files]
    if len({run.model for run in runs}) > 1:
        raise ValueError("these runs are of different models")
    if len({run.conditions for run in runs}) > 1:
        raise ValueError("these runs have different conditions")
    return Comparison(
        machine=[machine for run in runs for machine in run.machine],
        model=runs[0].model,
        conditions=runs[0].conditions,
        rounds=_join_rounds([run.rounds for run in runs]),
        others=[groups for run in runs for groups in run.others],
    )


def _join_rounds(runs: Sequence[Mapping[str, list[Round]]]) -> dict[str, list[Round]]:
    sides = {side: None for run in runs for side in run}
    return {side: [each for run in runs for each in run.get(side, [])] for side in sides}
