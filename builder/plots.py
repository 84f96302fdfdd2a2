"""Draws the results of `compare.py`: throughput and first tokens, one stream, and the startup.

    PYTHONPATH=benchmarks .bench/bin/python builder/plots.py FILE [FILE ...] --output docs/plots
    PYTHONPATH=benchmarks .bench/bin/python builder/plots.py --load FILE [FILE ...]

With `--load` it draws the results of `gpu_load`: the pace of streams, and the CPU that they use.
The rounds of several files are combined. The pictures have a white background, so that they can be
read on light and on dark pages.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl
from compare_parts.rows import SWEEP
from gpu_load.loads import COUNTS, PACES, stream_load
from matplotlib.figure import Figure

from proof.measure import comparison as comparisons
from proof.measure.comparison import Comparison, Groups

# Colours that colour-blind readers can distinguish, and markers for prints in grey.
SIDES = {
    "worker": ("this worker, whole platform included", "#0072b2", "o"),
    "server": ("vLLM's server, no platform", "#d55e00", "s"),
    "rust": ("vLLM's front end in Rust, no platform", "#009e73", "D"),
    "bare": ("bare engine, in its own process", "#767676", "^"),
}
PHASES = ("#8cc4e8", "#c9e3f4")  # alternating
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def concurrency(comparison: Comparison) -> Figure:
    """Draw tokens per second and the time to the first token, by the number of callers."""
    figure = Figure(figsize=(8, 3.5))
    rates, firsts = figure.subplots(1, 2)
    sides = comparison.sides()
    for side in (side for side in SIDES if side in sides):
        title, colour, marker = SIDES[side]
        for axes, name in ((rates, "tokens_per_s"), (firsts, "first_p50")):
            values = [sides[side][load][name] for load in SWEEP.values()]
            axes.plot(list(SWEEP), values, color=colour, marker=marker, markersize=4, label=title)
    for axes in (rates, firsts):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(SWEEP), [str(callers) for callers in SWEEP])
        axes.set_xlabel("streams at once")
    rates.set_ylim(bottom=0)
    firsts.set_yscale("log")
    firsts.yaxis.set_major_formatter("{x:g}")
    rates.set_title("tokens per second")
    firsts.set_title("first token, median, ms")
    figure.legend(*rates.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def stream(comparison: Comparison) -> Figure:
    """Draw the arrivals of the tokens of one stream."""
    figure = Figure(figsize=(8, 3))
    axes = figure.subplots()
    for side in (side for side in SIDES if side in comparison.rounds):
        title, colour, marker = SIDES[side]
        arrivals = [(0.0, 0), *comparison.stream(side)]
        times, tokens = zip(*arrivals, strict=True)
        axes.step(times, tokens, where="post", color=colour, linewidth=1, label=title)
        axes.plot(times[1:], tokens[1:], color=colour, marker=marker, markersize=3, linestyle="")
    axes.set_xlabel("ms after the request was sent")
    axes.set_ylabel("tokens with text that have arrived")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def start(comparison: Comparison) -> Figure:
    """Draw the worker's startup by phases, above the startups of the other sides."""
    figure = Figure(figsize=(8, 2.2))
    axes = figure.subplots()
    names = [side for side in SIDES if side in comparison.rounds]
    sides = comparison.sides()
    for side in names:
        _, colour, _ = SIDES[side]
        axes.barh(side, sides[side]["start"]["first_s"], color=colour, alpha=0.6, height=0.6)
    if "worker" in names:
        _draw_phases(figure, comparison.phases(), sides)
    for side in names:
        seconds = sides[side]["start"]["first_s"]
        axes.text(seconds, side, f" {seconds:.1f} s", va="center")
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds to the first streamed token (bare: to the running engine)")
    return figure


def _draw_phases(figure: Figure, phases: Groups, sides: Mapping[str, Groups]) -> None:
    """Draw the phases inside the worker's bar, with labels for those that are wide enough."""
    (axes,) = figure.axes
    longest = max(groups["start"]["first_s"] for groups in sides.values())
    for number, (name, times) in enumerate(phases.items()):
        seconds = times["end"] - times["begin"]
        colour = PHASES[number % len(PHASES)]
        axes.barh("worker", seconds, left=times["begin"], color=colour, height=0.6)
        if seconds > 0.06 * longest:
            middle = times["begin"] + seconds / 2
            text = f"{name}\n{seconds:.1f} s"
            axes.text(middle, "worker", text, ha="center", va="center", fontsize=7)


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


LOAD_PLOTS: dict[str, Callable[[Comparison], Figure]] = {"pace": pace}
PLOTS: dict[str, Callable[[Comparison], Figure]] = {
    "concurrency": concurrency,
    "stream": stream,
    "start": start,
}


def draw(
    plots: Mapping[str, Callable[[Comparison], Figure]], comparison: Comparison, output: Path
) -> None:
    """Write plots of a comparison into a directory as PNG files."""
    output.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name, plot in plots.items():
            plot(comparison).savefig(output / f"{name}.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("docs/plots"))
    parser.add_argument("--load", action="store_true", help="the files are those of gpu_load")
    arguments = parser.parse_args()
    plots = LOAD_PLOTS if arguments.load else PLOTS
    draw(plots, comparisons.read(arguments.files), arguments.output)
