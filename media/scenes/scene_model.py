"""Parts of a drawn video."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from media.scenes.painting import Canvas, Color

FRAME_WIDTH, FRAME_HEIGHT = 288, 208  # in units, and in pixels of a video

COLORS: dict[str, Color] = {
    "red": (214, 36, 40),
    "blue": (34, 92, 214),
    "green": (40, 156, 70),
    "yellow": (252, 208, 36),
    "white": (246, 246, 242),
    "pink": (246, 116, 180),
}

Paint = Callable[[Canvas, Color, float], None]


@dataclass(frozen=True)
class Subject:
    """The colored object that a video is about.

    Attributes:
        size: Width and height of its canvas in units.
        paint: Draws it in a color at a phase of its movement, 0 ≤ phase < 1.
        verb: Its action in captions.
        synonym: Another noun for it, for paraphrases.
        low: How far its lower edge lies below that of other subjects, in units.
    """

    size: tuple[float, float]
    paint: Paint
    verb: str
    synonym: str
    low: float = 0.0


@dataclass(frozen=True)
class Backdrop:
    """A place.

    Attributes:
        paint: Draws it; the random generator varies details.
        weather: Moving foreground.
    """

    paint: Callable[[Canvas, np.random.Generator], None]
    weather: Literal["none", "snow", "rain", "bubbles", "sparks"] = "none"


@dataclass(frozen=True)
class Companion:
    """A second object in a scene.

    Attributes:
        size: Width and height of its canvas in units.
        paint: Draws it at a phase of its movement, 0 ≤ phase < 1.
        x: Horizontal position of its center in the frame, in units.
        y: Vertical position of its lower edge in the frame, in units.
        stop: Where the subject's front stops, in units; None if the subject passes.
        drift: Movement to the right during the video, in units.
        in_front: Whether it covers the subject.
        subject_x: Center of a swimming or standing subject, in units.
    """

    size: tuple[float, float]
    paint: Callable[[Canvas, float], None]
    x: float
    y: float
    stop: float | None = None
    drift: float = 0.0
    in_front: bool = True
    subject_x: float = 144.0


@dataclass(frozen=True)
class SceneDomain:
    """Parts to combine into a domain's scenes.

    Attributes:
        subjects: Subjects by noun.
        backdrops: Places by name.
        companions: Companions by name.
        path: How subjects move: along a road, freely, or not at all.
        floor: Vertical position of the subjects' lower edge, in units.
        zoom: Smallest and largest factor on the size of subjects.
    """

    name: str
    subjects: Mapping[str, Subject]
    backdrops: Mapping[str, Backdrop]
    companions: Mapping[str, Companion]
    path: Literal["drive", "swim", "stand"]
    floor: float
    zoom: tuple[float, float] = (0.95, 1.1)


@dataclass(frozen=True)
class Scene:
    """A drawn video.

    Attributes:
        split: ``train``, ``val`` or ``test``.
        subject, color, backdrop, companion: Names of its parts.
        seed: Seed for its details.
        captions: Captions, the plain one first.
    """

    domain: str
    split: str
    subject: str
    color: str
    backdrop: str
    companion: str
    seed: int
    captions: tuple[str, ...]

    @property
    def id(self) -> str:
        """Name of the video, unique in its domain."""
        parts = (self.color, self.subject, self.backdrop, self.companion)
        return "-".join(part.replace(" ", "-") for part in parts)
