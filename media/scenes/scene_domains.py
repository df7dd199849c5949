"""Domains of drawn videos and their scenes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from media.scenes.drawings import KITCHEN_TABLE, SEA, STREET
from media.scenes.painting import Drawing, Stroke

COLORS = {  # of subjects
    "red": "#d62428",
    "blue": "#225cd6",
    "green": "#289c46",
    "yellow": "#fcd024",
    "white": "#f6f6f2",
    "pink": "#f674b4",
}


class Part(NamedTuple):
    """A subject, place, companion or symbol: its words and its drawing."""

    # a subject's synonym and verb; or three phrases of a place or companion, the plainest first
    words: list[str]
    drawing: Drawing


@dataclass(frozen=True)
class SceneDomain:
    """Parts to combine into scenes, by their names."""

    movement: Literal["drive", "swim", "stand"]  # how subjects move
    floor: float  # vertical position of the subjects' lower edge, in units
    subjects: Mapping[str, Part]  # the colored objects that videos are about
    places: Mapping[str, Part]
    companions: Mapping[str, Part]  # the second objects in scenes


SYMBOLS: dict[str, Drawing] = {}


def _read_parts(drawings: str) -> Iterator[Mapping[str, Part]]:
    """Read subjects, places and companions, and symbols; each drawing follows a line ``kind name: words / words``."""
    parts: dict[str, dict[str, Part]] = {kind: {} for kind in ("subject", "place", "companion", "symbol")}
    for text in re.split(r"\n(?=\w)", drawings.strip()):
        heading, *lines = text.splitlines()
        title, _, words = heading.partition(": ")
        kind, _, name = title.partition(" ")
        parts[kind][name] = Part(words.split(" / "), tuple(map(Stroke.parse, lines)))
    SYMBOLS.update((name, part.drawing) for name, part in parts.pop("symbol").items())
    yield from parts.values()


SCENE_DOMAINS = {
    "street": SceneDomain("drive", 180, *_read_parts(STREET)),
    "sea": SceneDomain("swim", 150, *_read_parts(SEA)),
    "kitchen-table": SceneDomain("stand", 184, *_read_parts(KITCHEN_TABLE)),
}


@dataclass(frozen=True)
class Scene:
    """A drawn video, with the names of its parts; its plain caption is the first."""

    domain: str
    split: str
    subject: str
    color: str
    place: str
    companion: str
    seed: int
    captions: tuple[str, ...]

    @property
    def id(self) -> str:
        """Name of the video, unique in its domain."""
        parts = (self.color, self.subject, self.place, self.companion)
        return "-".join(parts).replace(" ", "-")

    @property
    def file_name(self) -> str:
        """Name of the mp4 file."""
        return f"{self.id}.mp4"


def make_scenes(name: str, *, train: int, val: int, test: int) -> list[Scene]:
    """Make different scenes of a domain, in the order train, val, test; equal arguments give equal scenes; raises
    ValueError.

    Any two scenes differ in at least two of subject, color, place and companion, so that a person can tell them apart;
    this limits a domain to 144 scenes. The test scenes do not depend on the number of training scenes.
    """
    domain = SCENE_DOMAINS[name]
    colors = list(COLORS)
    # As in a Latin square, the color is the sum of the other three, so changing one of them changes the color too.
    cells = list(product(enumerate(domain.subjects), enumerate(domain.places), enumerate(domain.companions)))
    if train + val + test > len(cells):
        raise ValueError(
            f"domain {name!r} has {len(cells)} scenes, got train={train}, val={val}, test={test}"
        )
    rng = np.random.default_rng([len(cells), *name.encode()])
    order = rng.permutation(len(cells)).tolist()
    splits = ["test"] * test + ["val"] * val + ["train"] * train
    scenes = []
    for number, split in zip(order, splits, strict=False):
        (s, subject), (p, place), (c, companion) = cells[number]
        color = colors[(s + p + c) % len(colors)]
        synonym, verb = domain.subjects[subject].words
        places, others = domain.places[place].words, domain.companions[companion].words
        captions = (
            f"A {color} {subject} {verb} {places[0]} {others[0]}",
            f"{places[1].capitalize()}, a {color} {synonym} {verb} {others[1]}",
            f"The {synonym} is {color}, {places[2]} {others[2]}",
        )
        scenes.append(Scene(name, split, subject, color, place, companion, number, captions))
    return sorted(scenes, key=lambda scene: ("train", "val", "test").index(scene.split))
