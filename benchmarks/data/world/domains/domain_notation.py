"""A compact notation for defining domains."""

from __future__ import annotations

from benchmarks.data.world.domains.everyday_vocabulary import VERBS
from benchmarks.data.world.scene_model import Color, Entity, Hue, Setting, parse_drawing


def entity(words: str, gloss: str, drawing: str) -> Entity:
    """Define an entity: ``entity("gasket/seal", "flat ring that closes a joint", "ring 0 0 1 1 main")``."""
    return Entity(tuple(words.split("/")), parse_drawing(drawing), gloss)


def hue(words: str, color: str) -> Hue:
    """Define a hue: ``hue("amber/honey", "#ffa020")``."""
    return Hue(tuple(words.split("/")), _rgb(color))


def setting(
    phrases: str,
    top: str,
    bottom: str,
    scenery: str = "",
    *,
    pattern: str = "none",
    pattern_color: str = "#808080",
    ink: str = "#141418",
    accent: str = "#ffffff",
) -> Setting:
    """Define a setting; colors as ``#rrggbb``."""
    return Setting(
        tuple(phrases.split("/")),
        _rgb(top),
        _rgb(bottom),
        parse_drawing(scenery),
        pattern,
        _rgb(pattern_color),
        _rgb(ink),
        _rgb(accent),
    )


def verbs(**own: str) -> dict[str, tuple[str, ...]]:
    """Define a domain's verbs for each motion: its own, separated by ``;``, and the first everyday verb."""
    unknown = set(own) - set(VERBS)
    if unknown:
        raise ValueError(f"no such motion: {', '.join(sorted(unknown))}")
    return {
        motion: (*(phrase.strip() for phrase in own.get(motion, "").split(";") if phrase.strip()), plain[0])
        for motion, plain in VERBS.items()
    }


def _rgb(text: str) -> Color:
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)
