"""Charts as SVG: distributions, time lines, choices side by side. The page's CSS sets the colours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from llm_serving.validation.statistics.sample_statistics import Latency, compute_percentile

WIDTH, HEIGHT = 520, 226
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 50, 34
LOW_TOP = 34
"""Top of a chart without marks above."""

LETTER_WIDTH, ROW_HEIGHT, INTERVAL_HEIGHT = 7.2, 14, 22
"""Pixels of a letter, of a row of labels and of a row of choices."""

BINS = 40
COLUMNS = 240
"""Columns of a time line: a longer run shows minimum, median and maximum of each."""

MAX_DOTS = 60
"""Points of a curve that have a dot each; more would hide the line."""

TAIL = 1.5
"""Upper end of a distribution, as a multiple of its 99th percentile; samples above are counted at its side."""


@dataclass(frozen=True)
class Scale:
    """Maps values from `low`..`high` to pixels `start`..`end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low or 1)
        return round(self.start + share * (self.end - self.start), 1)

    def compute_ticks(self, count: int) -> list[float]:
        """Return about `count` round values within the scale."""
        step = _round_step((self.high - self.low) / count)
        first = math.ceil(self.low / step - 1e-9)
        return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Interval(NamedTuple):
    """A value of one choice, and the bounds that it lies within."""

    name: str
    low: float
    value: float
    high: float


class Panel(NamedTuple):
    """One quantity of several choices, a row for each: the first is the chosen one."""

    title: str
    unit: str
    rows: Sequence[Interval]
    limit_name: str
    limit: float

    @property
    def height(self) -> int:
        return LOW_TOP + len(self.rows) * INTERVAL_HEIGHT + BOTTOM


def _round_step(minimum: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least `minimum`."""
    power = 10.0 ** math.floor(math.log10(minimum)) if minimum > 0 else 1.0
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= minimum * (1 - 1e-9))


def format_number(value: float) -> str:
    """Format a number with about three significant digits."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def render_distribution(title: str, values: Sequence[float], latency: Latency, limits: dict[str, float]) -> str:
    """Render a histogram of milliseconds with marks at the median, the 95th percentile and the SLO's limits."""
    if not values:
        return _render_empty(title)
    low, high = _find_range(values)
    within = {name: limit for name, limit in limits.items() if low <= limit <= low + 2 * (high - low)}
    high = max([high, *[low + (limit - low) * 1.05 for limit in within.values()]])
    counts = [0] * BINS
    for value in values:
        if value <= high:
            counts[min(BINS - 1, int((value - low) / (high - low) * BINS))] += 1
    above = len(values) - sum(counts)
    x = Scale(low, high, LEFT, WIDTH - RIGHT)
    y = Scale(0, max(counts) or 1, HEIGHT - BOTTOM, TOP)
    bars = [
        f'<rect class="bar" x="{x(low + index * (high - low) / BINS)}" y="{y(count)}" '
        f'width="{round((WIDTH - LEFT - RIGHT) / BINS - 1, 1)}" height="{round(y(0) - y(count), 1)}"/>'
        for index, count in enumerate(counts)
        if count
    ]
    marks = [(name, value, "mark") for name, value in (("p50", latency.p50), ("p95", latency.p95)) if value is not None]
    marks += [(f"{name} limit", limit, "limit") for name, limit in limits.items()]
    caption = (
        f"{len(values):,} samples; p50 {format_number(latency.p50 or 0)} ms, p95 {format_number(latency.p95 or 0)} ms."
    )
    body = [*_render_x_axis(x, "ms"), *_render_y_axis(y, "count"), *bars, *_render_marks(x, marks)]
    if above:
        body.append(_render_text(WIDTH - RIGHT, HEIGHT - BOTTOM - 6, f"{above:,} above →", "end"))
    return _render_svg(title, caption, body)


def _find_range(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of a distribution: from 0 unless all values are far from it, without the end of a long tail."""
    lowest, high = min(values), min(max(values), compute_percentile(sorted(values), 0.99) * TAIL)
    low = 0.0 if lowest < high / 2 else max(0.0, lowest - (high - lowest) * 0.1)
    return (low, high) if high > low else (low * 0.9, low * 1.1 + 1.0)


def _render_marks(x: Scale, marks: Iterable[tuple[str, float, str]]) -> list[str]:
    """Render vertical lines with labels above, each in the lowest free row; beyond the scale only the label."""
    elements, rows = [], [-1e9, -1e9, -1e9]
    for name, value, kind in sorted(marks, key=lambda mark: mark[1]):
        beyond = value > x.high
        label = f"{name} {format_number(value)}" + (" →" if beyond else "")
        position = min(x(value), x.end)
        left = min(position + 3, WIDTH - len(label) * LETTER_WIDTH)
        row = next((index for index, end in enumerate(rows) if end + LETTER_WIDTH < left), len(rows) - 1)
        rows[row] = left + len(label) * LETTER_WIDTH
        height = TOP - 4 - ROW_HEIGHT * row
        if not beyond:
            elements.append(_render_line(kind, position, position, height - 9, HEIGHT - BOTTOM))
        # At the right edge it ends there, however wide the reader's font is.
        place = (WIDTH, "end") if left < position + 3 else (left, "start")
        elements.append(_render_text(place[0], height, label, place[1], kind))
    return elements


def render_dots(
    title: str, points: Sequence[tuple[float, float]], failed: Sequence[float], limits: dict[str, float]
) -> str:
    """Render the milliseconds of each request by its start; failed ones as crosses at the top."""
    if not points and not failed:
        return _render_empty(title)
    last = max([offset for offset, _ in points] + list(failed))
    highest = max((value for _, value in points), default=1.0)
    visible_limits = {name: limit for name, limit in limits.items() if limit <= 2 * highest}
    x = Scale(0, last or 1, LEFT, WIDTH - RIGHT)
    y = Scale(0, max([highest, *visible_limits.values()]) * 1.05, HEIGHT - BOTTOM, LOW_TOP)
    body = [*_render_x_axis(x, "s"), *_render_y_axis(y, "ms")]
    body += [
        f'<circle class="dot" cx="{x(offset)}" cy="{y(value)}" r="2.2"/>'
        for offset, value in _thin_points(points, last)
    ]
    positions = sorted({round(x(offset)) for offset in failed})
    body += [f'<path class="cross" d="M{offset - 4},{LOW_TOP - 18}l8,8m0,-8l-8,8"/>' for offset in positions]
    body += _render_limits(y, visible_limits)
    crosses = f"; {len(failed):,} failed requests as crosses" if failed else ""
    return _render_svg(title, f"{len(points):,} answered requests by start{crosses}.", body)


def _render_limits(y: Scale, limits: Mapping[str, float]) -> Iterator[str]:
    for name, limit in limits.items():
        yield _render_line("limit", LEFT, WIDTH - RIGHT, y(limit), y(limit))
        yield _render_text(LEFT + 6, y(limit) + 14, f"{name} limit {format_number(limit)}", "start", "limit")


def _thin_points(points: Sequence[tuple[float, float]], last: float) -> list[tuple[float, float]]:
    """Return at most three points per column: minimum, median and maximum."""
    if len(points) <= 3 * COLUMNS:
        return list(points)
    columns: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        columns.setdefault(int(point[0] / (last or 1) * COLUMNS), []).append(point)
    thinned = []
    for column in columns.values():
        column.sort(key=lambda point: point[1])
        thinned += [column[0], column[len(column) // 2], column[-1]]
    return thinned


def render_curves(
    title: str,
    unit_x: str,
    unit_y: str,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    limits: dict[str, float],
    marks: Mapping[str, float],
) -> str:
    """Render quantities over another one as lines, each named at its end, with horizontal limits and vertical marks."""
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return _render_empty(title)
    highest = max(value for _, value in points)
    visible_limits = {name: limit for name, limit in limits.items() if limit <= 2 * highest}
    x = Scale(0, max(position for position, _ in points) * 1.05 or 1, LEFT, WIDTH - RIGHT)
    y = Scale(0, max([highest, *visible_limits.values()]) * 1.05 or 1, HEIGHT - BOTTOM, LOW_TOP)
    body = [*_render_x_axis(x, unit_x), *_render_y_axis(y, unit_y)]
    body += _render_limits(y, visible_limits)
    body += _render_positions(x, marks)
    for number, curve in enumerate(curves.values()):
        path = "L".join(f"{x(position)},{y(value)}" for position, value in curve)
        body.append(f'<path class="line curve-{number}" d="M{path}"/>')
        if len(curve) <= MAX_DOTS:
            body += [f'<circle class="dot" cx="{x(position)}" cy="{y(value)}" r="2.6"/>' for position, value in curve]
    body += _render_curve_names(x, y, curves)
    return _render_svg(title, f"{len(points)} points of {len(curves)} curves.", body)


def _render_curve_names(x: Scale, y: Scale, curves: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[str]:
    """Render the name of each curve at its end, the lower ones out of the way of those above them."""
    free_top = 0.0
    for name, curve in sorted(curves.items(), key=lambda item: -item[1][-1][1]):
        position, value = curve[-1]
        top = max(y(value) - 6, free_top)
        free_top = top + ROW_HEIGHT
        yield _render_text(x(position), top, name, "end", "mark")


def _render_positions(x: Scale, marks: Mapping[str, float]) -> Iterator[str]:
    for name, position in marks.items():
        yield _render_line("mark", x(position), x(position), LOW_TOP - 8, HEIGHT - BOTTOM)
        is_left = x(position) + 4 + len(name) * LETTER_WIDTH > WIDTH
        shift, anchor = (-4, "end") if is_left else (4, "start")
        yield _render_text(x(position) + shift, LOW_TOP - 10, name, anchor, "mark")


def render_bands(
    title: str,
    bands: Mapping[str, Sequence[float]],
    width_s: float,
    levels: Sequence[float],
    marks: Mapping[str, float],
    highlight: str,
    caption: str,
) -> str:
    """Render percentages of a whole over time as bands, the lowest first, each named where it has most room."""
    count = len(next(iter(bands.values()), ()))
    if not count:
        return _render_empty(title)
    x, y = Scale(0, count * width_s, LEFT, WIDTH - RIGHT), Scale(0, 100, HEIGHT - BOTTOM, LOW_TOP)
    highlighted_at = max(range(count), key=bands.get(highlight, [0.0] * count).__getitem__)
    named_at = _find_room(bands, highlight, highlighted_at, x(width_s) - x(0))
    areas, names, below = [], [], [0.0] * count
    for number, (name, values) in enumerate(bands.items()):
        above = [low + value for low, value in zip(below, values, strict=True)]
        kind = "highlight" if name == highlight else f"band-{number}"
        areas.append(f'<path class="band {kind}" d="{_format_band(x, y, width_s, below, above)}"/>')
        column = highlighted_at if name == highlight else named_at
        middle = (below[column] + above[column]) / 2
        names.append(_render_text(x((column + 0.5) * width_s), y(middle) + 4, name, "middle", "mark"))
        below = above
    lines = [_render_line("mark", LEFT, WIDTH - RIGHT, y(level), y(level)) for level in levels]
    axes = [*_render_x_axis(x, "s"), *_render_y_axis(y, "%")]
    return _render_svg(title, caption, [*areas, *axes, *lines, *_render_positions(x, marks), *names])


def _format_band(x: Scale, y: Scale, width_s: float, below: Sequence[float], above: Sequence[float]) -> str:
    """Format the SVG path around a band: along its upper edge, then back along its lower edge."""
    top = [f"{x(index * width_s)},{y(end)}L{x((index + 1) * width_s)},{y(end)}" for index, end in enumerate(above)]
    bottom = [f"{x((index + 1) * width_s)},{y(end)}L{x(index * width_s)},{y(end)}" for index, end in enumerate(below)]
    return f"M{'L'.join(top)}L{'L'.join(reversed(bottom))}Z"


def _find_room(bands: Mapping[str, Sequence[float]], highlight: str, highlighted_at: int, width: float) -> int:
    """Return the column where the narrowest band has most room, out of the way of the highlight's name."""
    others = {name: values for name, values in bands.items() if name != highlight}
    reach = LETTER_WIDTH * (len(highlight) + max(map(len, others))) / 2
    columns = range(len(next(iter(others.values()))))
    apart = [column for column in columns if highlight not in bands or abs(column - highlighted_at) * width > reach]
    return max(apart or columns, key=lambda column: min(values[column] for values in others.values()))


def render_steps(title: str, values: Sequence[float], width_s: float, unit: str, caption: str) -> str:
    """Render a quantity over time as a filled line, one value for each `width_s` seconds."""
    if not values:
        return _render_empty(title)
    x = Scale(0, len(values) * width_s, LEFT, WIDTH - RIGHT)
    y = Scale(0, max(values) * 1.05 or 1, HEIGHT - BOTTOM, LOW_TOP)
    path = "".join(
        f"L{x(index * width_s)},{y(value)}L{x((index + 1) * width_s)},{y(value)}" for index, value in enumerate(values)
    )
    body = [
        *_render_x_axis(x, "s"),
        *_render_y_axis(y, unit),
        f'<path class="area" d="M{LEFT},{y(0)}{path}L{x(len(values) * width_s)},{y(0)}Z"/>',
        f'<path class="line" d="M{path[1:]}"/>',
    ]
    return _render_svg(title, caption, body)


def render_panels(panels: Sequence[Panel]) -> str:
    """Render an SVG file of panels below one another, in the colors of the pages."""
    figures, top = [], 0
    for panel in panels:
        label = escape(f"{panel.title}: {len(panel.rows)} choices, limit {panel.limit_name}.")
        body = "".join(_render_panel(panel))
        figures.append(f'<g role="img" aria-label="{label}" transform="translate(0,{top})">{body}</g>')
        top += panel.height
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}"><style>{style}</style>'
        f'<rect class="card" width="100%" height="100%"/>{"".join(figures)}</svg>\n'
    )


def _render_panel(panel: Panel) -> Iterator[str]:
    """Render a dot at the value of each choice, and a line from the lowest to the highest that it may have."""
    rows, limit, base = panel.rows, panel.limit, panel.height - BOTTOM
    left = 2 + max(len(row.name) for row in rows) * LETTER_WIDTH
    x = Scale(0, max(limit, *(row.high for row in rows)) * 1.05, left, WIDTH - RIGHT)
    yield from _render_x_axis(x, panel.unit, panel.height)
    yield _render_text(2, 14, panel.title, "start", "mark")
    yield _render_line("limit", x(limit), x(limit), 6, base)
    shift, anchor = (4, "start") if x(limit) < WIDTH / 2 else (-4, "end")
    yield _render_text(x(limit) + shift, 14, f"limit {panel.limit_name}", anchor, "limit")
    for number, row in enumerate(rows):
        y = LOW_TOP + (number + 0.5) * INTERVAL_HEIGHT
        yield _render_text(2, y + 4, row.name, "start", "" if number else "mark")
        yield _render_line("line", x(row.low), x(row.high), y, y)
        yield f'<circle class="dot" cx="{x(row.value)}" cy="{y}" r="4"/>'


def _render_x_axis(scale: Scale, unit: str, height: float = HEIGHT) -> Iterator[str]:
    base = height - BOTTOM
    yield _render_line("axis", scale.start, scale.end, base, base)
    for tick in scale.compute_ticks(7):
        yield _render_line("axis", scale(tick), scale(tick), base, base + 4)
        label = format_number(tick)
        yield _render_text(min(scale(tick), WIDTH - len(label) * LETTER_WIDTH / 2), base + 17, label, "middle")
    yield _render_text(WIDTH - RIGHT, height - 2, unit, "end")


def _render_y_axis(scale: Scale, unit: str) -> Iterator[str]:
    for tick in scale.compute_ticks(4):
        yield _render_line("grid", LEFT, WIDTH - RIGHT, scale(tick), scale(tick))
        yield _render_text(LEFT - 8, scale(tick) + 4, format_number(tick), "end")
    yield _render_text(2, 11, unit, "start")


def _render_line(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>'


def _render_text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    return f'<text x="{round(x, 1)}" y="{round(y, 1)}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _render_empty(title: str) -> str:
    return _render_svg(title, "No samples.", [_render_text(WIDTH / 2, HEIGHT / 2, "no samples", "middle")])


def _render_svg(title: str, caption: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}: {escape(caption)}">'
        f"{''.join(body)}</svg>"
    )
