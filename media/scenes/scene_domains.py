"""Domains of drawn videos and their scenes."""

from __future__ import annotations

from itertools import product

import numpy as np

from media.scenes.kitchen_places import KITCHEN_COMPANIONS, KITCHEN_PLACES
from media.scenes.kitchen_things import KITCHEN_THINGS
from media.scenes.scene_model import COLORS, Scene, SceneDomain
from media.scenes.sea_creatures import SEA_CREATURES
from media.scenes.sea_places import SEA_COMPANIONS, SEA_PLACES
from media.scenes.street_places import STREET_COMPANIONS, STREET_PLACES
from media.scenes.street_vehicles import VEHICLES

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


def make_scenes(name: str, *, train: int, val: int, test: int) -> list[Scene]:
    """Make different scenes of a domain, in the order train, val, test; equal arguments give equal scenes.

    Any two scenes differ in at least two of subject, color, place and companion, so that a person can tell them apart;
    this limits a domain to 144 scenes. The test scenes do not depend on the number of training scenes.

    Args:
        train, val, test: Number of scenes for each use.

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
    places, others = domain.backdrops[backdrop].phrases, domain.companions[companion].phrases
    return (
        f"A {color} {subject} {thing.verb} {places[0]} {others[0]}",
        f"{places[1].capitalize()}, a {color} {thing.synonym} {thing.verb} {others[1]}",
        f"The {thing.synonym} is {color}, {places[2]} {others[2]}",
    )
