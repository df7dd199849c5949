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
    """The colored object that a video is about."""

    size: tuple[float, float]  # of its canvas, in units
    paint: Paint  # draws it in a color at a phase of its movement, 0 ≤ phase < 1
    verb: str  # its action in captions
    synonym: str  # another noun for it, for paraphrases
    low: float = 0.0  # how far its lower edge lies below that of other subjects, in units


@dataclass(frozen=True)
class Backdrop:
    """A place."""

    paint: Callable[[Canvas, np.random.Generator], None]  # the random generator varies details
    weather: Literal["none", "snow", "rain", "bubbles", "sparks"] = "none"
    has_grain: bool = False  # of a photograph


@dataclass(frozen=True)
class Companion:
    """A second object in a scene."""

    size: tuple[float, float]  # of its canvas, in units
    paint: Callable[[Canvas, float], None]  # draws it at a phase of its movement, 0 ≤ phase < 1
    x: float  # center in the frame, in units
    y: float  # lower edge in the frame
    stop: float | None = None  # where the subject's front stops; None: the subject passes
    drift: float = 0.0  # movement to the right during the video
    in_front: bool = True  # of the subject
    subject_x: float = 144.0  # center of a swimming or standing subject


@dataclass(frozen=True)
class SceneDomain:
    """Parts to combine into a domain's scenes, by their names."""

    name: str
    subjects: Mapping[str, Subject]
    backdrops: Mapping[str, Backdrop]
    companions: Mapping[str, Companion]
    path: Literal["drive", "swim", "stand"]  # how subjects move
    floor: float  # vertical position of the subjects' lower edge, in units
    zoom: tuple[float, float] = (0.95, 1.1)  # smallest and largest factor on the size of subjects


@dataclass(frozen=True)
class Scene:
    """A drawn video, with the names of its parts; its plain caption is the first."""

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
