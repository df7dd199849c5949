"""Content of a drawn video."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from media.scenes.painting import Canvas, Color

FRAME_WIDTH, FRAME_HEIGHT = 288, 208  # units of every scene, and pixels of a video

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
        paint: Draws it in a color, at a phase of its movement in [0, 1).
        verb: Its action in captions.
        synonym: Another noun for it, for paraphrases.
        low: How far its lower edge is below that of others, in units.
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
        phrases: Words of captions; the first are the plainest.
        paint: Draws it; the generator varies details.
        weather: Foreground that moves.
    """

    phrases: tuple[str, str, str]
    paint: Callable[[Canvas, np.random.Generator], None]
    weather: Literal["none", "snow", "rain", "bubbles", "sparks"] = "none"


@dataclass(frozen=True)
class Companion:
    """A second object of a scene.

    Attributes:
        phrases: Words of captions; the first are the plainest.
        size: Width and height of its canvas in units.
        paint: Draws it at a phase of its movement in [0, 1).
        x: Horizontal position of its center in the frame, in units.
        y: Vertical position of its lower edge in the frame, in units.
        stop: Where the front of the subject stops, in units; None if the subject passes.
        drift: Movement to the right in a video, in units.
        in_front: Whether it covers the subject.
        subject_x: Where a swimming or standing subject has its center, in units.
    """

    phrases: tuple[str, str, str]
    size: tuple[float, float]
    paint: Callable[[Canvas, float], None]
    x: float
    y: float
    stop: float | None = None
    drift: float = 0.0
    in_front: bool = False
    subject_x: float = 144.0


@dataclass(frozen=True)
class SceneDomain:
    """Parts that the scenes of a domain are combined from.

    Attributes:
        subjects: Subjects by noun.
        backdrops: Places by name.
        companions: Companions by name.
        path: Movement of subjects: along a road, freely, or none.
        floor: Vertical position of the lower edge of subjects, in units.
        zoom: Smallest and largest size of subjects, as a factor.
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
    """One video.

    Attributes:
        split: ``train``, ``val`` or ``test``.
        subject, color, backdrop, companion: Names of its parts.
        seed: Seed of its details.
        captions: Captions; the first is the plain one.
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
