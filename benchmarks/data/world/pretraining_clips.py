"""Clips for pre-training: everyday words and objects in widely varying random styles."""

from __future__ import annotations

import random

import numpy as np

from benchmarks.data.world.background import PATTERNS
from benchmarks.data.world.captions import DETAILS, caption
from benchmarks.data.world.domains.everyday_vocabulary import (
    HUES,
    PRETRAIN_DOMAINS,
    SHAPE_ENTITIES,
    SIZES,
    THINGS,
    VERBS,
)
from benchmarks.data.world.scene_model import Clip, Color, Domain, Hue, Part, Scene, Setting, Style
from benchmarks.data.world.scene_sampling import sample_events, sample_scene

__all__ = ["sample_pretraining_clip"]

_CAPTIONS = 3
_ROUND = frozenset({"circle", "ring"})  # a rotation of these is not visible
_NEAR = 110.0  # RGB distance below which an object is not visible on its background
_EVERYTHING = Domain(
    "everything", "shapes and things together", Style(), SHAPE_ENTITIES + THINGS, HUES, (), VERBS, sizes=SIZES
)
# Words of light and dark are the only ones for places: the rest of a look is left without a name.
_LIGHT = ("on a light background", "on a bright background")
_DARK = ("on a dark background", "in the dark")


def sample_pretraining_clip(rng: np.random.Generator) -> Clip:
    """A clip that was never seen before: random look, random thing, basic words.

    Two fifths show named everyday things (and a few of the named pre-training domains), the others bare shapes.
    """
    seed = int(rng.integers(1 << 62))
    chance = random.Random(seed)
    if chance.random() < 0.1:
        domain = chance.choice(list(PRETRAIN_DOMAINS.values()))
        entity, style, setting = chance.choice(domain.entities), domain.style, chance.choice(domain.settings)
    else:
        domain = _EVERYTHING
        entity = chance.choice(THINGS if chance.random() < 0.4 else SHAPE_ENTITIES)
        style, setting = _style(chance), _setting(chance)
    hues = [hue for hue in HUES if _visible(hue, setting)]
    hue = _varied(chance.choice(hues), chance)
    events = sample_events(chance, two=0.45)
    while entity.name in _ROUND and any(event.motion == "spin" for event in events):
        events = sample_events(chance, two=0.45)
    scene = sample_scene(domain, entity, events, chance, style=style, setting=setting, hue=hue)
    captions = tuple(_caption(scene, chance) for _ in range(_CAPTIONS))
    return Clip(f"pretrain-{seed:016x}", domain.name, entity.name, "train", scene, captions, seed)


def _caption(scene: Scene, chance: random.Random) -> str:
    details = {"hue"} if chance.random() < 0.9 else set()
    details |= {detail for detail in DETAILS[1:] if chance.random() < 0.5}
    return caption(scene, VERBS, SIZES, frozenset(details), chance)


def _style(chance: random.Random) -> Style:
    fill = chance.random() < 0.75
    line = chance.uniform(0.008, 0.03) if not fill or chance.random() < 0.4 else 0.0
    return Style(
        fill=fill,
        line=line,
        # An outline alone has to carry the color.
        line_role="main" if not fill or chance.random() < 0.4 else "ink",
        wobble=chance.uniform(0.01, 0.05) if chance.random() < 0.2 else 0.0,
        opacity=chance.uniform(0.6, 0.95) if chance.random() < 0.2 else 1.0,
        shadow=chance.uniform(0.01, 0.03) if chance.random() < 0.2 else 0.0,
        glow=chance.uniform(0.3, 0.8) if chance.random() < 0.12 else 0.0,
        pixels=chance.randint(22, 48) if chance.random() < 0.12 else 0,
        blur=chance.uniform(0.004, 0.016) if chance.random() < 0.25 else 0.0,
        grain=chance.uniform(3, 22) if chance.random() < 0.35 else 0.0,
        scanlines=chance.uniform(0.1, 0.3) if chance.random() < 0.08 else 0.0,
        vignette=chance.uniform(0.2, 0.8) if chance.random() < 0.15 else 0.0,
        upright=chance.random() < 0.8,
    )


def _setting(chance: random.Random) -> Setting:
    dark = chance.random() < 0.45
    low, high = (5, 90) if dark else (150, 250)
    top = _color(chance, low, high)
    bottom = top if chance.random() < 0.5 else _near(top, 40, chance)
    pattern = chance.choice(PATTERNS) if chance.random() < 0.6 else "none"
    scenery = tuple(
        Part(
            chance.choice(("square", "circle", "triangle")),
            chance.uniform(-1, 1), chance.uniform(-1, 1), chance.uniform(0.2, 1.0), chance.uniform(0.1, 0.5),
            "pattern",
        )
        for _ in range(chance.choice((0, 0, 0, 1, 2)))
    )  # fmt: skip
    ink = (240, 240, 240) if dark else (20, 20, 24)
    shade = _near(top, 34, chance)
    return Setting(
        _DARK if dark else _LIGHT, top, bottom, scenery, pattern, shade, ink, _color(chance, 0, 255)
    )


def _color(chance: random.Random, low: int, high: int) -> Color:
    return chance.randint(low, high), chance.randint(low, high), chance.randint(low, high)


def _near(color: Color, spread: int, chance: random.Random) -> Color:
    r, g, b = (min(255, max(0, c + chance.randint(-spread, spread))) for c in color)
    return r, g, b


def _varied(hue: Hue, chance: random.Random) -> Hue:
    return Hue(hue.words, _near(hue.color, 16, chance))


def _visible(hue: Hue, setting: Setting) -> bool:
    return all(
        sum((a - b) ** 2 for a, b in zip(hue.color, ground, strict=True)) ** 0.5 > _NEAR
        for ground in (setting.top, setting.bottom)
    )
