"""Which tasks a text is encoded for and searched in: the likeliest first, then those that can still matter.

A video's score is the cosine of the text's vector for its shard, plus its task's *lift*: prior × log weight. All lifts
are known from the words alone, before anything is encoded. So the tasks are taken in waves by falling lift, and the
search is over when no task is left under which a video could still reach the results
(:func:`models.routing.router.can_reach_score`). What that costs follows from how clear the words are, not from how many tasks
there are.

=========  ==========================================================================================================
``routes``  the tasks that count
=========  ==========================================================================================================
``all``     all: a task is passed over only where a cosine of 1 would not be enough, so nothing is lost
``auto``    as ``all``, but with a *likely* limit of the cosine: the highest one that this text has met so far, and
            some more (``SLACK``); and no more than the ``MOST`` likeliest, once there are enough results
a number    the so many likeliest, and no other
=========  ==========================================================================================================

``auto`` is made to keep 99 of 100 right answers that ``all`` has among its first ten. On videos of the video world
(another seed than the one reported on, 60 domains that share much of their vocabulary) it keeps 99.5 of 100 with whole
captions, and all with captions cut to 6 or 4 words, and goes to 2.4, 4.2 and 7.4 of the 60 domains; ``all`` goes to 17
and, with 4 words, to 50.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Literal

import numpy as np

from index.hits import Hit, Hits, merge_hits
from models.routing.router import COSINE_LIMIT, can_reach_score

__all__ = ["Routes", "WavePlanner", "parse_routes"]

Routes = Literal["auto", "all"] | int

SLACK = 0.05
MOST = 16
_NEAR, _FIRST = (
    0.1,
    8,
)  # the first wave: tasks whose lift is so near to the highest, and at most how many of them


class WavePlanner:
    """One search on its way through the tasks.

    Ask for :meth:`wave`, search its tasks, :meth:`add` what they hold, and begin again until there is none.

    Args:
        routing: candidate tasks and their lifts, by falling lift.
        open_to: those where something may be found, in learned order, in which equal scores are told.
        wanted: how many hits, each of another video.
        least: the lowest score that counts; None: any.
        routes: which tasks count.
        chosen: with ``auto``, how many of the likeliest tasks the first page of this list went to. Their results stand
            before all others', so that a list is the same whatever pages it is read in.

    Attributes:
        searched: tasks that it went to.
        lift: of each candidate task.
    """

    def __init__(
        self,
        routing: Sequence[tuple[str, float]],
        open_to: Sequence[str],
        wanted: int,
        *,
        least: float | None = None,
        routes: Routes = "all",
        chosen: int | None = None,
    ) -> None:
        self.searched: set[str] = set()
        self.lift = dict(routing)
        self._place = {task: place for place, task in enumerate(self.lift)}
        self._open_to = list(open_to)
        self._wanted = wanted
        self._least = -np.inf if least is None else least
        self._likely = routes == "auto" and chosen is None
        # Tasks that are level with the last one are no less likely, so those without captions are never left out.
        self._floor = routing[MOST - 1][1] if len(routing) >= MOST else -np.inf
        self._tiers = _tiers(routing, set(open_to), routes, chosen)
        best = routing[0][1] if routing else 0.0
        self._size = min(_FIRST, sum(lift >= best - _NEAR for _, lift in routing[:_FIRST]))
        self._found: dict[str, Hits] = {}  # of the tier that is searched
        self._before: list[Hit] = []  # of the tiers before it
        self._best: list[Hit] = []  # of this one
        self._highest: float | None = None  # cosine so far

    @property
    def chosen(self) -> int:
        """How many of the likeliest tasks it went to, those among them included where nothing may be found."""
        return 1 + max((self._place[task] for task in self.searched), default=-1)

    def wave(self) -> list[str]:
        """The tasks to search next; none when the list is complete."""
        while True:
            tier = self._tiers[0]
            bar = self._bar()
            lifts = np.array([self.lift[task] for task in tier[: self._size]])
            reached = can_reach_score(lifts, bar, self._limit())
            if self._likely and bar > self._least:  # there are enough
                reached &= lifts >= self._floor
            part = tier[: int(reached.sum())]  # lifts fall
            if part:
                self._tiers[0] = tier[len(part) :]
                self.searched.update(part)
                self._size = len(
                    self.searched
                )  # twice as many after each wave, so few waves and little too much
                return part
            if len(self._tiers) == 1 or len(self._before) + len(self._best) >= self._wanted:
                return []
            self._before, self._best, self._found = self.hits(), [], {}
            del self._tiers[0]

    def add(self, found: Mapping[str, Hits]) -> None:
        """What the tasks of the wave hold: hits by cosine, as many as are wanted or there are.

        Each of them is another video, so the bar is that of as many videos as are wanted (:mod:`service.search.snapshots.video_grouping`).
        """
        for task, hits in found.items():
            if len(hits.scores):
                best = float(hits.scores[0])
                self._highest = best if self._highest is None else max(self._highest, best)
            # Cosines of differently conditioned encoders are made comparable by what routing says of their tasks.
            self._found[task] = Hits(hits.ids, hits.scores + np.float32(self.lift[task]))
        merged = merge_hits(
            {task: self._found[task] for task in self._open_to if task in self._found}, self._wanted
        )
        earlier = {hit.id for hit in self._before}
        self._best = [hit for hit in merged if hit.score >= self._least and hit.id not in earlier]

    def hits(self) -> list[Hit]:
        """The best so far."""
        return (self._before + self._best)[: self._wanted]

    def _bar(self) -> float:
        """The lowest score that makes a difference."""
        room = self._wanted - len(self._before)
        return max(self._best[room - 1].score if len(self._best) >= room else -np.inf, self._least)

    def _limit(self) -> float:
        """Of the cosine of any video that is still to be met."""
        if not self._likely or self._highest is None:
            return COSINE_LIMIT
        return min(COSINE_LIMIT, self._highest + SLACK)


def parse_routes(asked: object) -> Routes | None:
    """What a request asks for, as a number or a word; None where it makes no sense."""
    if asked in ("auto", "all"):
        return asked
    text = str(asked)
    if isinstance(asked, bool) or not (text.isascii() and text.isdecimal()) or len(text) > 9:
        return None
    return int(text) or None


def _tiers(
    routing: Sequence[tuple[str, float]], open_to: Set[str], routes: Routes, chosen: int | None
) -> list[list[str]]:
    """The tasks that count, by falling lift; those of each list stand before those of the next."""
    cut = len(routing)
    if isinstance(routes, int):
        cut = sum(lift >= routing[min(routes, cut) - 1][1] for _, lift in routing)
        routing = routing[:cut]
    elif routes == "auto" and chosen is not None:
        cut = chosen
    tiers = ([task for task, _ in part if task in open_to] for part in (routing[:cut], routing[cut:]))
    return [tier for tier in tiers if tier] or [[]]
