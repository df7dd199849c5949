"""Draw backgrounds: a vertical gradient, a pattern and scenery, once per clip."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from benchmarks.data.world.scene_model import Color, Setting
from benchmarks.data.world.shapes import OPEN_SHAPES, part_outline

PATTERNS = ("none", "grid", "dots", "stripes", "specks", "rings", "checks", "rays", "paper")


@lru_cache(maxsize=48)
def draw_background(setting: Setting, seed: int, side: int, wobble: float = 0.0) -> Image.Image:
    """Draw a scene's still background, RGB, ``side`` pixels square. Callers copy it before drawing on it."""
    image = _gradient(setting.top, setting.bottom, side)
    rng = np.random.default_rng([seed, 1])
    pen = ImageDraw.Draw(image, "RGBA")
    _pattern(pen, setting, side, rng)
    shift = rng.uniform(-0.05, 0.05)
    for part in setting.scenery:
        # Wide parts (roads, floors) must still reach both edges.
        drift = shift if part.rx < 0.9 else 0.0
        points = (part_outline(part) + (part.x + drift, part.y) + 1) * (side / 2)
        color = _color(part.role, setting)
        flat = points.ravel().tolist()
        if part.shape in OPEN_SHAPES:
            if part.shape == "ring":
                flat += flat[:4]
            pen.line(flat, fill=color, width=max(1, round(0.012 * side)), joint="curve")
        else:
            pen.polygon(flat, fill=color)
    return image


def _color(role: str, setting: Setting) -> Color:
    named = {"ink": setting.ink, "accent": setting.accent, "pattern": setting.pattern_color}
    return named[role] if role in named else (int(role[1:3], 16), int(role[3:5], 16), int(role[5:7], 16))


def _gradient(top: Color, bottom: Color, side: int) -> Image.Image:
    if top == bottom:
        return Image.new("RGB", (side, side), top)
    ramp = np.linspace(0, 1, side, dtype=np.float32)[:, None]
    rows = np.asarray(top, np.float32) * (1 - ramp) + np.asarray(bottom, np.float32) * ramp
    return Image.fromarray(
        np.ascontiguousarray(np.broadcast_to(rows[:, None], (side, side, 3)).astype(np.uint8))
    )


def _pattern(pen: ImageDraw.ImageDraw, setting: Setting, side: int, rng: np.random.Generator) -> None:
    color = setting.pattern_color
    name = setting.pattern
    if name == "grid":
        step, offset = side / 10, rng.uniform(0, side / 10)
        for index in range(11):
            at = index * step + offset
            pen.line([at, 0, at, side], fill=color, width=max(1, side // 190))
            pen.line([0, at, side, at], fill=color, width=max(1, side // 190))
    elif name == "checks":
        step = side / 8
        for row in range(8):
            for column in range(row % 2, 8, 2):
                pen.rectangle([column * step, row * step, (column + 1) * step, (row + 1) * step], fill=color)
    elif name == "stripes":
        step = side / 9
        tilt = rng.uniform(-0.5, 0.5) * side
        for index in range(-6, 16, 2):
            at = index * step
            pen.polygon([at, 0, at + step, 0, at + step + tilt, side, at + tilt, side], fill=color)
    elif name == "dots":
        step = side / 8
        for row in range(9):
            for column in range(9):
                x, y, r = column * step, row * step, side / 55
                pen.ellipse([x - r, y - r, x + r, y + r], fill=color)
    elif name == "specks":
        for x, y, r in _scatter(rng, 34, side):
            pen.ellipse([x - r, y - r, x + r, y + r], fill=(*color, 190))
    elif name == "rings":
        for index in range(1, 6):
            r = side * index / 9.5
            box = [side / 2 - r, side / 2 - r, side / 2 + r, side / 2 + r]
            pen.ellipse(box, outline=color, width=max(1, side // 150))
        pen.line([side / 2, 0, side / 2, side], fill=color, width=max(1, side // 190))
        pen.line([0, side / 2, side, side / 2], fill=color, width=max(1, side // 190))
    elif name == "rays":
        for index in range(5):
            at = side * (index * 0.24 + rng.uniform(-0.06, 0.06))
            pen.polygon(
                [at, 0, at + side * 0.08, 0, at - side * 0.12, side, at - side * 0.3, side],
                fill=(*color, 40),
            )
    elif name == "paper":
        for x, y, r in _scatter(rng, 60, side):
            length = r * 5
            pen.line(
                [x, y, x + length, y + rng.uniform(-1, 1) * r], fill=(*color, 90), width=max(1, side // 250)
            )


def _scatter(rng: np.random.Generator, count: int, side: int) -> npt.NDArray[np.float64]:
    spots = rng.random((count, 3))
    return spots * [side, side, side * 0.012] + [0, 0, side * 0.004]
