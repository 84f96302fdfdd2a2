"""Draws the results of `compare.py`: throughput and first tokens, one stream, and the startup.

    PYTHONPATH=src:benchmarks .venv/bin/python builder/plots.py FILE [FILE ...] --output docs/plots
    PYTHONPATH=src:benchmarks .venv/bin/python builder/plots.py --load FILE [FILE ...]

With `--load` it draws the results of `gpu_load`: the pace of streams, and the CPU that they use.
The rounds of several files are combined. The pictures have a white background, so that they can be
read on light and on dark pages.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from gpu_load.loads import COUNTS, PACES, stream_load
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from proof.machine.plan import LOADS, STARTS
from proof.machine.result import Proof
from proof.measure import comparison as comparisons
from proof.measure.comparison import Comparison, Groups, median_stream
from proof.measure.loads import Arrivals

# Colours that colour-blind readers can distinguish, and markers for prints in grey.
SIDES = {
    "worker": ("this worker, whole platform included", "#0072b2", "o"),
    "server": ("vLLM's server, no platform", "#d55e00", "s"),
    "rust": ("vLLM's front end in Rust, no platform", "#009e73", "D"),
    "bare": ("bare engine, in its own process", "#767676", "^"),
}
PHASES = ("#8cc4e8", "#c9e3f4")  # alternating
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Bar:
    """A start: its label, its side, its seconds, and its phases if they are known."""

    label: str
    side: str
    seconds: float
    phases: Groups = field(default_factory=dict)


def concurrency(sides: Mapping[str, Groups], loads: Mapping[int, str]) -> Figure:
    """Draw tokens per second and the time to the first token, by the number of callers."""
    figure = Figure(figsize=(8, 3.5))
    rates, firsts = figure.subplots(1, 2)
    for side in (side for side in SIDES if side in sides):
        title, colour, marker = SIDES[side]
        measured = {callers: load for callers, load in loads.items() if load in sides[side]}
        for axes, name in ((rates, "tokens_per_s"), (firsts, "first_p50")):
            values = [sides[side][load][name] for load in measured.values()]
            style = {"color": colour, "marker": marker, "markersize": 4}
            axes.plot(list(measured), values, label=title, **style)
    for axes in (rates, firsts):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(loads), [str(callers) for callers in loads])
        axes.set_xlabel("streams at once")
    rates.set_ylim(bottom=0)
    firsts.set_yscale("log")
    firsts.yaxis.set_major_formatter("{x:g}")
    rates.set_title("tokens per second")
    firsts.set_title("first token, median, ms")
    figure.legend(*rates.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def stream(arrivals: Mapping[str, Arrivals]) -> Figure:
    """Draw the arrivals of the tokens of one stream of each side."""
    figure = Figure(figsize=(8, 3))
    axes = figure.subplots()
    for side in (side for side in SIDES if side in arrivals):
        title, colour, marker = SIDES[side]
        times, tokens = zip((0.0, 0), *arrivals[side], strict=True)
        axes.step(times, tokens, where="post", color=colour, linewidth=1, label=title)
        axes.plot(times[1:], tokens[1:], color=colour, marker=marker, markersize=3, linestyle="")
    axes.set_xlabel("ms after the request was sent")
    axes.set_ylabel("tokens with text that have arrived")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def starts(bars: Sequence[Bar]) -> Figure:
    """Draw starts as bars, with their phases in them."""
    figure = Figure(figsize=(8, 0.7 + 0.5 * len(bars)))
    axes = figure.subplots()
    longest = max(bar.seconds for bar in bars)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    for row, bar in enumerate(bars):
        _, colour, _ = SIDES[bar.side]
        axes.barh(row, bar.seconds, color=colour, alpha=0.6, height=0.6)
        _draw_phases(axes, row, bar, longest)
        axes.text(bar.seconds, row, f" {bar.seconds:.1f} s", va="center")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    has_bare = any(bar.side == "bare" for bar in bars)
    note = " (bare: to the running engine)" if has_bare else ""
    axes.set_xlabel(f"seconds to the first streamed token{note}")
    return figure


def _draw_phases(axes: Axes, row: int, bar: Bar, longest: float) -> None:
    """Draw the phases inside a bar, with labels for those that are wide enough."""
    for number, (name, times) in enumerate(bar.phases.items()):
        seconds = times["end"] - times["begin"]
        colour = PHASES[number % len(PHASES)]
        axes.barh(row, seconds, left=times["begin"], color=colour, height=0.6)
        if seconds > 0.06 * longest:
            middle = times["begin"] + seconds / 2
            text = f"{name}\n{seconds:.1f} s"
            axes.text(middle, row, text, ha="center", va="center", fontsize=7)


def pace(comparison: Comparison) -> Figure:
    """Draw the pace of streams and the CPU of the front, by the number of streams and the pace."""
    figure = Figure(figsize=(8, 3.5))
    paces, cores = figure.subplots(1, 2)
    for side, groups in comparison.sides().items():
        _, colour, marker = SIDES[side]
        for nominal, line in zip(PACES, ("--", "-"), strict=True):
            for axes, name in ((paces, "pace"), (cores, "front_cores")):
                values = [groups[stream_load(count, nominal)][name] for count in COUNTS]
                style = {"color": colour, "marker": marker, "markersize": 4, "linestyle": line}
                axes.plot(COUNTS, values, label=f"{side}, {nominal} tokens/s a stream", **style)
    for axes in (paces, cores):
        axes.set_xscale("log", base=2)
        axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
        axes.set_xlabel("streams")
        axes.set_ylim(bottom=0)
    paces.set_title("pace of a stream / pace of the GPU")
    cores.set_title("CPU cores, without those of the core")
    figure.legend(*paces.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def draw_comparison(comparison: Comparison) -> dict[str, Figure]:
    """Draw the results of `compare.py`."""
    sides = comparison.sides()
    names = {name for groups in sides.values() for name in groups if name.startswith("sweep ")}
    sweep = {callers: f"sweep {callers}" for callers in sorted(int(name[6:]) for name in names)}
    return {
        "concurrency": concurrency(sides, sweep),
        "stream": stream({side: median_stream(each) for side, each in comparison.rounds.items()}),
        "start": starts(
            [
                Bar(side, side, sides[side]["start"]["first_s"], phases)
                for side in SIDES
                if side in sides
                for phases in [comparison.phases() if side == "worker" else {}]
            ]
        ),
    }


def draw_proof(proof: Proof) -> dict[str, Figure]:
    """Draw the results of `make prove`, without those whose steps failed."""
    bars = [
        Bar(f"{side}, {name}", side, figures["first_s"], each.phases)
        for name in STARTS
        for side, rounds in proof.rounds.items()
        for each in rounds
        for figures in [each.figures.get(name, {})]
        if figures
    ]
    streams = {
        side: median_stream(rounds)
        for side, rounds in proof.rounds.items()
        if any(each.arrivals for each in rounds)
    }
    sides = {side: each for side, each in proof.sides().items() if each.keys() & LOADS.values()}
    drawn = {"start": starts(bars)} if bars else {}
    drawn |= {"concurrency": concurrency(sides, LOADS)} if sides else {}
    return drawn | ({"stream": stream(streams)} if streams else {})


def save(figures: Mapping[str, Figure], output: Path) -> list[str]:
    """Write figures into a directory as PNG files; return their names."""
    output.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(output / f"{name}.png", dpi=110, facecolor="white")
    return [f"{name}.png" for name in figures]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("docs/plots"))
    parser.add_argument("--load", action="store_true", help="the files are those of gpu_load")
    arguments = parser.parse_args()
    comparison = comparisons.read(arguments.files)
    with mpl.rc_context(STYLE):
        drawn = {"pace": pace(comparison)} if arguments.load else draw_comparison(comparison)
        save(drawn, arguments.output)
