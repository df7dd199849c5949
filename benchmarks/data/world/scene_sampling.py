"""Sample random events and scenes in a domain."""

from __future__ import annotations

import random

from benchmarks.data.world.motion import INVERSE, MOTIONS, limit_extent, start_around
from benchmarks.data.world.scene_model import Actor, Domain, Entity, Event, Hue, Scene, Setting, Style

SIZES = {"small": 0.27, "": 0.36, "large": 0.45}
# Companions are in the corners, which the main object rarely crosses.
_CORNERS = ((0.17, 0.2), (0.83, 0.2), (0.17, 0.82), (0.83, 0.82))
_COMPANION_SIZE = 0.2
# Motions that show only next to a second event.
_NEEDS_PARTNER = frozenset({"stop"})


def sample_events(rng: random.Random, *, two: float = 0.6) -> tuple[Event, ...]:
    """Sample one event, or two compatible events with probability ``two``."""
    if rng.random() >= two:
        return (_event(rng.choice([m for m in MOTIONS if m not in _NEEDS_PARTNER]), rng),)
    while True:
        first, second = rng.sample(MOTIONS, 2)
        # An invisible object can only appear.
        if second == "appear" and first != "vanish":
            continue
        if first == "vanish" and second != "appear":
            continue
        # An object that appears and vanishes at once would look like a long blink.
        if first == "appear" and second in ("vanish", "blink", "stop"):
            continue
        if second == "vanish" and first in ("blink", "stop"):
            continue
        # A motion followed by its inverse is rare: its captions differ by only one word.
        if INVERSE[first] == second and rng.random() < 0.7:
            continue
        return _event(first, rng), _event(second, rng)


def _event(motion: str, rng: random.Random) -> Event:
    return Event(motion, rng.choice((-1, 1)))


def sample_scene(
    domain: Domain,
    entity: Entity,
    events: tuple[Event, ...],
    rng: random.Random,
    *,
    style: Style | None = None,
    setting: Setting | None = None,
    hue: Hue | None = None,
    companion_share: float = 0.4,
) -> Scene:
    """Sample a scene in which ``entity`` performs ``events``; all other attributes are random."""
    style = style or domain.style
    hue = hue or rng.choice(domain.hues)
    changes = any(event.motion in ("grow", "shrink") for event in events)
    word = "" if changes else rng.choice(("small", "", "large"))
    size = SIZES[word] * rng.uniform(0.95, 1.05)
    main = Actor(entity, hue, size, word, turn=0.0 if style.upright else rng.uniform(0, 360))
    companion = None
    if rng.random() < companion_share:
        companion = _companion(domain, entity, hue, rng)
    # Objects can leave the frame slightly, but never by half.
    events = limit_extent(events, 1.02 - SIZES["large" if changes else word])
    center = (0.5 + rng.uniform(-0.04, 0.04), 0.5 + rng.uniform(-0.04, 0.04))
    return Scene(
        style=style,
        setting=setting or rng.choice(domain.settings),
        main=main,
        companion=companion,
        events=events,
        start=start_around(events, center),
        look_seed=rng.getrandbits(31),
    )


def _companion(domain: Domain, entity: Entity, hue: Hue, rng: random.Random) -> Actor:
    things = [thing for thing in (*domain.props, *domain.entities) if thing is not entity]
    hues = [other for other in domain.hues if other is not hue]
    x, y = rng.choice(_CORNERS)
    size = _COMPANION_SIZE * rng.uniform(0.95, 1.15)
    return Actor(rng.choice(things), rng.choice(hues), size, x=x, y=y, sways=rng.random() < 0.4)
