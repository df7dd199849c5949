"""Domains of drawn videos and their scenes."""

from __future__ import annotations

from itertools import product

import numpy as np

from media.scenes.kitchen import KITCHEN_COMPANIONS, KITCHEN_PLACES, KITCHEN_THINGS
from media.scenes.scene_model import COLORS, Scene, SceneDomain
from media.scenes.sea import SEA_COMPANIONS, SEA_CREATURES, SEA_PLACES
from media.scenes.street import STREET_COMPANIONS, STREET_PLACES, VEHICLES

SCENE_DOMAINS: dict[str, SceneDomain] = {
    domain.name: domain
    for domain in (
        SceneDomain("street", VEHICLES, STREET_PLACES, STREET_COMPANIONS, path="drive", floor=180),
        SceneDomain("sea", SEA_CREATURES, SEA_PLACES, SEA_COMPANIONS, path="swim", floor=150),
        SceneDomain(
            "kitchen-table", KITCHEN_THINGS, KITCHEN_PLACES, KITCHEN_COMPANIONS, path="stand", floor=184
        ),
    )
}

# Phrases of places and companions for captions, the plainest first.
_PHRASES: dict[str, tuple[str, str, str]] = {
    "light": ("and stops at a red light", "and waits at a traffic light", "and halts at the traffic light"),
    "dog": ("and passes a dog", "and goes by a brown dog", "while a dog watches"),
    "balloon": ("under a hot-air balloon", "below a hot-air balloon", "while a hot-air balloon floats above"),
    "cart": (
        "and stops at an ice cream cart",
        "and waits at an ice cream cart",
        "and parks at the ice cream stand",
    ),
    "night": ("at night", "in the dark city", "under the moon at night"),
    "snow": ("through the snow", "on a snowy winter road", "while snow falls"),
    "rain": ("through the rain", "on a wet and rainy street", "while it rains"),
    "sunset": ("at sunset by the sea", "along the beach at sunset", "at sunset under palm trees"),
    "country": ("through the countryside", "on a country road", "past a farm on the hills"),
    "desert": ("through the desert", "past cacti in the desert", "in the hot desert"),
    "fish": ("with a school of orange fish", "next to many small orange fish", "while orange fish follow"),
    "chest": ("next to a treasure chest", "near a chest full of gold", "by an open treasure chest"),
    "diver": ("with a diver", "next to a scuba diver", "while a diver waves"),
    "anchor": ("next to an anchor", "near a heavy anchor", "by a big iron anchor"),
    "reef": ("over a coral reef", "among colorful corals", "above the coral reef"),
    "wreck": ("past a sunken ship", "near an old shipwreck", "along a sunken wooden ship"),
    "kelp": ("through a forest of seaweed", "between tall seaweed", "in a seaweed forest"),
    "deep": ("in the dark deep sea", "in the dark of the deep ocean", "among glowing lights in the deep sea"),
    "ice": ("under the ice", "below icebergs in cold water", "below floating ice"),
    "ruins": (
        "past the columns of a sunken temple",
        "between the columns of a ruined temple",
        "near temple ruins",
    ),
    "cat": ("next to a sleeping cat", "near a gray cat that sleeps", "while a cat sleeps"),
    "candle": ("next to a burning candle", "by the light of a candle", "near a lit candle"),
    "oranges": ("next to three oranges", "near a pile of oranges", "beside three ripe oranges"),
    "bread": ("next to a loaf of bread", "near sliced bread", "beside fresh bread"),
    "table": ("on a wooden table", "on a table of dark wood", "on a brown wooden table"),
    "cloth": ("on a checkered tablecloth", "on a tablecloth with checks", "on a checked cloth"),
    "garden": (
        "on a picnic blanket in the garden",
        "at a picnic on the grass",
        "outside in the garden at a picnic",
    ),
    "window": (
        "by a window with a view of mountains",
        "in front of a sunny window",
        "at the window with mountains outside",
    ),
    "fireplace": ("in front of a fireplace", "near a warm fireplace", "by the fire in a brick fireplace"),
    "shelf": ("in front of a shelf full of books", "before a bookshelf", "next to many books on a shelf"),
}


def make_scenes(name: str, *, train: int, val: int, test: int) -> list[Scene]:
    """Make different scenes of a domain, in the order train, val, test; equal arguments give equal scenes.

    Any two scenes differ in at least two of subject, color, place and companion, so that a person can tell them apart;
    this limits a domain to 144 scenes. The test scenes do not depend on the number of training scenes.

    Raises:
        ValueError: The domain has fewer scenes.
    """
    domain = SCENE_DOMAINS[name]
    colors = list(COLORS)
    # As in a Latin square, the color is the sum of the other three, so changing one of them changes the color too.
    cells = list(
        product(enumerate(domain.subjects), enumerate(domain.backdrops), enumerate(domain.companions))
    )
    if train + val + test > len(cells):
        raise ValueError(
            f"domain {name!r} has {len(cells)} scenes, got train={train}, val={val}, test={test}"
        )
    rng = np.random.default_rng([len(cells), *name.encode()])
    order = rng.permutation(len(cells))
    splits = ["test"] * test + ["val"] * val + ["train"] * train
    scenes = []
    for number, split in zip(order.tolist(), splits, strict=False):
        (s, subject), (b, backdrop), (c, companion) = cells[number]
        color = colors[(s + b + c) % len(colors)]
        captions = _captions(domain, subject, color, backdrop, companion)
        scenes.append(Scene(name, split, subject, color, backdrop, companion, number, captions))
    return sorted(scenes, key=lambda scene: ("train", "val", "test").index(scene.split))


def _captions(
    domain: SceneDomain, subject: str, color: str, backdrop: str, companion: str
) -> tuple[str, str, str]:
    """Write a plain caption and two paraphrases."""
    thing = domain.subjects[subject]
    places, others = _PHRASES[backdrop], _PHRASES[companion]
    return (
        f"A {color} {subject} {thing.verb} {places[0]} {others[0]}",
        f"{places[1].capitalize()}, a {color} {thing.synonym} {thing.verb} {others[1]}",
        f"The {thing.synonym} is {color}, {places[2]} {others[2]}",
    )
