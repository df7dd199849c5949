"""The operations of a chaos run: rounds of ingests, appends, deletions, relearnings and syncs, the same in each run.

The operations of a round run at the same time and affect different domains, so that the answers after a round do not
depend on their order, and an undisturbed run gives the reference.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["ingest", "append", "delete", "relearn", "sync"]

TRAINING_SETTINGS = {"epochs": 6, "batch_size": 4, "rank": 2}
_COLORS = ("red", "green", "blue", "yellow", "white", "black", "orange")
_THINGS = ("boat", "car", "bird", "lamp", "tree", "cell", "ball", "bridge", "river", "crowd")
_ACTIONS = ("turns left", "moves slowly", "stops", "falls", "rises", "crosses the road", "shines")

QUERIES = tuple(
    f"a {color} {thing} {action}"
    for color, thing, action in itertools.islice(
        zip(itertools.cycle(_COLORS), itertools.cycle(_THINGS), itertools.cycle(_ACTIONS[:3]), strict=False),
        50,
    )
)
"""The 50 fixed queries whose answers are compared."""


@dataclass(frozen=True)
class Video:
    """A video of an operation: its id, number of its clip file, and captions."""

    id: str
    number: int
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Operation:
    """A change of the library.

    Attributes:
        kind: Kind of the change.
        domain: Name of the domain that is changed; of a relearning, the domain whose appended videos are learned.
        videos: Videos that are added.
        deleted: Ids of videos that are deleted; of an append, right after it is acknowledged.
        into: Name of the domain that a relearning creates.
    """

    kind: Kind
    domain: str
    videos: tuple[Video, ...] = ()
    deleted: tuple[str, ...] = ()
    into: str = ""


@dataclass
class _Plan:
    """Videos of each domain while the rounds are planned."""

    rng: random.Random
    numbers: Iterator[int] = field(default_factory=itertools.count)
    trained: dict[str, list[str]] = field(default_factory=dict)
    appended: dict[str, list[str]] = field(default_factory=dict)

    def ingest(self, domain: str, count: int) -> Operation:
        videos = self._videos(domain, count)
        self.trained[domain] = [video.id for video in videos]
        return Operation("ingest", domain, videos)

    def append(self, domain: str, count: int, *, delete_first: bool = False) -> Operation:
        videos = self._videos(domain, count)
        kept = videos[1:] if delete_first else videos
        self.appended.setdefault(domain, []).extend(video.id for video in kept)
        return Operation("append", domain, videos, deleted=(videos[0].id,) if delete_first else ())

    def delete(self, domain: str, count: int) -> Operation:
        known = self.trained[domain]
        chosen = self.rng.sample(known, count)
        self.trained[domain] = [video for video in known if video not in chosen]
        return Operation("delete", domain, deleted=tuple(chosen))

    def relearn(self, domain: str) -> Operation:
        into = f"{domain}-relearned"
        self.trained[into] = self.appended.pop(domain)
        return Operation("relearn", domain, into=into)

    def sync(self, domain: str, count: int) -> Operation:
        return Operation("sync", domain, self._videos(domain, count))

    def _videos(self, domain: str, count: int) -> tuple[Video, ...]:
        return tuple(self._video(domain, number) for number in itertools.islice(self.numbers, count))

    def _video(self, domain: str, number: int) -> Video:
        words = [
            (self.rng.choice(_COLORS), self.rng.choice(_THINGS), self.rng.choice(_ACTIONS)) for _ in "ab"
        ]
        return Video(f"{domain}-{number}", number, tuple(f"a {c} {t} {a} in {domain}" for c, t, a in words))


def plan_rounds(seed: int, *, large: int = 70) -> list[tuple[Operation, ...]]:
    """Rounds of operations from an empty library.

    Args:
        seed: Seed of captions and of the deleted videos.
        large: Videos of the largest domain; above 64, several chunks are probed.
    """
    plan = _Plan(random.Random(seed))
    return [
        (plan.ingest("harbor", 10),),
        (plan.ingest("street", large), plan.append("harbor", 4)),
        (plan.delete("street", 3), plan.append("harbor", 3, delete_first=True)),
        (plan.sync("garden", 5), plan.delete("harbor", 2)),
        (plan.ingest("kitchen", 10), plan.append("street", 4)),
        (plan.relearn("harbor"), plan.append("street", 3), plan.delete("kitchen", 2)),
        (plan.sync("garden", 3), plan.append("kitchen", 4, delete_first=True)),
        (plan.append("harbor", 3), plan.append("street", 3), plan.append("kitchen", 3)),
        (plan.ingest("desert", 8), plan.delete("street", 4), plan.append("harbor", 2)),
        (plan.relearn("street"), plan.append("desert", 3), plan.delete("harbor", 2)),
    ]
