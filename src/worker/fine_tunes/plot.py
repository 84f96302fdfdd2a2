"""A plot of losses over steps, as SVG."""

import math
from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape

# Size of the picture and its margins in pixels.
WIDTH, HEIGHT = 800, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 60
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
# Approximate number of ticks on an axis.
TICKS = 6

Points = Mapping[int, float]


def loss_plot_svg(title: str, lines: Mapping[str, Points]) -> str:
    """Return a plot of losses as SVG.

    Args:
        title: Any text.
        lines: Loss of each step, by the name of the line, which is also in the legend.
    """
    steps = [step for points in lines.values() for step in points] or [0]
    losses = [loss for points in lines.values() for loss in points.values()] or [0.0]
    x_axis = _Axis(min(steps), max(steps), LEFT, WIDTH - RIGHT, min_tick=1)
    y_axis = _Axis(min(losses), max(losses), HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text_element(WIDTH / 2, 24, title, anchor="middle", size=15),
        *_draw_axes(x_axis, y_axis),
    ]
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += _draw_curve(points, x_axis, y_axis, colour)
        y = TOP + 12 + 18 * number
        parts.append(_line_element(WIDTH - 170, y - 4, WIDTH - 146, y - 4, colour, 2))
        parts.append(_text_element(WIDTH - 140, y, name))
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """Maps values to positions on an axis that begins and ends at a tick.

    Args:
        low: Smallest value.
        high: Largest value.
        start: Start of the axis in pixels.
        end: End of the axis in pixels.
        min_tick: Minimum distance between two ticks.
    """

    def __init__(
        self, low: float, high: float, start: float, end: float, min_tick: float = 0.0
    ) -> None:
        span = (high - low) or max(abs(high), 1.0)
        min_step = max(span / TICKS, min_tick)
        power = 10.0 ** math.floor(math.log10(min_step))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= min_step)
        first, last = math.floor(low / step), math.ceil(high / step)
        last = max(last, first + 1)
        # Each tick is multiplied, because adding steps would add up rounding errors.
        self.ticks = [number * step for number in range(first, last + 1)]
        self._start, self._end = start, end

    def to_pixels(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self._start + (value - low) / (high - low) * (self._end - self._start)


def _draw_axes(x_axis: _Axis, y_axis: _Axis) -> Iterable[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value in y_axis.ticks:
        y = y_axis.to_pixels(value)
        yield _line_element(LEFT, y, right, y, "#ddd", 1)
        yield _text_element(LEFT - 8, y + 4, f"{value:.6g}", anchor="end")
    for value in x_axis.ticks:
        x = x_axis.to_pixels(value)
        yield _line_element(x, bottom, x, bottom + 5, "black", 1)
        yield _text_element(x, bottom + 20, f"{value:.6g}", anchor="middle")
    yield _line_element(LEFT, bottom, right, bottom, "black", 1)
    yield _line_element(LEFT, TOP, LEFT, bottom, "black", 1)
    yield _text_element((LEFT + right) / 2, HEIGHT - 16, "step", anchor="middle")
    yield _text_element(LEFT, TOP - 8, "loss", anchor="middle")


def _draw_curve(points: Points, x_axis: _Axis, y_axis: _Axis, colour: str) -> Iterable[str]:
    positions = [(x_axis.to_pixels(x), y_axis.to_pixels(y)) for x, y in sorted(points.items())]
    if len(positions) > 1:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
        yield f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="2"/>'
    # The points of short lines are marked: a line with only one point would be invisible.
    for x, y in positions if len(positions) < 100 else ():
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'


def _line_element(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _text_element(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {position}>{escape(text)}</text>"
