"""Tables of figures: a column for each side, and the worker's ratio to vLLM's server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Side = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        title: Title of the row.
        load: Name of the load or group with the figure.
        figure: Name of the figure.
        max_ratio: Maximum of the worker's figure relative to vLLM's server.
        min_ratio: Minimum of the worker's figure relative to vLLM's server.
        max_value: Maximum of the worker's figure, independent of the server.
        digits: Number of decimal places.
    """

    title: str
    load: str
    figure: str
    max_ratio: float | None = None
    min_ratio: float | None = None
    max_value: float | None = None
    digits: int = 1

    def goal(self) -> str:
        if self.max_ratio is not None:
            return f"<= {self.max_ratio} x"
        if self.min_ratio is not None:
            return f">= {self.min_ratio} x"
        return f"<= {self.max_value:g}" if self.max_value is not None else ""

    def is_met(self, ours: float, server: float | None) -> bool | None:
        """Return whether the goal is met; None without a goal or without a figure of the server."""
        if self.max_value is not None:
            return ours <= self.max_value
        if not server:
            return None
        if self.max_ratio is not None:
            return ours / server <= self.max_ratio
        return None if self.min_ratio is None else ours / server >= self.min_ratio


def table(
    rows: Sequence[Row],
    sides: Mapping[str, Side],
    rounds: Mapping[str, Sequence[Side]] | None = None,
) -> str:
    """Return the rows that have figures as Markdown, with the worker's ratio to vLLM's server.

    If a row has a goal, the last column has the goals.

    Args:
        rows: The rows of the table.
        sides: The groups of figures of each side, in the order of the columns.
        rounds: The groups of each round of each side, whose figures the cells list in place of
            those of ``sides``.
    """
    names = list(sides)
    has_goals = any(row.goal() for row in rows)
    heads = ["", *(f"{name:>9}" for name in names), f"{'ratio':>6}", "goal"]
    lines = [heads, ["---", *["---:"] * len(names), "---:", "---"]]
    for row in rows:
        values = {name: sides[name].get(row.load, {}).get(row.figure) for name in names}
        if any(value is not None for value in values.values()):
            cells = [_cell(row, rounds[name] if rounds else [sides[name]]) for name in names]
            lines.append([row.title, *cells, *_verdict(row, values)])
    columns = len(heads) if has_goals else len(heads) - 1
    return "\n".join(_line(cells[:columns]) for cells in lines)


def _line(cells: Sequence[str]) -> str:
    title, *others = cells
    return f"| {title:48} | {' | '.join(others)} |"


def _cell(row: Row, rounds: Sequence[Side]) -> str:
    values = [each[row.load][row.figure] for each in rounds if row.figure in each.get(row.load, ())]
    return f"{', '.join(format_figure(value, row.digits) for value in values):>9}"


def format_figure(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def _verdict(row: Row, values: Mapping[str, float | None]) -> tuple[str, str]:
    """Return the ratio, and the goal with whether it is met."""
    ours, server = values.get("worker"), values.get("server")
    if ours is None:
        return f"{'':6}", row.goal()
    ratio = f"{ours / server:5.2f}x" if server else f"{'':6}"
    verdict = {True: ": met", False: ": missed", None: ""}[row.is_met(ours, server)]
    return ratio, f"{row.goal()}{verdict}"
