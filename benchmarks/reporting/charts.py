"""Charts of reports: line charts and heat maps as SVG, in files for Markdown and in one HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

# Color-blind safe palette of Okabe and Ito; it repeats with dashed lines from the ninth curve on.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b2b200")
_DASHES = ("", "6 4", "2 3")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LEGEND = 860, 400, 48, 40, 84, 250
_GRID_LINES = 5  # approximate number
_CELL, _NAMES = (64, 32), 150  # pixels: size of a cell of a heat map, width of the names of its rows
_COLD, _HOT = (237, 242, 239), (11, 85, 87)


@dataclass(frozen=True)
class LineChart:
    """Curves over tasks; a curve may have gaps.

    Attributes:
        title: Title of the chart.
        ticks: Names of the tasks.
        curves: Values by the name of the curve: one per task, None for a gap.
    """

    title: str
    ticks: Sequence[str]
    curves: Mapping[str, Sequence[float | None]]

    def svg(self) -> str:
        """The chart as an SVG document."""
        low, high, step = _axis([v for values in self.curves.values() for v in values if v is not None])
        right, floor = _WIDTH - _LEGEND, _HEIGHT - _BOTTOM

        def x(index: int) -> float:
            return _LEFT + (right - _LEFT) * (index + 0.5) / len(self.ticks)

        def y(value: float) -> float:
            return floor - (floor - _TOP) * (value - low) / (high - low)

        parts = [_text(_LEFT, 22, self.title, weight="bold", size=14)]
        for number in range(round((high - low) / step) + 1):
            value = low + number * step
            parts.append(f'<path d="M{_LEFT} {y(value):.1f}H{right}" stroke="#ddd"/>')
            parts.append(_text(_LEFT - 6, y(value) + 4, f"{value:g}", anchor="end"))
        for index, tick in enumerate(self.ticks):
            place = f'transform="rotate(-30 {x(index):.1f} {floor + 14})"'
            parts.append(_text(x(index), floor + 14, tick, anchor="end", more=place))
        for index, (name, values) in enumerate(self.curves.items()):
            color, dash = _line_style(index)
            points = [(x(i), y(value), value) for i, value in enumerate(values) if value is not None]
            path = "L".join(f"{a:.1f} {b:.1f}" for a, b, _ in points)
            line = f'stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"'
            if points:
                parts.append(f'<path d="M{path}" fill="none" {line}/>')
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}">'
                f"<title>{escape(name)}: {value:.2f}</title></circle>"
                for a, b, value in points
            ]
            height = _TOP + 16 * index
            parts.append(f'<path d="M{right + 14} {height}h22" {line}/>')
            parts.append(_text(right + 42, height + 4, name))
        height = max(_HEIGHT, _TOP + 16 * len(self.curves) + 10)
        return _document(_WIDTH, height, parts)


@dataclass(frozen=True)
class HeatMap:
    """A recall matrix as a heat map: one row per release i, one column per task t."""

    title: str
    tasks: Sequence[str]
    matrix: Sequence[Sequence[float | None]]

    def svg(self) -> str:
        """The heat map as an SVG document; the first release is at the top."""
        width, height = _CELL
        highest = max((cell for row in self.matrix for cell in row if cell is not None), default=0.0) or 1.0
        parts = [_text(12, 22, self.title, weight="bold", size=14)]
        for release, row in enumerate(self.matrix):
            y = _TOP + release * height
            name = self.tasks[release] if release < len(self.tasks) else str(release + 1)
            parts.append(_text(_NAMES - 8, y + height / 2 + 4, f"after {name}", anchor="end"))
            for task, cell in enumerate(row):
                if cell is not None:
                    parts.append(_cell(_NAMES + task * width, y, cell, cell / highest))
        floor = _TOP + len(self.matrix) * height
        for task, name in enumerate(self.tasks):
            x = _NAMES + (task + 0.5) * width
            parts.append(
                _text(x, floor + 16, name, anchor="end", more=f'transform="rotate(-30 {x:.1f} {floor + 16})"')
            )
        return _document(_NAMES + len(self.tasks) * width + 12, floor + _BOTTOM, parts)


def write_page(path: Path, title: str, figures: Sequence[LineChart | HeatMap]) -> None:
    """Write the charts to one HTML file that needs no network. Points have their values as tooltips."""
    charts = [f"<p>{figure.svg()}</p>" for figure in figures]
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>\n'
        f"<body>\n<h1>{escape(title)}</h1>\n" + "\n".join(charts) + "\n</body></html>\n",
        encoding="utf-8",
    )


def _document(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def _cell(x: float, y: float, value: float, share: float) -> str:
    share = min(1.0, max(0.0, share))
    red, green, blue = (round(cold + (hot - cold) * share) for cold, hot in zip(_COLD, _HOT, strict=True))
    width, height = _CELL
    ink = "#fff" if share > 0.55 else "#333"
    return (
        f'<rect x="{x + 1:.1f}" y="{y + 1:.1f}" width="{width - 2}" height="{height - 2}" '
        f'fill="rgb({red},{green},{blue})"/>'
        f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" font-size="12" text-anchor="middle" '
        f'fill="{ink}">{value:.1f}</text>'
    )


def _line_style(index: int) -> tuple[str, str]:
    return _COLORS[index % len(_COLORS)], _DASHES[index // len(_COLORS) % len(_DASHES)]


def _axis(values: Sequence[float]) -> tuple[float, float, float]:
    """Round bounds and step of an axis that includes the values and zero."""
    low, high = min([0.0, *values]), max([0.0, *values])
    rough = (high - low) / _GRID_LINES or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return math.floor(low / step) * step, max(math.ceil(high / step) * step, step), step


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    size: int = 12,
    more: str = "",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="#333" {more}>{escape(text)}</text>'
    )
