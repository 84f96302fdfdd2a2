"""Comparisons: rounds of sides, their medians, the files that store them, and tables.

A table has a column for each side, and the worker's ratio to vLLM's server.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from proof.measure.loads import Arrivals

# Figures by name, grouped by their subject: a load, or the startup.
Groups = dict[str, dict[str, float]]


def turns(sides: Iterable[str], rounds: int, warm_ups: int = 0) -> Iterator[tuple[int, str]]:
    """Yield a round's number and a side, until each side has had its turn in all rounds.

    The order alternates because a side warms the machine up for the next one. Warm-ups have
    negative numbers.
    """
    sides = sorted(sides)
    for number in range(-warm_ups, rounds):
        for side in sides[:: -1 if number % 2 == 0 else 1]:
            yield number, side


@dataclass(frozen=True)
class Round:
    """The results of one start of a side."""

    figures: Groups  # of the loads and of the startup
    arrivals: Arrivals = field(default_factory=list)  # of the tokens of one stream
    # Those of the worker's startup: seconds from its beginning to each one's begin and end.
    phases: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """All rounds of all sides."""

    machine: list[str]  # a description for each run
    model: str  # name of its directory
    conditions: str  # which all sides share
    rounds: dict[str, list[Round]]  # of each side
    others: list[Groups]  # the worker's figures from other benchmarks, for each run

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
    found: Groups = {}
    for name in dict.fromkeys(name for groups in rounds for name in groups):
        members = [groups[name] for groups in rounds if name in groups]
        found[name] = {
            figure: statistics.median(one[figure] for one in members) for figure in members[0]
        }
    return found


def side_medians(rounds: Mapping[str, Sequence[Round]]) -> dict[str, Groups]:
    return {side: medians([each.figures for each in found]) for side, found in rounds.items()}


def median_stream(rounds: Sequence[Round]) -> Arrivals:
    """Return the arrivals of the stream whose duration is the median of all rounds."""
    arrivals = (each.arrivals for each in rounds if each.arrivals)
    streams = sorted(arrivals, key=lambda each: each[-1][0])
    return streams[len(streams) // 2]


def read(files: Sequence[Path]) -> Comparison:
    """Read the files of runs with the same model and conditions, and combine their rounds."""
    runs = [FILE_FORMAT.validate_json(file.read_bytes()) for file in files]
    if len({run.model for run in runs}) > 1:
        raise ValueError("these runs are of different models")
    if len({run.conditions for run in runs}) > 1:
        raise ValueError("these runs have different conditions")
    rounds: dict[str, list[Round]] = {}
    for run in runs:
        for side, found in run.rounds.items():
            rounds.setdefault(side, []).extend(found)
    return Comparison(
        machine=[machine for run in runs for machine in run.machine],
        model=runs[0].model,
        conditions=runs[0].conditions,
        rounds=rounds,
        others=[groups for run in runs for groups in run.others],
    )


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    title: str
    load: str  # name of the load or group with the figure
    figure: str  # its name
    max_ratio: float | None = None  # of the worker's figure to that of vLLM's server
    min_ratio: float | None = None
    max_value: float | None = None  # of the worker's figure, independent of the server
    digits: int = 1  # decimal places

    def goal(self) -> str:
        if self.max_ratio is not None:
            return f"<= {self.max_ratio} x"
        if self.min_ratio is not None:
            return f">= {self.min_ratio} x"
        return f"<= {self.max_value:g}" if self.max_value is not None else ""

    def verdict(self, ours: float | None, server: float | None) -> tuple[str, str]:
        """Return the cells of the ratio, and of the goal with whether it is met."""
        if ours is None:
            return f"{'':6}", self.goal()
        ratio = ours / server if server else None
        is_met = None
        if self.max_value is not None:
            is_met = ours <= self.max_value
        elif ratio is not None and self.max_ratio is not None:
            is_met = ratio <= self.max_ratio
        elif ratio is not None and self.min_ratio is not None:
            is_met = ratio >= self.min_ratio
        ending = {True: ": met", False: ": missed", None: ""}[is_met]
        return f"{'':6}" if ratio is None else f"{ratio:5.2f}x", f"{self.goal()}{ending}"


def table(
    rows: Sequence[Row],
    sides: Mapping[str, Groups],
    rounds: Mapping[str, Sequence[Groups]] | None = None,
) -> str:
    """Return the rows that have figures as Markdown, with the worker's ratio to vLLM's server.

    The columns have the order of ``sides``; a last one has the goals, if there are any. With
    ``rounds``, the cells list the figures of each round in place of those of ``sides``.
    """
    lines = [["", *(f"{name:>9}" for name in sides), f"{'ratio':>6}", "goal"]]
    lines.append(["---", *["---:"] * len(sides), "---:", "---"])
    for row in rows:
        values = {name: groups.get(row.load, {}).get(row.figure) for name, groups in sides.items()}
        if all(value is None for value in values.values()):
            continue
        cells = []
        for name, groups in sides.items():
            listed = [each.get(row.load, {}) for each in (rounds[name] if rounds else [groups])]
            figures = [each[row.figure] for each in listed if row.figure in each]
            cells.append(f"{', '.join(format_figure(each, row.digits) for each in figures):>9}")
        verdict = row.verdict(values.get("worker"), values.get("server"))
        lines.append([row.title, *cells, *verdict])
    columns = len(sides) + (3 if any(row.goal() for row in rows) else 2)
    return "\n".join(
        f"| {title:48} | {' | '.join(cells[: columns - 1])} |" for title, *cells in lines
    )


def format_figure(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"
