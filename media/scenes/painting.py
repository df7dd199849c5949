"""Draw with Pillow: shapes with gradients, glow and shadow on a transparent canvas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

Color = tuple[int, int, int]
Point = tuple[float, float]
Points = Sequence[Point] | str  # as for :func:`place`

# Both go from black, in the center or at the top, to white.
_RADIAL, _LINEAR = Image.radial_gradient("L"), Image.linear_gradient("L")


@dataclass(frozen=True)
class Gradient:
    """A fill that changes from one color to another."""

    start: Color  # at the top, on the left, or of the highlight
    end: Color
    kind: Literal["down", "across", "ball"] = "down"  # a ball has its highlight at the upper left


Fill = Color | Gradient


def mix(first: Color, second: Color, share: float) -> Color:
    """Mix two colors; ``share`` is that of the second, 0..1."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def darken(color: Color, share: float = 0.35) -> Color:
    """Mix with a dark blue, which looks more natural than black."""
    return mix(color, (12, 14, 34), share)


def lighten(color: Color, share: float = 0.4) -> Color:
    """Mix with white."""
    return mix(color, (255, 255, 255), share)


def ball(color: Color) -> Gradient:
    """Create the fill of a round object that is lit from the upper left."""
    return Gradient(lighten(color, 0.32), darken(color, 0.3), "ball")


def polish(color: Color) -> Gradient:
    """Create the fill of a surface that is lit from above."""
    return Gradient(lighten(color, 0.3), darken(color, 0.22))


def place(points: str, x: float, y: float = 0.0, scale_x: float = 1.0, scale_y: float = 1.0) -> list[Point]:
    """Scale and move the points of a shape, written as in SVG: ``"0,0 8,-11 15,-15"``."""
    pairs = (point.split(",") for point in points.split())
    return [(x + scale_x * float(px), y + scale_y * float(py)) for px, py in pairs]


@dataclass(frozen=True)
class _Shape:
    """A shape by the name of Pillow's method that draws it; a box or an ellipse by two corners."""

    method: Literal["polygon", "ellipse", "rounded_rectangle", "line"]
    points: Sequence[Point]
    options: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, image: Image.Image, ink: Any, scale: float, left: int, top: int) -> None:
        """Draw the shape in a picture whose upper left corner is at ``(left, top)``, in pixels."""
        pixels = [value for x, y in self.points for value in (x * scale - left, y * scale - top)]
        getattr(ImageDraw.Draw(image), self.method)(pixels, fill=ink, **self.options)


class Canvas:
    """A transparent picture of a size in units, with ``detail`` pixels per unit; drawn larger, for smooth edges."""

    def __init__(self, width: float, height: float, detail: float, oversampling: int = 2) -> None:
        self._oversampling = oversampling
        self._scale = detail * oversampling
        sides = [max(1, round(length * detail)) * oversampling for length in (width, height)]
        self._image = Image.new("RGBA", (sides[0], sides[1]))

    def finish(self) -> Image.Image:
        """Reduce the drawing to the finished picture, RGBA."""
        return self._image if self._oversampling == 1 else self._image.reduce(self._oversampling)

    def polygon(self, points: Points, fill: Fill, alpha: float = 1.0) -> None:
        """Draw a polygon."""
        self._fill([_Shape("polygon", _points(points))], fill, alpha)

    def blob(self, points: Points, fill: Fill, alpha: float = 1.0) -> None:
        """Draw a smooth closed shape through points (Catmull-Rom spline)."""
        self.polygon(_smooth(points, closed=True), fill, alpha)

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: Fill, alpha: float = 1.0) -> None:
        """Draw an ellipse around a center."""
        self._fill([_Shape("ellipse", [(x - rx, y - ry), (x + rx, y + ry)])], fill, alpha)

    def box(
        self, x0: float, y0: float, x1: float, y1: float, fill: Fill, radius: float = 0.0, alpha: float = 1.0
    ) -> None:
        """Draw a rectangle, with rounded corners if ``radius`` is positive."""
        options = {"radius": radius * self._scale}
        self._fill([_Shape("rounded_rectangle", [(x0, y0), (x1, y1)], options)], fill, alpha)

    def line(self, points: Points, color: Color, width: float, alpha: float = 1.0) -> None:
        """Draw a line with round ends through points."""
        half, corners = width / 2, _points(points)
        options = {"width": max(1, round(width * self._scale)), "joint": "curve"}
        ends = (corners[0], corners[-1])
        rounded = [_Shape("ellipse", [(x - half, y - half), (x + half, y + half)]) for x, y in ends]
        self._fill([_Shape("line", corners, options), *rounded], color, alpha, margin=width)

    def curve(self, points: Points, color: Color, width: float, alpha: float = 1.0) -> None:
        """Draw a smooth open line through points."""
        self.line(_smooth(points, closed=False), color, width, alpha)

    def glow(self, x: float, y: float, radius: float, color: Color, strength: float = 0.8) -> None:
        """Draw a light that fades toward its edge."""
        self._soft(x, y, radius, radius, color, strength)

    def shadow(self, x: float, y: float, rx: float, ry: float, strength: float = 0.45) -> None:
        """Draw a soft shadow on the ground."""
        self._soft(x, y, rx, ry, (8, 10, 24), strength)

    def multiply(self, texture: Image.Image) -> None:
        """Multiply all colors by a gray texture, and keep the transparency."""
        gray = texture.resize(self._image.size, Image.Resampling.BICUBIC)
        red, green, blue, alpha = self._image.split()
        channels = [ImageChops.multiply(channel, gray) for channel in (red, green, blue)]
        self._image = Image.merge("RGBA", [*channels, alpha])

    def _soft(self, x: float, y: float, rx: float, ry: float, color: Color, strength: float) -> None:
        # Pillow's radial gradient is 0 in the center and 179 where its sides are nearest.
        fade = _RADIAL.point([round(255 * strength * max(0.0, 1 - v / 179) ** 2) for v in range(256)])
        size = (max(1, round(2 * rx * self._scale)), max(1, round(2 * ry * self._scale)))
        layer = Image.new("RGBA", size, color)
        layer.putalpha(fade.resize(size))
        self._compose(layer, round((x - rx) * self._scale), round((y - ry) * self._scale))

    def _fill(self, shapes: Sequence[_Shape], fill: Fill, alpha: float, margin: float = 0.0) -> None:
        """Draw shapes in one color or gradient, which covers their bounding box."""
        if alpha >= 1 and not isinstance(fill, Gradient):
            for shape in shapes:
                shape.draw(self._image, (*fill, 255), self._scale, 0, 0)
            return
        corners = np.array([point for shape in shapes for point in shape.points])
        left, top = np.rint((corners.min(0) - margin) * self._scale).astype(int).tolist()
        right, bottom = np.rint((corners.max(0) + margin) * self._scale).astype(int).tolist()
        mask = Image.new("L", (right + 2 - left, bottom + 2 - top))
        for shape in shapes:
            shape.draw(mask, round(255 * alpha), self._scale, left, top)
        layer = _paint(fill, mask.size)
        layer.putalpha(mask)
        self._compose(layer, left, top)

    def _compose(self, layer: Image.Image, left: int, top: int) -> None:
        whole = Image.new("RGBA", self._image.size)
        whole.paste(layer, (left, top))
        self._image.alpha_composite(whole)


def grain(seed: int, size: tuple[int, int], strength: float, coarse: tuple[int, int] = (1, 1)) -> Image.Image:
    """Create a gray texture of smooth noise, for :meth:`Canvas.multiply`.

    Args:
        size: Width and height in pixels.
        strength: Largest share of brightness that the noise removes, 0..1.
        coarse: Width and height of a spot in pixels; unequal values give streaks, as in wood.
    """
    rng = np.random.default_rng(seed)
    cells = (max(2, size[1] // coarse[1]), max(2, size[0] // coarse[0]))
    values = 255 * (1 - strength * rng.random(cells))
    noise = Image.fromarray(values.astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
    return noise.filter(ImageFilter.GaussianBlur(0.6))


def _paint(fill: Fill, size: tuple[int, int]) -> Image.Image:
    if not isinstance(fill, Gradient):
        return Image.new("RGB", size, fill)
    if fill.kind == "ball":
        # Move the center to the upper left; 180 of the gradient's 256 pixels cover a side, to stay inside it.
        share = _RADIAL.transform(
            size,
            Image.Transform.AFFINE,
            (180 / size[0], 0, 128 - 0.36 * 180, 0, 180 / size[1], 128 - 0.3 * 180),
            Image.Resampling.BILINEAR,
        )
        return _blend(fill, share)
    if fill.kind == "down":
        return _blend(fill, _LINEAR.resize((1, size[1]))).resize(size, Image.Resampling.NEAREST)
    across = _LINEAR.transpose(Image.Transpose.ROTATE_90).resize((size[0], 1))
    return _blend(fill, across).resize(size, Image.Resampling.NEAREST)


def _blend(fill: Gradient, share: Image.Image) -> Image.Image:
    start, end = (Image.new("RGB", share.size, color) for color in (fill.start, fill.end))
    return Image.composite(end, start, share)


def _points(points: Points) -> Sequence[Point]:
    return place(points, 0) if isinstance(points, str) else points


def _smooth(points: Points, *, closed: bool) -> list[Point]:
    knots = np.asarray(_points(points), np.float64)
    padded = np.vstack([knots[-1:], knots, knots[:2]] if closed else [knots[:1], knots, knots[-1:]])
    t = np.linspace(0, 1, 10, endpoint=False)[:, None]
    pieces = []
    for a, b, c, d in zip(padded, padded[1:], padded[2:], padded[3:], strict=False):
        pieces.append(
            0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
        )
    if not closed:
        pieces.append(knots[-1:])
    return [(float(x), float(y)) for x, y in np.vstack(pieces)]
