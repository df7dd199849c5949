"""Draw line charts for reports as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Color-blind safe palette by Okabe and Ito; from the ninth curve on, it repeats with dashed lines.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#b2b200")
_DASHES = ("", "6 4", "2 3")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LEGEND = 860, 400, 48, 40, 84, 250
_GRID_LINES = 5  # approximately


@dataclass(frozen=True)
class LineChart:
    """Curves over tasks; a curve may have gaps.

    Attributes:
        ticks: Names of the tasks.
        curves: Values by curve name: one per task, None for a gap.
    """

    title: str
    ticks: Sequence[str]
    curves: Mapping[str, Sequence[float | None]]

    def svg(self) -> str:
        """Draw the chart as an SVG document."""
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


def _document(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def _line_style(index: int) -> tuple[str, str]:
    return _COLORS[index % len(_COLORS)], _DASHES[index // len(_COLORS) % len(_DASHES)]


def _axis(values: Sequence[float]) -> tuple[float, float, float]:
    """Round the bounds and step of an axis that includes the values and zero."""
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
