"""The primitives of all drawings: outlines in the unit square [-1, 1]² with the y axis pointing down."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from benchmarks.data.world.scene_model import Part

Outline = npt.NDArray[np.float64]


def _polar(angles: npt.ArrayLike, radii: npt.ArrayLike = 1.0) -> Outline:
    a = np.asarray(angles)
    return np.stack([np.cos(a) * radii, np.sin(a) * radii], axis=1)


def _regular(corners: int, start: float = -90.0) -> Outline:
    return _polar(np.radians(start) + np.arange(corners) * 2 * math.pi / corners)


def _star(points: int, inner: float) -> Outline:
    return _polar(-math.pi / 2 + np.arange(2 * points) * math.pi / points, np.tile([1.0, inner], points))


def _gear(teeth: int) -> Outline:
    steps = np.arange(4 * teeth)
    return _polar((steps + 0.5) * math.pi / (2 * teeth), np.tile([1.0, 1.0, 0.74, 0.74], teeth))


def _crescent() -> Outline:
    outer = _polar(np.linspace(math.radians(60), math.radians(300), 18))
    inner = _polar(np.linspace(math.radians(285), math.radians(75), 14), 0.82) + np.array([0.38, 0])
    return np.concatenate([outer, inner])


def _heart() -> Outline:
    t = np.linspace(0, 2 * math.pi, 28, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x / 16.5, -(y + 2.5) / 14.5], axis=1)


def _drop() -> Outline:
    round_part = _polar(np.linspace(math.radians(-30), math.radians(210), 18), 0.72) + np.array([0, 0.28])
    return np.concatenate([[[0.0, -1.0]], round_part])


def _wave(closed_below: float) -> Outline:
    x = np.linspace(-1, 1, 25)
    top = np.stack([x, np.sin(x * 2 * math.pi) * 0.6], axis=1)
    return np.concatenate([top, top[::-1] + np.array([0, closed_below])])


def _points(*pairs: tuple[float, float]) -> Outline:
    return np.array(pairs, dtype=np.float64)


SHAPES: dict[str, Outline] = {
    "circle": _regular(28),
    "square": _points((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "triangle": _points((0, -1), (1, 0.9), (-1, 0.9)),
    "diamond": _points((0, -1), (1, 0), (0, 1), (-1, 0)),
    "pentagon": _regular(5),
    "hexagon": _regular(6),
    "star": _star(5, 0.45),
    "spark": _star(4, 0.28),
    "burst": _star(9, 0.6),
    "cross": _points(
        (-0.34, -1), (0.34, -1), (0.34, -0.34), (1, -0.34), (1, 0.34), (0.34, 0.34),
        (0.34, 1), (-0.34, 1), (-0.34, 0.34), (-1, 0.34), (-1, -0.34), (-0.34, -0.34),
    ),
    "arrow": _points((1, 0), (0.1, -0.85), (0.1, -0.35), (-1, -0.35), (-1, 0.35), (0.1, 0.35), (0.1, 0.85)),
    "lightning": _points((0.25, -1), (-0.65, 0.15), (-0.08, 0.15), (-0.3, 1), (0.65, -0.25), (0.05, -0.25)),
    "crescent": _crescent(),
    "heart": _heart(),
    "drop": _drop(),
    "gear": _gear(8),
    "half": (_polar(np.linspace(math.pi, 2 * math.pi, 18)) * [1, 2] + np.array([0, 1])),
    "trapezoid": _points((-0.6, -1), (0.6, -1), (1, 1), (-1, 1)),
    "wedge": _points((-1, 1), (1, 1), (1, -1)),
    "wave": _wave(0.7),
    "ring": _regular(28),
    "arc": _polar(np.linspace(math.pi, 2 * math.pi, 16)) * [1, 2] + np.array([0, 1]),
    "stroke": _points((-1, 0), (1, 0)),
    "zigzag": _points((-1, 0.6), (-0.6, -0.6), (-0.2, 0.6), (0.2, -0.6), (0.6, 0.6), (1, -0.6)),
    "spiral": _polar(np.linspace(0, 5 * math.pi, 40), np.linspace(0.08, 1, 40)),
}  # fmt: skip

# Drawn as thick lines, never filled.
OPEN_SHAPES = frozenset({"ring", "arc", "stroke", "zigzag", "spiral"})


def part_outline(part: Part) -> Outline:
    """Compute a part's outline around the origin, scaled and rotated."""
    points = SHAPES[part.shape] * (part.rx, part.ry)
    if part.turn:
        angle = math.radians(part.turn)
        cos, sin = math.cos(angle), math.sin(angle)
        points = points @ np.array([[cos, sin], [-sin, cos]])
    return points
