"""Render scenes: backdrop, moving subject, companion and weather."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from media.scenes.painting import Canvas, grain
from media.scenes.scene_domains import SCENE_DOMAINS
from media.scenes.scene_model import COLORS, FRAME_HEIGHT, FRAME_WIDTH, Companion, Scene, SceneDomain, Subject

FRAMES_PER_SECOND = 12
FRAMES = 30
_OVERSAMPLING = 2
_PHASES = 5  # drawings per cycle of a movement
_CYCLES = 3  # cycles per video
_SIZE = (FRAME_WIDTH * _OVERSAMPLING, FRAME_HEIGHT * _OVERSAMPLING)

Pictures = list[Image.Image]


def render_scene(scene: Scene) -> npt.NDArray[np.uint8]:
    """Render RGB frames ``uint8 [30, 208, 288, 3]``; equal scenes give equal frames."""
    domain = SCENE_DOMAINS[scene.domain]
    rng = np.random.default_rng(scene.seed)
    back = _backdrop(domain, scene, rng)
    subject = domain.subjects[scene.subject]
    zoom = rng.uniform(*domain.zoom)
    color = COLORS[scene.color]
    moving = _phases(subject.size, zoom, lambda canvas, phase: subject.paint(canvas, color, phase))
    other = domain.companions[scene.companion]
    beside = _companion_phases(scene.domain, scene.companion)
    weather = _Weather(domain.backdrops[scene.backdrop].weather, rng)
    path = _path(domain, other, subject, zoom, rng)
    frames = np.empty((FRAMES, FRAME_HEIGHT, FRAME_WIDTH, 3), np.uint8)
    for index in range(FRAMES):
        time = index / (FRAMES - 1)
        frame = back.copy()
        phase = int(time * _CYCLES * _PHASES) % _PHASES
        layers = [
            (moving[phase], *path(time)),
            (beside[phase], other.x + other.drift * (time - 0.5), other.y),
        ]
        for picture, center, bottom in layers if other.in_front else layers[::-1]:
            left = round(center * _OVERSAMPLING - picture.width / 2)
            frame.paste(picture, (left, round(bottom * _OVERSAMPLING - picture.height)), picture)
        weather.draw(frame, time)
        frames[index] = np.asarray(frame.reduce(_OVERSAMPLING))
    return frames


def _backdrop(domain: SceneDomain, scene: Scene, rng: np.random.Generator) -> Image.Image:
    canvas = Canvas(FRAME_WIDTH, FRAME_HEIGHT, _OVERSAMPLING, oversampling=1)
    backdrop = domain.backdrops[scene.backdrop]
    backdrop.paint(canvas, rng)
    if backdrop.has_grain:
        canvas.multiply(grain(int(rng.integers(2**31)), _SIZE, 0.08))
    return canvas.finish().convert("RGB")


def _phases(size: tuple[float, float], zoom: float, paint: Callable[[Canvas, float], None]) -> Pictures:
    pictures = []
    for number in range(_PHASES):
        canvas = Canvas(*size, _OVERSAMPLING * zoom)
        paint(canvas, number / _PHASES)
        pictures.append(canvas.finish())
    return pictures


@cache
def _companion_phases(domain: str, name: str) -> Pictures:
    companion = SCENE_DOMAINS[domain].companions[name]
    return _phases(companion.size, 1.0, companion.paint)


def _path(
    domain: SceneDomain, other: Companion, subject: Subject, zoom: float, rng: np.random.Generator
) -> Callable[[float], tuple[float, float]]:
    """Plan where the subject's center and lower edge are at a time 0..1, in units."""
    lift, sway = rng.uniform(-4, 4), rng.uniform(0, 2 * math.pi)
    floor, width = domain.floor + subject.low, subject.size[0] * zoom
    if domain.path == "stand":
        return lambda time: (other.subject_x + 2 * lift + 40 * max(0.0, 1 - 3 * time) ** 2, floor)
    if domain.path == "swim":
        return lambda time: (
            other.subject_x + 34 * (time - 0.5),
            floor + lift + 6 * math.sin(2 * math.pi * time + sway),
        )
    end = 172.0 if other.stop is None else other.stop - width / 2
    start = end - 118

    def drive(time: float) -> tuple[float, float]:
        eased = time if other.stop is None else 1 - (1 - min(1.0, time / 0.6)) ** 2
        bounce = 0.5 * math.sin(24 * time) * (eased < 1)
        return start + (end - start) * eased, floor + bounce

    return drive


class _Weather:
    """Falling snow or rain, rising bubbles or drifting sparks."""

    def __init__(self, kind: str, rng: np.random.Generator) -> None:
        self._kind = kind
        count = {"none": 0, "snow": 90, "rain": 80, "bubbles": 16, "sparks": 40}[kind]
        self._places = rng.random((count, 3))

    def draw(self, frame: Image.Image, time: float) -> None:
        """Draw the weather at a time 0..1."""
        pen = ImageDraw.Draw(frame, "RGBA")
        width, height = _SIZE
        for x, y, size in self._places.tolist():
            if self._kind == "rain":
                left, top = x * width, (y + 3 * time) % 1 * height
                pen.line([left, top, left - 4, top + 22 + 10 * size], (220, 230, 245, 130), 2)
                continue
            if self._kind == "snow":
                left, top = (
                    (x + 0.02 * math.sin(9 * time + 6 * size)) * width,
                    (y + (0.4 + 0.3 * size) * time) % 1 * height,
                )
                radius, ink = 2 + 3 * size, (255, 255, 255, 235)
            elif self._kind == "bubbles":
                left, top = (
                    (x + 0.01 * math.sin(12 * time + 6 * size)) * width,
                    (y - (0.3 + 0.4 * size) * time) % 1 * height,
                )
                radius, ink = 3 + 6 * size, (210, 240, 255, 70)
            else:
                left, top = (x + 0.05 * time) * width, (y + 0.04 * math.sin(6 * time + 6 * size)) * height
                radius, ink = 1.5 + 2.5 * size, (150, 255, 220, 190)
            box = [left - radius, top - radius, left + radius, top + radius]
            pen.ellipse(box, ink, (230, 250, 255, 190) if self._kind == "bubbles" else None)
