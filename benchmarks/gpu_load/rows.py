"""The table: a row for each load, and in each cell the figures of all sides."""

from collections.abc import Iterable, Mapping

from gpu_load.loads import LOADS
from proof.measure.comparison import Groups

# Titles of the columns, with the name of a figure and its number of decimal places.
COLUMNS = {
    "tokens/s": ("tokens_per_s", 0),
    "pace": ("pace", 2),
    "first token p50, ms": ("first_p50", 0),
    "gap between tokens p99, ms": ("gap_p99", 0),
    "CPU cores of the front": ("front_cores", 2),
    "core without requests, ms/s": ("core_idle_ms", 1),
}

# Figures that whole answers don't have.
STREAMED = {"pace", "first_p50", "gap_p99"}


def table(sides: Mapping[str, Groups]) -> str:
    """Return the table as Markdown."""
    loads = [name for name in LOADS if all(name in groups for groups in sides.values())]
    lines = [_line("streams", COLUMNS), _line("---", ["---"] * len(COLUMNS))]
    lines += [
        _line(name, [_cell(sides, name, *column) for column in COLUMNS.values()]) for name in loads
    ]
    return "\n".join([*lines, "", f"Each cell: {' / '.join(sides)}."])


def _line(title: str, cells: Iterable[str]) -> str:
    return f"| {title:22} | {' | '.join(cells)} |"


def _cell(sides: Mapping[str, Groups], load: str, figure: str, digits: int) -> str:
    """Return a figure of each side, or nothing if the load has no such figure."""
    streams, calls_tool = LOADS[load].stream, LOADS[load].calls_tool
    if figure in STREAMED and not streams:
        return ""
    if figure == "tokens_per_s" and (calls_tool or not streams):
        # The callers count no tokens of whole answers, and only a part of those of a tool's call.
        figure = "core_tokens_per_s"
    return " / ".join(f"{groups[load][figure]:,.{digits}f}" for groups in sides.values())
