"""Clips for pre-training: everyday words and objects in random styles."""

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

_CAPTIONS = 3
_ROUND = frozenset({"circle", "ring"})  # a rotation of these is invisible
_MIN_CONTRAST = 110.0  # RGB distance below which an object does not stand out from its background
_EVERYDAY_DOMAIN = Domain(
    "everything", "shapes and things together", Style(), SHAPE_ENTITIES + THINGS, HUES, (), VERBS, sizes=SIZES
)
# Captions mention only the background's brightness; other properties of random settings have no words.
_LIGHT = ("on a light background", "on a bright background")
_DARK = ("on a dark background", "in the dark")


def sample_pretraining_clip(rng: np.random.Generator) -> Clip:
    """Sample a clip with a random object in a random style, and captions in basic words.

    One clip in ten comes from a named pre-training domain. Of the others, two fifths show everyday objects, and the
    rest geometric shapes.
    """
    seed = int(rng.integers(1 << 62))
    clip_rng = random.Random(seed)
    if clip_rng.random() < 0.1:
        domain = clip_rng.choice(list(PRETRAIN_DOMAINS.values()))
        entity, style, setting = (
            clip_rng.choice(domain.entities),
            domain.style,
            clip_rng.choice(domain.settings),
        )
    else:
        domain = _EVERYDAY_DOMAIN
        entity = clip_rng.choice(THINGS if clip_rng.random() < 0.4 else SHAPE_ENTITIES)
        style, setting = _random_style(clip_rng), _random_setting(clip_rng)
    hues = [hue for hue in HUES if _is_visible(hue, setting)]
    hue = _vary_hue(clip_rng.choice(hues), clip_rng)
    events = sample_events(clip_rng, two=0.45)
    while entity.name in _ROUND and any(event.motion == "spin" for event in events):
        events = sample_events(clip_rng, two=0.45)
    scene = sample_scene(domain, entity, events, clip_rng, style=style, setting=setting, hue=hue)
    captions = tuple(_caption(scene, clip_rng) for _ in range(_CAPTIONS))
    return Clip(f"pretrain-{seed:016x}", domain.name, entity.name, "train", scene, captions, seed)


def _caption(scene: Scene, rng: random.Random) -> str:
    details = {"hue"} if rng.random() < 0.9 else set()
    details |= {detail for detail in DETAILS[1:] if rng.random() < 0.5}
    return caption(scene, VERBS, SIZES, frozenset(details), rng)


def _random_style(rng: random.Random) -> Style:
    fill = rng.random() < 0.75
    line = rng.uniform(0.008, 0.03) if not fill or rng.random() < 0.4 else 0.0
    return Style(
        fill=fill,
        line=line,
        # Without a fill, the outline shows the color.
        line_role="main" if not fill or rng.random() < 0.4 else "ink",
        wobble=rng.uniform(0.01, 0.05) if rng.random() < 0.2 else 0.0,
        opacity=rng.uniform(0.6, 0.95) if rng.random() < 0.2 else 1.0,
        shadow=rng.uniform(0.01, 0.03) if rng.random() < 0.2 else 0.0,
        glow=rng.uniform(0.3, 0.8) if rng.random() < 0.12 else 0.0,
        pixels=rng.randint(22, 48) if rng.random() < 0.12 else 0,
        blur=rng.uniform(0.004, 0.016) if rng.random() < 0.25 else 0.0,
        grain=rng.uniform(3, 22) if rng.random() < 0.35 else 0.0,
        scanlines=rng.uniform(0.1, 0.3) if rng.random() < 0.08 else 0.0,
        vignette=rng.uniform(0.2, 0.8) if rng.random() < 0.15 else 0.0,
        upright=rng.random() < 0.8,
    )


def _random_setting(rng: random.Random) -> Setting:
    dark = rng.random() < 0.45
    low, high = (5, 90) if dark else (150, 250)
    top = _random_color(rng, low, high)
    bottom = top if rng.random() < 0.5 else _similar_color(top, 40, rng)
    pattern = rng.choice(PATTERNS) if rng.random() < 0.6 else "none"
    scenery = tuple(
        Part(
            rng.choice(("square", "circle", "triangle")),
            rng.uniform(-1, 1), rng.uniform(-1, 1), rng.uniform(0.2, 1.0), rng.uniform(0.1, 0.5),
            "pattern",
        )
        for _ in range(rng.choice((0, 0, 0, 1, 2)))
    )  # fmt: skip
    ink = (240, 240, 240) if dark else (20, 20, 24)
    shade = _similar_color(top, 34, rng)
    return Setting(
        _DARK if dark else _LIGHT, top, bottom, scenery, pattern, shade, ink, _random_color(rng, 0, 255)
    )


def _random_color(rng: random.Random, low: int, high: int) -> Color:
    return rng.randint(low, high), rng.randint(low, high), rng.randint(low, high)


def _similar_color(color: Color, spread: int, rng: random.Random) -> Color:
    r, g, b = (min(255, max(0, c + rng.randint(-spread, spread))) for c in color)
    return r, g, b


def _vary_hue(hue: Hue, rng: random.Random) -> Hue:
    return Hue(hue.words, _similar_color(hue.color, 16, rng))


def _is_visible(hue: Hue, setting: Setting) -> bool:
    return all(
        sum((a - b) ** 2 for a, b in zip(hue.color, ground, strict=True)) ** 0.5 > _MIN_CONTRAST
        for ground in (setting.top, setting.bottom)
    )
