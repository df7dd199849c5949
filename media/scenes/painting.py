"""Draw with Pillow: shapes with gradients, glow and shadow on a transparent canvas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

Color = tuple[int, int, int]
Point = tuple[float, float]
_Ink = int | tuple[int, int, int, int]
_ToPixels = Callable[[Sequence[Point]], list[float]]
_Draw = Callable[[ImageDraw.ImageDraw, _Ink, _ToPixels], None]

# Both go from black, in the center or at the top, to white.
_RADIAL, _LINEAR = Image.radial_gradient("L"), Image.linear_gradient("L")


@dataclass(frozen=True)
class Gradient:
    """A fill that changes from one color to another.

    Attributes:
        start: Color at the top, on the left, or of the highlight.
        end: Color at the bottom, on the right, or of the rim.
        kind: Direction; ``ball`` has its highlight at the upper left.
    """

    start: Color
    end: Color
    kind: Literal["down", "across", "ball"] = "down"


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


def star_points(x: float, y: float, radius: float, points: int = 5, inner: float = 0.45) -> list[Point]:
    """Compute the corners of a star around a center."""
    return [
        (
            x + radius * (1 if n % 2 == 0 else inner) * math.sin(n * math.pi / points),
            y - radius * (1 if n % 2 == 0 else inner) * math.cos(n * math.pi / points),
        )
        for n in range(2 * points)
    ]


class Canvas:
    """A transparent picture with its own unit of length.

    Args:
        width: Width in units.
        height: Height in units.
        detail: Pixels per unit in the finished picture.
        oversampling: Drawn pixels per side of a finished pixel; 2 or more give smooth edges.
    """

    def __init__(self, width: float, height: float, detail: float, oversampling: int = 2) -> None:
        self._oversampling = oversampling
        self._scale = detail * oversampling
        sides = [max(1, round(length * detail)) * oversampling for length in (width, height)]
        self._image = Image.new("RGBA", (sides[0], sides[1]))

    def finish(self) -> Image.Image:
        """Reduce the drawing to the finished picture, RGBA."""
        return self._image if self._oversampling == 1 else self._image.reduce(self._oversampling)

    def polygon(self, points: Sequence[Point], fill: Fill, alpha: float = 1.0) -> None:
        """Draw a polygon."""
        self._fill(lambda pen, ink, to_pixels: pen.polygon(to_pixels(points), fill=ink), points, fill, alpha)

    def blob(self, points: Sequence[Point], fill: Fill, alpha: float = 1.0) -> None:
        """Draw a smooth closed shape through points (Catmull-Rom spline)."""
        self.polygon(_smooth(points, closed=True), fill, alpha)

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: Fill, alpha: float = 1.0) -> None:
        """Draw an ellipse around a center."""
        corners = [(x - rx, y - ry), (x + rx, y + ry)]
        self._fill(
            lambda pen, ink, to_pixels: pen.ellipse(to_pixels(corners), fill=ink), corners, fill, alpha
        )

    def box(
        self, x0: float, y0: float, x1: float, y1: float, fill: Fill, radius: float = 0.0, alpha: float = 1.0
    ) -> None:
        """Draw a rectangle, with rounded corners if ``radius`` is positive."""
        corners = [(x0, y0), (x1, y1)]
        self._fill(
            lambda pen, ink, to_pixels: pen.rounded_rectangle(
                to_pixels(corners), radius * self._scale, fill=ink
            ),
            corners,
            fill,
            alpha,
        )

    def line(self, points: Sequence[Point], color: Color, width: float, alpha: float = 1.0) -> None:
        """Draw a line with round ends through points."""
        half = width / 2
        ends = [[(x - half, y - half), (x + half, y + half)] for x, y in (points[0], points[-1])]

        def draw(pen: ImageDraw.ImageDraw, ink: _Ink, to_pixels: _ToPixels) -> None:
            pen.line(to_pixels(points), fill=ink, width=max(1, round(width * self._scale)), joint="curve")
            for end in ends:
                pen.ellipse(to_pixels(end), fill=ink)

        xs, ys = [x for x, _ in points], [y for _, y in points]
        corners = [(min(xs) - width, min(ys) - width), (max(xs) + width, max(ys) + width)]
        self._fill(draw, corners, color, alpha)

    def curve(self, points: Sequence[Point], color: Color, width: float, alpha: float = 1.0) -> None:
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

    def _fill(self, draw: _Draw, points: Sequence[Point], fill: Fill, alpha: float) -> None:
        """Draw a shape inside the bounding box of ``points``."""
        if alpha >= 1 and not isinstance(fill, Gradient):
            draw(ImageDraw.Draw(self._image), (*fill, 255), self._to_pixels(0, 0))
            return
        xs, ys = [x * self._scale for x, _ in points], [y * self._scale for _, y in points]
        left, top = round(min(xs)), round(min(ys))
        size = (round(max(xs)) + 2 - left, round(max(ys)) + 2 - top)
        mask = Image.new("L", size)
        draw(ImageDraw.Draw(mask), round(255 * alpha), self._to_pixels(left, top))
        layer = _paint(fill, size)
        layer.putalpha(mask)
        self._compose(layer, left, top)

    def _to_pixels(self, left: int, top: int) -> _ToPixels:
        """Create a function that converts points to the flat pixel coordinates that Pillow takes."""
        return lambda points: [
            value for x, y in points for value in (x * self._scale - left, y * self._scale - top)
        ]

    def _compose(self, layer: Image.Image, left: int, top: int) -> None:
        source = (max(0, -left), max(0, -top))
        if source[0] < layer.width and source[1] < layer.height:
            place = (max(0, left), max(0, top))
            if place[0] < self._image.width and place[1] < self._image.height:
                room = (
                    min(layer.width, source[0] + self._image.width - place[0]),
                    min(layer.height, source[1] + self._image.height - place[1]),
                )
                self._image.alpha_composite(layer.crop((*source, *room)), place)


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


def _smooth(points: Sequence[Point], *, closed: bool) -> list[Point]:
    knots = np.asarray(points, np.float64)
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
