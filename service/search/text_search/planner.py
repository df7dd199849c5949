"""Plan a search: in which order to search tasks, and when the results are complete.

A video's score is the visual score of its cosine with the query vector of its shard, plus the *lift* of its task, plus
the evidence of its texts. The lift is the task's bounded evidence. All lifts, and the highest evidence of texts in each
task, are known before the text is encoded; their sum is the task's *reach*. Tasks are therefore searched in waves,
highest reach first, and the search ends when no remaining task can contain a video that would enter the results
(:func:`models.routing.router.can_reach_score`). The cost depends on how clearly the text points to tasks, not on how
many there are.

==========  =========================================================================================================
``routes``  searched tasks
==========  =========================================================================================================
``all``     Every task, except where even a cosine of 1 could not enter the results. Exact.
``auto``    Like ``all``, but with a likely bound on the cosine: this query's highest cosine so far plus a slack. Once
            there are enough hits, at most a limited number of the likeliest tasks (:class:`WaveLimits`). If videos
            whose texts contain the whole query fill the list, others are no more right: there is no slack, and the
            limit is at most 24 tasks.
a number    That many of the likeliest tasks.
==========  =========================================================================================================

``auto`` is designed to keep 99 of 100 correct results in the first ten of ``all``.

Encoders that share one text tower pass between tasks have wider limits: another task then costs only the scan of its
shard, and a few large waves cost less than many small ones. ``docs/ranking.md`` lists the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from index.hits import Hit, Hits, rank_distinct
from index.vector_ids import Ids, Scores
from models.routing.router import COSINE_LIMIT, can_reach_score
from models.routing.visual_score import VisualScore
from service.search.search_request import Routes


@dataclass(frozen=True)
class WaveLimits:
    """Wave sizes, and the limits of ``auto``.

    Attributes:
        cosine_slack: Added to the highest cosine so far to get the likely bound.
        max_likely_tasks: Maximum number of tasks with ``auto``, once there are enough hits.
        first_wave_margin: The first wave takes tasks whose reach is this close to the highest, as a cosine.
        min_first_wave: Minimum number of tasks in the first wave, if that many can contain results.
        max_first_wave: Maximum number of tasks in the first wave.
        growth: Size of a wave relative to the number of tasks searched before it.
    """

    cosine_slack: float
    max_likely_tasks: int
    first_wave_margin: float
    min_first_wave: int
    max_first_wave: int
    growth: int


_MAX_LIKELY_TASKS_IF_FULL = 24  # of videos whose texts contain the whole query

# Every task costs a text tower pass. The number of searched tasks doubles with each wave, so few are in vain.
SEPARATE_ENCODINGS = WaveLimits(
    cosine_slack=0.05,
    max_likely_tasks=16,
    first_wave_margin=0.1,
    min_first_wave=1,
    max_first_wave=8,
    growth=1,
)
# All tasks share one text tower pass, which takes as long as scanning many small shards. A few more of them in the
# first wave cost less than the second wave that they often save.
SHARED_ENCODING = WaveLimits(
    cosine_slack=0.1,
    max_likely_tasks=48,
    first_wave_margin=0.2,
    min_first_wave=5,
    max_first_wave=_MAX_LIKELY_TASKS_IF_FULL,
    growth=4,
)

_EMPTY_POOL: tuple[Ids, Scores, npt.NDArray[np.int64]] = (
    np.empty(0, np.int64),
    np.empty(0, np.float32),
    np.empty(0, np.int64),
)


class WavePlanner:
    """Orders the tasks of one search, and collects its hits.

    Call :meth:`next_wave`, search its tasks, call :meth:`add_hits`, and repeat until the wave is empty.

    Args:
        tasks: Candidate tasks; those with equal reach stay in this order.
        lifts: The tasks' lifts, ``[T]``.
        words: Highest evidence of texts in each task, ``[T]``; None without words.
        searchable: Candidate tasks that may contain hits, in learned order, which also orders equal scores.
        depth: Number of hits to find, each from a different video.
        min_score: Lowest score of a hit; None accepts all scores.
        routes: Selection of tasks.
        limits: Limits for the snapshot's encoder.
        tasks_in_first_page: With ``auto``, how many of the likeliest tasks the list's first page considered; None on
            the first page. Their hits precede all others, so that a list does not depend on its page sizes.
        visual: Conversion of cosines to scores.

    Attributes:
        searched: Tasks in the waves so far.
        lifts: Lifts of all candidate tasks by task ID.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        lifts: npt.NDArray[np.floating],
        searchable: Sequence[str],
        depth: int,
        *,
        min_score: float | None = None,
        routes: Routes = "all",
        limits: WaveLimits = SEPARATE_ENCODINGS,
        tasks_in_first_page: int | None = None,
        words: npt.NDArray[np.floating] | None = None,
        visual: VisualScore,
    ) -> None:
        self.searched: set[str] = set()
        self.lifts: dict[str, float] = dict(zip(tasks, lifts.tolist(), strict=True))
        ranked, reach = list(tasks), np.asarray(lifts, np.float64)
        if words is not None:
            reach = reach + words
            order = np.argsort(-reach, kind="stable")  # tasks with equal reach stay in order
            ranked, reach = [ranked[place] for place in order.tolist()], reach[order]
        self._places = {task: place for place, task in enumerate(ranked)}
        self._reach = reach  # by place
        self._orders = {task: order for order, task in enumerate(searchable)}
        self._first_tier = len(self.lifts) if tasks_in_first_page is None else tasks_in_first_page
        self._searchable = list(searchable)
        self._depth = depth
        self._min_score = -np.inf if min_score is None else min_score
        self._uses_likely_bound = routes == "auto" and tasks_in_first_page is None
        self._limits = limits
        self._visual = visual
        self._ranked = ranked
        self._tiers = _split_tiers(ranked, reach, self._orders.keys(), routes, tasks_in_first_page)
        lowest = (reach[0] if len(reach) else 0.0) - limits.first_wave_margin * visual.weight
        near = int((reach[: limits.max_first_wave] >= lowest).sum())
        self._wave_size = max(near, limits.min_first_wave)
        self._earlier_hits: list[Hit] = []  # of previous tiers
        self._pool = _EMPTY_POOL  # best hits of the current tier
        self._tier_hits: list[Hit] = []  # those that can be results
        self._highest_cosine: float | None = None
        self._is_full = False  # of videos whose texts contain the whole query

    @property
    def reached_tasks(self) -> int:
        """Number of likeliest tasks down to the last searched one, including those that cannot contain hits."""
        return 1 + max((self._places[task] for task in self.searched), default=-1)

    def next_wave(self) -> list[str]:
        """Choose the tasks to search next; empty when the list of hits is complete."""
        while True:
            tier = self._tiers[0]
            bar = self._lowest_useful_score()
            places = tier[: self._wave_size]
            is_reachable = can_reach_score(self._reach[places], bar, self._visual_bound())
            if self._uses_likely_bound and bar > self._min_score:  # there are enough results
                is_reachable &= self._are_likely(places)
            size = int(is_reachable.sum())  # sorted by reach, so reachable tasks come first
            if size:
                self._tiers[0], wave = tier[size:], [self._ranked[place] for place in tier[:size].tolist()]
                self.searched.update(wave)
                self._wave_size = self._limits.growth * len(self.searched)
                return wave
            if len(self._tiers) == 1 or len(self._earlier_hits) + len(self._tier_hits) >= self._depth:
                return []
            self._earlier_hits, self._tier_hits, self._pool = self.hits(), [], _EMPTY_POOL
            del self._tiers[0]

    def can_enter(self, tasks: Sequence[str], words: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
        """Check for each task whether a video with this evidence could still enter the results, ``[len(tasks)]``."""
        lifts = np.array([self.lifts[task] for task in tasks])
        return can_reach_score(lifts + words, self._lowest_useful_score(), self._visual_bound())

    def add_hits(
        self,
        found: Iterable[tuple[str, Hits]],
        words: Callable[[Ids], Scores] | None = None,
        are_complete: Callable[[Ids], npt.NDArray[np.bool_]] | None = None,
    ) -> None:
        """Add the hits of a wave.

        Args:
            found: Task IDs and hits with cosines, best first. For each task, the requested number of hits from
                different videos, or all there are; other hits may follow.
            words: Looks up the evidence of texts for vector IDs.
            are_complete: Checks for each vector ID whether the video's texts contain the whole query.
        """
        parts = [(task, hits) for task, hits in found if len(hits.ids)]
        if not parts:
            return
        counts = [len(hits.ids) for _, hits in parts]
        ids = np.concatenate([hits.ids for _, hits in parts])
        cosines = np.concatenate([hits.scores for _, hits in parts])
        orders = np.repeat([self._orders[task] for task, _ in parts], counts)
        lifts = np.repeat(np.array([self.lifts[task] for task, _ in parts], np.float32), counts)
        visual = self._visual.nats(cosines)
        scores = (visual if words is None else visual + words(ids)) + lifts
        highest = float(cosines.max())
        self._highest_cosine = highest if self._highest_cosine is None else max(self._highest_cosine, highest)
        known_ids, known_scores, known_orders = self._pool
        ids = np.concatenate([known_ids, ids])
        scores = np.concatenate([known_scores, scores])
        orders = np.concatenate([known_orders, orders])
        rows = rank_distinct(ids, scores, orders, self._depth)
        ids, scores, orders = self._pool = ids[rows], scores[rows], orders[rows]
        earlier = {hit.id for hit in self._earlier_hits}
        self._tier_hits = [
            Hit(self._searchable[order], vector_id, score)
            for order, vector_id, score in zip(orders.tolist(), ids.tolist(), scores.tolist(), strict=True)
            if score >= self._min_score and vector_id not in earlier
        ]
        if are_complete is not None and self._uses_likely_bound:
            self._is_full = len(self._tier_hits) >= self._depth and bool(are_complete(ids).all())

    def hits(self) -> list[Hit]:
        """List the best hits so far."""
        return (self._earlier_hits + self._tier_hits)[: self._depth]

    def rank_key(self, hit: Hit) -> tuple[bool, float, int, int]:
        """Compute a hit's sort key, even if it is no longer in the list."""
        is_in_later_tier = self._places[hit.task] >= self._first_tier
        return is_in_later_tier, -hit.score, self._orders.get(hit.task, -1), hit.id

    def without_lift(self, hit: Hit) -> Hit:
        """Subtract the task's lift from a hit's score, because lifts change when a domain loses its last video."""
        return replace(hit, score=hit.score - float(np.float32(self.lifts[hit.task])))

    def with_lift(self, hit: Hit) -> Hit:
        """Invert :meth:`without_lift` with this search's lifts."""
        return replace(hit, score=hit.score + float(np.float32(self.lifts[hit.task])))

    def _lowest_useful_score(self) -> float:
        """Compute the score that a new hit must reach to change the results."""
        room = self._depth - len(self._earlier_hits)
        kth_score = self._tier_hits[room - 1].score if len(self._tier_hits) >= room else -np.inf
        return max(kth_score, self._min_score)

    def _are_likely(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Check for each place whether its task is one of the likeliest, ``[len(places)]``.

        Tasks with equal reach are equally likely, so none is cut off: tasks without captions have equal lifts. Videos
        that contain the whole query can have no better rivals, so the limit then holds for such tasks, too.
        """
        most = self._limits.max_likely_tasks
        if self._is_full:
            return np.asarray(places < min(most, _MAX_LIKELY_TASKS_IF_FULL))
        least = self._reach[most - 1] if len(self._reach) >= most else -np.inf
        return np.asarray(self._reach[places] >= least)

    def _visual_bound(self) -> float:
        """Bound the visual score of videos not found yet; with ``auto``, the bound is only likely."""
        cosine = COSINE_LIMIT
        if self._uses_likely_bound and self._highest_cosine is not None:
            slack = 0.0 if self._is_full else self._limits.cosine_slack
            cosine = min(cosine, self._highest_cosine + slack)
        return self._visual.nats(cosine)


def _split_tiers(
    tasks: Sequence[str],
    reaches: npt.NDArray[np.floating],
    searchable: Set[str],
    routes: Routes,
    tasks_in_first_page: int | None,
) -> list[npt.NDArray[np.int64]]:
    """Split the places of the selected tasks, highest reach first, into tiers: a tier's hits precede the next one's."""
    selected = cut = len(tasks)
    if isinstance(routes, int):
        selected = cut = int((reaches >= reaches[min(routes, cut) - 1]).sum())
    elif routes == "auto" and tasks_in_first_page is not None:
        cut = tasks_in_first_page
    tiers = (
        np.array([place for place in part if tasks[place] in searchable], np.int64)
        for part in (range(min(cut, selected)), range(cut, selected))
    )
    return [tier for tier in tiers if len(tier)] or [np.empty(0, np.int64)]
