"""Paint drawings that are written in a small language: a shape per line, in order.

    ellipse gold 144,90 6,5 repeat=3,20,0

A line has a shape, a fill, points ``x,y`` in units of the frame, and options. Shapes are ``polygon``, ``blob`` (a
smooth polygon), ``line``, ``curve`` (a smooth line), ``box`` (two corners), ``ellipse`` and ``glow`` (center and
radii), and *symbols*: drawings around 0,0, painted at each point. ``drops`` (number and speed, radii) move in videos.

A fill is a color of Pillow, which may be lighter or darker by some percent (``gold+30``) and is shaded as if lit from
above; or a gradient from top to bottom (``white>gold``). ``body`` is the color of the scene, or the fill of the line
that a symbol is painted for. ``red|gold`` chooses one.

Options:
    width, round, size, alpha: Width of a line, radius of a box's corners, factor of a symbol, opacity.
    sway=dx,dy: Swings by this distance.
    repeat=count,dx,dy: Copies, each moved on from the last.
    turn=count,degrees: Copies around 0,0; ``spin`` turns them.
    scatter=count,x0,y0,x1,y1: Copies at random places in a rectangle, from left to right, in random sizes.
    mirror: Paints another copy on the other side of the frame's center.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageColor, ImageDraw

FRAME_WIDTH, FRAME_HEIGHT = 288, 208  # in units, and in pixels of a video
DETAIL, _OVERSAMPLING = 2, 2  # pixels of a layer per unit, and of the canvas per pixel of a layer
_SCALE = DETAIL * _OVERSAMPLING

Color = tuple[int, ...]
Points = npt.NDArray[np.complex128]  # x + iy
Placement = Callable[[Points], Points]

_WHITE, _NIGHT = (255, 255, 255), (12, 14, 34)  # a dark blue looks more natural than black
_CIRCLE = np.exp(2j * np.pi * (np.arange(48) + 0.5) / 48)
# Both go from black, in the center or at the top, to white; the radial one is 179 where its sides are nearest.
_RADIAL, _LINEAR = Image.radial_gradient("L"), Image.linear_gradient("L")
_FADE = _RADIAL.point([round(255 * max(0.0, 1 - value / 179) ** 2) for value in range(256)])


@dataclass(frozen=True)
class Stroke:
    """A line of a drawing."""

    shape: str
    fill: str
    points: Points
    options: Mapping[str, Sequence[float]]

    @classmethod
    def parse(cls, line: str) -> Stroke:
        """Read a line of a drawing."""
        shape, fill, *words = line.split()
        points = [complex(*map(float, word.split(","))) for word in words if not word[0].isalpha()]
        options = dict(word.partition("=")[::2] for word in words if word[0].isalpha())
        values = {name: [float(v) for v in text.split(",") if v] for name, text in options.items()}
        return cls(shape, fill, np.array(points), values)

    def number(self, option: str, default: float) -> float:
        """Return the value of an option that has one."""
        return self.options.get(option, [default])[0]


Drawing = tuple[Stroke, ...]


class Layer(NamedTuple):
    """A picture (RGBA) and where its upper left corner is in the frame, with ``DETAIL`` pixels per unit."""

    picture: Image.Image
    left: int
    top: int


class Painter:
    """Paints drawings at a phase of their movements, 0 ≤ phase < 1."""

    def __init__(self, symbols: Mapping[str, Drawing], seed: int = 0, phase: float = 0.0) -> None:
        self._symbols = symbols
        self._rng = np.random.default_rng(seed)
        self._phase = phase
        self._canvas = Image.new("RGBA", (FRAME_WIDTH * _SCALE, FRAME_HEIGHT * _SCALE))

    def paint(self, drawing: Drawing, body: str = "white", zoom: float = 1.0, center: complex = 0j) -> Layer:
        """Paint a drawing on a transparent frame; ``zoom`` scales it around a point."""
        self._draw(drawing, body, lambda points: center + zoom * (points - center), zoom)
        # Shapes were pasted with their masks on transparent black, which multiplies colors by their opacity (RGBa).
        whole = Image.frombytes("RGBa", self._canvas.size, self._canvas.tobytes()).reduce(_OVERSAMPLING)
        box = whole.getbbox() or (0, 0, 1, 1)
        return Layer(whole.crop(box).convert("RGBA"), box[0], box[1])

    def _draw(self, drawing: Drawing, body: str, place: Placement, scale: float) -> None:
        for stroke in drawing:
            if stroke.shape == "drops":
                continue
            symbol = self._symbols.get(stroke.shape)
            for factor, copy in self._copies(stroke, place, is_symbol=symbol is not None):
                fill = str(self._rng.choice(stroke.fill.split("|"))).replace("body", body)
                if symbol:
                    self._draw(symbol, fill, copy, scale * factor)
                else:
                    self._draw_shape(stroke, fill, copy(_outline(stroke)) * _SCALE, scale * factor * _SCALE)

    def _copies(
        self, stroke: Stroke, place: Placement, *, is_symbol: bool
    ) -> Iterator[tuple[float, Placement]]:
        """Yield the size and the placement of each copy of a shape."""
        kind = next((kind for kind in ("repeat", "turn", "scatter") if kind in stroke.options), "")
        count, *values = stroke.options.get(kind, [1])
        for number in range(int(count)):
            shift, factor = 0j, complex(stroke.number("size", 1.0))
            if kind == "repeat":
                shift = number * complex(*values)
            elif kind == "turn":
                turned = number + 0.5 + self._phase * ("spin" in stroke.options)
                factor *= np.exp(1j * math.radians(values[0]) * (turned / count - 0.5))
            elif kind == "scatter":
                x0, y0, x1, y1 = values
                share = (number + self._rng.random()) / count
                shift = complex(x0 + (x1 - x0) * share, self._rng.uniform(y0, y1))
                factor *= self._rng.uniform(0.75, 1.25)
            swing = math.sin(2 * math.pi * (self._phase + number / count))
            shift += swing * complex(*stroke.options.get("sway", (0, 0)))
            for anchor in stroke.points if is_symbol else stroke.points[:1]:
                pivot = 0j if is_symbol or kind == "turn" else anchor
                target = shift if kind == "turn" else shift + anchor
                for mirrored in (False, True)[: 1 + ("mirror" in stroke.options)]:
                    yield abs(factor), _placement(place, pivot, factor, target, mirrored=mirrored)

    def _draw_shape(self, stroke: Stroke, fill: str, outline: Points, scale: float) -> None:
        """Draw a shape whose outline is given in pixels of the canvas."""
        width = stroke.number("width", 0.0) * scale
        margin = math.ceil(width / 2) + 1
        left, top = math.floor(outline.real.min()) - margin, math.floor(outline.imag.min()) - margin
        size = math.ceil(outline.real.max()) + margin - left, math.ceil(outline.imag.max()) + margin - top
        opacity = stroke.number("alpha", 0.6 if stroke.shape == "glow" else 1.0)
        mask = Image.new("L", size)
        pen = ImageDraw.Draw(mask)
        pixels = [(z.real - left, z.imag - top) for z in outline.tolist()]
        if stroke.shape == "glow":
            mask = _FADE.resize(size, Image.Resampling.BILINEAR)
        elif width:
            pen.line(pixels, 255, round(width), joint="curve")
            for x, y in (pixels[0], pixels[-1]):
                pen.ellipse([x - width / 2, y - width / 2, x + width / 2, y + width / 2], 255)
        else:
            pen.polygon(pixels, 255)
        if opacity < 1:
            mask = mask.point([round(value * opacity) for value in range(256)])
        self._canvas.paste(_shade(stroke.shape, fill, size), (left, top), mask)


def _placement(
    place: Placement, pivot: complex, factor: complex, target: complex, *, mirrored: bool
) -> Placement:
    if mirrored:
        return lambda points: place(FRAME_WIDTH - (target + factor * (points - pivot)).conj())
    return lambda points: place(target + factor * (points - pivot))


def _outline(stroke: Stroke) -> Points:
    points = stroke.points
    if stroke.shape in ("polygon", "line"):
        return points
    if stroke.shape in ("blob", "curve"):
        return _smooth(points, closed=stroke.shape == "blob")
    center, half = points[0], points[1]
    corner = half
    if stroke.shape == "box":
        center, half = points.mean(), (points[1] - points[0]) / 2
        corner = stroke.number("round", 0.0) * (1 + 1j)
    straight = half - corner  # of a box with round corners; an ellipse has nothing else
    x = np.copysign(straight.real, _CIRCLE.real) + corner.real * _CIRCLE.real
    y = np.copysign(straight.imag, _CIRCLE.imag) + corner.imag * _CIRCLE.imag
    return np.asarray(center + x + 1j * y)


def _smooth(points: Points, *, closed: bool) -> Points:
    """Draw a Catmull-Rom spline through points."""
    ends = (points[-1:], points[:2]) if closed else (points[:1], points[-1:])
    padded = np.concatenate([ends[0], points, ends[1]])
    a, b, c, d = (padded[start : len(padded) - 3 + start, None] for start in range(4))
    t = np.linspace(0, 1, 10, endpoint=False)
    spline = 2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3
    return np.append(spline.ravel() / 2, points[:0] if closed else points[-1])


def _shade(shape: str, fill: str, size: tuple[int, int]) -> Image.Image:
    """Create a picture of a shape's colors: a given gradient, or light from above."""
    start, _, end = fill.partition(">")
    color = _color(start)
    if shape == "glow":
        return Image.new("RGBA", size, color)
    first, last = (color, _color(end)) if end else (_mix(color, _WHITE, 0.28), _mix(color, _NIGHT, 0.25))
    if shape == "ellipse" and not end:  # a ball, with its highlight at the upper left
        share = _RADIAL.resize(size, Image.Resampling.BILINEAR, box=(63, 74, 243, 254))
    else:
        share = _LINEAR.resize((1, size[1]), Image.Resampling.BILINEAR)
    light, dark = (Image.new("RGBA", share.size, shade) for shade in (first, last))
    return Image.composite(dark, light, share).resize(size, Image.Resampling.NEAREST)


def _color(text: str) -> Color:
    """Read a color with its changes, as in ``gold+30-10``."""
    name, *changes = re.split(r"(?=[+-])", text)
    color: Color = ImageColor.getrgb(name)
    for change in changes:
        color = _mix(color, _WHITE if change[0] == "+" else _NIGHT, abs(int(change)) / 100)
    return color


def _mix(first: Color, second: Color, share: float) -> Color:
    return tuple(round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
