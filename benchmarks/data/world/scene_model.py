"""Data model of the video world: scenes with objects, settings and events, without pixels or sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """A primitive in a drawing: center and half extents in the unit square [-1, 1]², turned by degrees."""

    shape: str
    x: float
    y: float
    rx: float
    ry: float
    role: str
    turn: float = 0.0


def parse_drawing(text: str) -> tuple[Part, ...]:
    """Parse a drawing: primitives ``shape x y rx ry role [turn]``, separated by ``;``.

    Roles are ``main`` (the object's color), ``dark`` and ``light`` (its shades), ``ink``, ``accent`` and
    ``ground`` (colors of the setting) or a literal ``#rrggbb``.
    """
    drawing = []
    for line in filter(None, (piece.strip() for piece in text.split(";"))):
        shape, x, y, rx, ry, role, *turn = line.split()
        drawing.append(
            Part(shape, float(x), float(y), float(rx), float(ry), role, float(turn[0]) if turn else 0.0)
        )
    return tuple(drawing)


@dataclass(frozen=True, slots=True)
class Entity:
    """A kind of object. ``words`` are its names in the domain; ``gloss`` says what it is in everyday words."""

    words: tuple[str, ...]
    drawing: tuple[Part, ...]
    gloss: str

    @property
    def name(self) -> str:
        return self.words[0]


@dataclass(frozen=True, slots=True)
class Hue:
    """A color with its names in a domain; the last name is the everyday word."""

    words: tuple[str, ...]
    color: Color


@dataclass(frozen=True, slots=True)
class Setting:
    """A place: phrases that name it, a vertical gradient, scenery in the unit square, and a pattern."""

    phrases: tuple[str, ...]
    top: Color
    bottom: Color
    scenery: tuple[Part, ...] = ()
    pattern: str = "none"
    pattern_color: Color = (128, 128, 128)
    ink: Color = (20, 20, 24)
    accent: Color = (255, 255, 255)


@dataclass(frozen=True, slots=True)
class Style:
    """A domain's rendering style. Lengths are fractions of the frame side."""

    fill: bool = True
    line: float = 0.0  # stroke width; 0 draws no outline
    line_role: str = "ink"
    wobble: float = 0.0  # hand-drawn unevenness of outlines
    opacity: float = 1.0
    shadow: float = 0.0  # distance of a cast shadow
    glow: float = 0.0  # strength of light around objects, 0..1
    pixels: int = 0  # side of the coarse grid of pixelated domains; 0 is off
    blur: float = 0.0
    grain: float = 0.0  # standard deviation in gray levels
    scanlines: float = 0.0
    vignette: float = 0.0  # 1 closes the corners; above 1 leaves a round eyepiece
    upright: bool = True  # False turns objects at random


@dataclass(frozen=True, slots=True)
class Event:
    """One motion in a clip.

    ``sign`` is the direction of motions whose captions leave it open (spins, zigzags); ``reach`` scales the path.
    """

    motion: str
    sign: int = 1
    reach: float = 1.0


@dataclass(frozen=True, slots=True)
class Actor:
    """An object in a scene. ``size`` is its height as a fraction of the frame side, ``turn`` degrees."""

    entity: Entity
    hue: Hue
    size: float
    size_word: str = ""  # "small", "large", or "" if captions do not mention the size
    x: float = 0.5
    y: float = 0.5
    turn: float = 0.0
    sways: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """The content of a clip. ``start`` is the main actor's (x, y, log scale, visibility) at time 0."""

    style: Style
    setting: Setting
    main: Actor
    companion: Actor | None
    events: tuple[Event, ...]
    start: tuple[float, float, float, float]
    look_seed: int

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes that captions can describe; scenes with equal attributes have the same possible captions."""
        other = self.companion
        return (
            self.main.entity.name,
            self.main.hue.words[0],
            self.main.size_word,
            self.setting.phrases[0],
            other.entity.name if other else "",
            other.hue.words[0] if other else "",
            " ".join(event.motion for event in self.events),
        )


@dataclass(frozen=True, slots=True)
class Clip:
    """A video's description, from which its frames are rendered."""

    id: str
    domain: str
    category: str
    split: str  # "train" | "val" | "test"
    scene: Scene
    captions: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class Domain:
    """A rendering style with its own entities, colors, settings and verbs.

    ``verbs`` maps a motion to verb phrases ``"drift | to the left"``. Captions for pre-training never contain the words
    in ``reserved``.
    """

    name: str
    about: str
    style: Style
    entities: tuple[Entity, ...]
    hues: tuple[Hue, ...]
    settings: tuple[Setting, ...]
    verbs: Mapping[str, tuple[str, ...]]
    props: tuple[Entity, ...] = ()
    sizes: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"small": ("small", "little"), "large": ("large", "big")}
    )
    reserved: frozenset[str] = frozenset()
