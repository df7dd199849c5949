"""Draw scenes with Pillow at twice the size, finish them in their domain's style, and write them as mp4 files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from benchmarks.data.world.background import draw_background
from benchmarks.data.world.motion import Pose, pose
from benchmarks.data.world.scene_model import Actor, Clip, Color, Part, Scene
from benchmarks.data.world.shapes import OPEN_SHAPES, part_outline
from media import sample_times
from media.mp4_encoding import encode_mp4

_OVERSAMPLING = 2
Frames = npt.NDArray[np.uint8]


def render(scene: Scene, *, size: int, times: Sequence[float]) -> Frames:
    """Draw frames of a scene.

    Args:
        size: Side of the square frames in pixels.
        times: Points in time in [0, 1], in any order.

    Returns:
        ``uint8 [len(times), size, size, 3]``, RGB; equal arguments give equal frames in every process.
    """
    side = size * _OVERSAMPLING
    back = draw_background(scene.setting, scene.look_seed, side, scene.style.wobble)
    other = scene.companion
    if other and not other.sways:
        back = back.copy()
        _draw(back, scene, other, _companion_pose(other, 0.0), 1)
    finish = _Finish(scene, size)
    frames = np.empty((len(times), size, size, 3), np.uint8)
    for index, time in enumerate(times):
        canvas = back.copy()
        if other and other.sways:
            _draw(canvas, scene, other, _companion_pose(other, time), 1)
        at = pose(scene.events, scene.start, time)
        glow = None
        if at.alpha > 0.99:
            _draw(canvas, scene, scene.main, at, 0)
        elif at.alpha > 0.01:
            shown = canvas.copy()
            _draw(shown, scene, scene.main, at, 0)
            canvas = Image.blend(canvas, shown, at.alpha)
        if scene.style.glow:
            glow = _glow(scene, at, size)
        frames[index] = finish(canvas, glow)
    return frames


def write_mp4(clip: Clip, path: Path, *, size: int = 192, fps: int = 10, seconds: float = 3.0) -> None:
    """Draw a clip and write its mp4 file, which appears atomically.

    Args:
        path: File to write; its folder must exist.
        size: Side of the square picture in pixels, even.
        fps: Frames per second.
        seconds: Duration, rounded to whole frames.

    Raises:
        ValueError: ``size`` is odd, which yuv420p does not allow, or the clip would have no frame.
    """
    count = round(fps * seconds)
    if size % 2 or count < 1:
        raise ValueError(f"size must be even and fps × seconds at least 1, got size={size}, {count} frames")
    encode_mp4(render(clip.scene, size=size, times=sample_times(1.0, count)), path, fps=fps)


def _companion_pose(actor: Actor, time: float) -> Pose:
    """Compute a companion's pose: still, or swaying symmetrically in time."""
    tilt = 14.0 * math.cos(6 * math.pi * time) if actor.sways else 0.0
    return Pose(actor.x, actor.y, 1.0, tilt, 1.0)


def _shade(color: Color, factor: float) -> Color:
    """Darken a color for factors below 1, or lighten it above 1."""
    if factor <= 1:
        return int(color[0] * factor), int(color[1] * factor), int(color[2] * factor)
    lightening = factor - 1
    return tuple(int(c + (255 - c) * lightening) for c in color)  # type: ignore[return-value]


@lru_cache(maxsize=4096)
def _parse_color(role: str) -> Color:
    """Parse a color ``#rrggbb``."""
    return int(role[1:3], 16), int(role[3:5], 16), int(role[5:7], 16)


def _part_color(part: Part, actor: Actor, scene: Scene) -> Color:
    """Look up the color for a part's role."""
    role = part.role
    if role == "main":
        return actor.hue.color
    if role == "dark":
        return _shade(actor.hue.color, 0.5)
    if role == "light":
        return _shade(actor.hue.color, 1.55)
    if role == "ink":
        return scene.setting.ink
    if role == "accent":
        return scene.setting.accent
    if role == "ground":
        top, bottom = scene.setting.top, scene.setting.bottom
        return (top[0] + bottom[0]) // 2, (top[1] + bottom[1]) // 2, (top[2] + bottom[2]) // 2
    return _parse_color(role)


@lru_cache(maxsize=2048)
def _part_points(part: Part) -> npt.NDArray[np.float64]:
    """Compute a part's outline in the unit square of its object."""
    return part_outline(part) + np.array([part.x, part.y])


@lru_cache(maxsize=512)
def _hand_drawn_points(part: Part, amount: float, seed: int) -> npt.NDArray[np.float64]:
    """Add points to a part's outline, each with a small random offset."""
    points = _part_points(part)
    closed = part.shape not in OPEN_SHAPES or part.shape == "ring"
    if closed:
        points = np.concatenate([points, points[:1]])
    dense = np.concatenate([np.linspace(a, b, 3, endpoint=False) for a, b in pairwise(points)])
    if not closed:
        dense = np.concatenate([dense, points[-1:]])
    rng = np.random.default_rng([seed, int(abs(part.x * 997 + part.y * 89) * 1000)])
    return dense + rng.normal(0, amount, dense.shape)


def _draw(canvas: Image.Image, scene: Scene, actor: Actor, at: Pose, layer: int) -> None:
    """Draw an actor in a pose onto the canvas.

    ``layer`` keeps the offsets of hand-drawn outlines apart: 0 for the main actor, 1 for the companion.
    """
    style = scene.style
    side = canvas.width
    radius = actor.size * at.scale * side / 2
    angle = math.radians(actor.turn + at.angle)
    cos, sin = math.cos(angle) * radius, math.sin(angle) * radius
    turn = np.array([[cos, sin], [-sin, cos]])
    center = np.array([at.x * side, at.y * side])
    translucent = style.opacity < 1 or style.shadow > 0
    pen = ImageDraw.Draw(canvas, "RGBA" if translucent else "RGB")
    if style.shadow:
        offset = center + style.shadow * side
        for part in actor.entity.drawing:
            points = (_part_points(part) @ turn + offset).ravel().tolist()
            if part.shape in OPEN_SHAPES:
                pen.line(points, fill=(0, 0, 0, 70), width=max(2, int(0.16 * radius)))
            else:
                pen.polygon(points, fill=(0, 0, 0, 70))
    opacity = int(255 * style.opacity)
    width = max(1, round(style.line * side))
    for part in actor.entity.drawing:
        outline = (
            _hand_drawn_points(part, style.wobble, scene.look_seed % 64 + layer)
            if style.wobble
            else _part_points(part)
        )
        points = (outline @ turn + center).ravel().tolist()
        color = _part_color(part, actor, scene)
        if part.shape in OPEN_SHAPES:
            if part.shape == "ring":
                points += points[:4]
            # The width of an open stroke grows with the part, and is at least 2 pixels.
            thick = max(2, round(0.2 * radius * max(part.rx, part.ry) ** 0.5))
            pen.line(points, fill=color, width=thick if style.fill else max(width, thick // 2), joint="curve")
            continue
        if style.fill:
            pen.polygon(points, fill=(*color, opacity) if translucent else color)
        if style.line:
            ink = color if style.line_role == "main" else scene.setting.ink
            pen.line(points + points[:4], fill=ink, width=width, joint="curve")


def _glow(scene: Scene, at: Pose, size: int) -> Image.Image:
    """Draw the main actor's glow, at a third of the size because it is blurred."""
    side = max(24, size // 3)
    layer = Image.new("RGB", (side, side))
    if at.alpha > 0.01:
        _draw(layer, scene, scene.main, at, 0)
    if at.alpha < 0.99:
        layer = layer.point(lambda value: value * at.alpha)
    layer = layer.filter(ImageFilter.BoxBlur(side * 0.045)).filter(ImageFilter.BoxBlur(side * 0.045))
    strength = scene.style.glow
    return layer.point([int(v * strength) for v in range(256)] * 3).resize(
        (size, size), Image.Resampling.BILINEAR
    )


class _Finish:
    """Finishes every frame: downscaling, then blur, pixelation, light and grain."""

    def __init__(self, scene: Scene, size: int) -> None:
        self._style = style = scene.style
        self._size = size
        self._shading = _shading(size, style.scanlines, style.vignette)
        # The grain does not change over time: flicker would increase the file size.
        self._grain: npt.NDArray[np.float32] | None = None
        if style.grain:
            rng = np.random.default_rng(scene.look_seed)
            self._grain = rng.standard_normal((size, size, 1), dtype=np.float32) * style.grain

    def __call__(self, canvas: Image.Image, glow: Image.Image | None) -> Frames:
        style, size = self._style, self._size
        if style.pixels:
            cells = min(style.pixels, size)
            canvas = canvas.resize((cells, cells), Image.Resampling.BOX)
            canvas = canvas.resize((size, size), Image.Resampling.NEAREST)
        else:
            canvas = canvas.reduce(_OVERSAMPLING)
        if glow is not None:
            canvas = ImageChops.screen(canvas, glow)
        if style.blur:
            canvas = canvas.filter(ImageFilter.BoxBlur(style.blur * size))
        frame = np.asarray(canvas)
        if self._shading is None and self._grain is None:
            return frame
        light = frame.astype(np.float32)
        if self._shading is not None:
            light *= self._shading
        if self._grain is not None:
            light += self._grain
        return np.clip(light, 0, 255).astype(np.uint8)


@lru_cache(maxsize=64)
def _shading(size: int, scanlines: float, vignette: float) -> npt.NDArray[np.float32] | None:
    """Compute each pixel's brightness factor, ``float32 [size, size, 1]``; None without scanlines and vignette."""
    if not scanlines and not vignette:
        return None
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1
    factor = np.ones((size, size), np.float32)
    if scanlines:
        factor *= (1 - scanlines * (np.sin(np.arange(size) / size * 64 * math.pi) > 0))[:, None].astype(
            np.float32
        )
    if vignette:
        distance = np.sqrt(axis[:, None] ** 2 + axis[None] ** 2)
        if vignette > 1:
            factor *= np.clip((1.16 - distance) * 14, 0.06, 1)
        else:
            factor *= 1 - vignette * np.clip(distance - 0.55, 0, None)
    return factor[..., None]
