"""Plan a search: in which order to search tasks, and when the results are complete.

A video's score is the visual score of its cosine with the query vector of its shard, plus the *prior bonus* of its
task (its bounded routing evidence), plus the evidence of its texts. All prior bonuses, and the highest evidence of
texts in each task, are known before the text is encoded; their sum is an *upper bound* on what a video of the task has
besides its visual score. Tasks are therefore searched in rounds, highest bound first, and the search ends when no
remaining task can contain a video that would enter the results (:func:`models.routing.router.can_reach_score`). The
cost depends on how clearly the text points to tasks, not on how many there are.

``auto`` is designed to keep 99 of 100 correct results in the first ten of ``all``. Encoders that share one text tower
pass between tasks have wider limits: another task then costs only the scan of its shard, and a few large rounds cost
less than many small ones. ``docs/ranking.md`` says when
each kind of ``routes`` stops, and lists the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Hit, Hits, Ids, Scores, rank_distinct
from models.routing.confidence_model import VisualScore
from models.routing.router import COSINE_LIMIT, can_reach_score
from service.search.search_request import Routes


@dataclass(frozen=True)
class RoundLimits:
    """Sizes of rounds, and the limits of ``auto``."""

    cosine_slack: float  # added to the highest cosine so far to get the likely bound
    max_likely_tasks: int  # maximum number of tasks with auto, once there are enough hits
    # The first round takes tasks whose upper bound is this close to the highest, as a cosine.
    first_round_margin: float
    min_first_round: int  # minimum number of tasks in the first round, if that many can contain results
    max_first_round: int  # maximum number of tasks in the first round
    growth: int  # size of a round relative to the number of tasks searched before it


_MAX_LIKELY_TASKS_IF_FULL = 24  # of videos that match all terms

# Every task costs a text tower pass. The number of searched tasks doubles with each round, so few are in vain.
SEPARATE_ENCODINGS = RoundLimits(
    cosine_slack=0.05,
    max_likely_tasks=16,
    first_round_margin=0.1,
    min_first_round=1,
    max_first_round=8,
    growth=1,
)
# All tasks share one text tower pass, which takes as long as scanning many small shards. A few more of them in the
# first round cost less than the second round that they often save.
SHARED_ENCODING = RoundLimits(
    cosine_slack=0.1,
    max_likely_tasks=48,
    first_round_margin=0.2,
    min_first_round=5,
    max_first_round=_MAX_LIKELY_TASKS_IF_FULL,
    growth=4,
)

# Vector IDs, scores, orders of the tasks, cosines, evidence of texts, and whether these match all terms.
_EMPTY_POOL: list[npt.NDArray[Any]] = [
    np.empty(0, dtype) for dtype in (np.int64, np.float32, np.int64, np.float32, np.float32, np.bool_)
]


class RoundPlanner:
    """Orders the tasks of one search, and collects its hits.

    Call :meth:`next_round`, search its tasks, call :meth:`add_hits`, and repeat until the round is empty.

    Args:
        tasks: Candidate tasks; those with equal upper bounds stay in this order.
        prior_bonuses: Their prior bonuses, ``[T]``.
        searchable: Candidate tasks that may contain hits, in learned order, which also orders equal scores.
        depth: Number of hits to find, each from a different video.
        tasks_in_first_page: With ``auto``, how many of the likeliest tasks the list's first page considered; None on
            the first page. Their hits precede all others, so that a list does not depend on its page sizes.
        words: Highest evidence of texts in each task, ``[T]``; None without words.
        visuals: Visual score of each lineage.
        lineages: Index of each task's lineage in ``visuals``, ``[T]``; None: all have the first.

    Attributes:
        searched: Tasks in the rounds so far.
        reached_tasks: Number of likeliest tasks down to the last searched one, including those that cannot contain
            hits.
        hits: The best hits so far, at most ``depth``.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        prior_bonuses: npt.NDArray[np.floating],
        searchable: Sequence[str],
        depth: int,
        *,
        min_score: float | None = None,
        routes: Routes = "all",
        limits: RoundLimits = SEPARATE_ENCODINGS,
        tasks_in_first_page: int | None = None,
        words: npt.NDArray[np.floating] | None = None,
        visuals: Sequence[VisualScore],
        lineages: npt.NDArray[np.intp] | None = None,
    ) -> None:
        self.searched: set[str] = set()
        self.reached_tasks = 0
        self.hits: list[Hit] = []
        self.prior_bonuses: dict[str, float] = dict(zip(tasks, prior_bonuses.tolist(), strict=True))
        bounds = np.asarray(prior_bonuses, np.float64) + (0.0 if words is None else words)
        order = np.argsort(-bounds, kind="stable")  # tasks with equal bounds stay in order
        self._ranked = [tasks[index] for index in order.tolist()]
        self._bounds = bounds[order]
        self._lineages = np.zeros(len(tasks), np.intp) if lineages is None else lineages[order]
        self._ranks = {task: rank for rank, task in enumerate(self._ranked)}
        self._orders = {task: order for order, task in enumerate(searchable)}
        self._first_tier = len(tasks) if tasks_in_first_page is None else tasks_in_first_page
        self._searchable = list(searchable)
        self.depth = depth
        self._min_score = -np.inf if min_score is None else min_score
        self._uses_likely_bound = routes == "auto" and tasks_in_first_page is None
        self._limits = limits
        self._visuals = visuals
        self._weights, self._neutrals = np.array([[v.weight, v.neutral] for v in visuals], np.float32).T
        # The ranks of the selected tasks, in tiers: a tier's hits precede the next one's.
        selected = cut = len(tasks)
        if isinstance(routes, int):
            selected = cut = int((self._bounds >= self._bounds[min(routes, cut) - 1]).sum())
        elif routes == "auto" and tasks_in_first_page is not None:
            cut = tasks_in_first_page
        tiers = (
            np.array([rank for rank in part if self._ranked[rank] in self._orders], np.int64)
            for part in (range(min(cut, selected)), range(cut, selected))
        )
        self._tiers = [tier for tier in tiers if len(tier)] or [np.empty(0, np.int64)]
        lowest = (self._bounds[0] if len(bounds) else 0.0) - limits.first_round_margin * max(
            visual.weight for visual in visuals
        )
        near = int((self._bounds[: limits.max_first_round] >= lowest).sum())
        self._round_size = max(near, limits.min_first_round)
        self._earlier_hits: list[Hit] = []  # of previous tiers
        self._pool = _EMPTY_POOL  # best hits of the current tier
        self._tier_hits: list[Hit] = []  # those that can be results
        self._highest_cosines = np.full(len(visuals), -np.inf)
        self._lowest_score = self._min_score  # that changes the results
        # For each lineage, a bound on the visual score of videos not found yet; with auto, it is only likely.
        self._visual_bounds = np.array([visual.log_odds(COSINE_LIMIT) for visual in visuals])
        self._is_full = False  # of videos that match all terms

    def next_round(self) -> list[str]:
        """Choose the tasks to search next; empty when the list of hits is complete."""
        while True:
            ranks = self._tiers[0]
            limits = self._visual_bounds[self._lineages[ranks]]
            is_reachable = can_reach_score(self._bounds[ranks], self._lowest_score, limits)
            if self._uses_likely_bound and self._lowest_score > self._min_score:  # there are enough results
                # Tasks with equal bounds are equally likely, so none is cut off: tasks without captions have equal
                # bonuses. Videos that match all terms can have no better rivals, so the limit then holds for such
                # tasks, too.
                most = self._limits.max_likely_tasks
                if self._is_full:
                    is_reachable &= ranks < min(most, _MAX_LIKELY_TASKS_IF_FULL)
                elif len(self._bounds) >= most:
                    is_reachable &= self._bounds[ranks] >= self._bounds[most - 1]
            (chosen,) = np.nonzero(is_reachable)
            if len(chosen):
                if self._uses_likely_bound:  # later pages start with all tasks down to this page's last one
                    chosen = np.arange(chosen[-1] + 1)
                chosen = chosen[: self._round_size]
                self._tiers[0], reached = np.delete(ranks, chosen), ranks[chosen].tolist()
                tasks = [self._ranked[rank] for rank in reached]
                self.reached_tasks = max(self.reached_tasks, reached[-1] + 1)
                self.searched.update(tasks)
                self._round_size = self._limits.growth * len(self.searched)
                return tasks
            if len(self._tiers) == 1 or len(self.hits) >= self.depth:
                return []
            self._earlier_hits, self._tier_hits, self._pool = self.hits, [], _EMPTY_POOL
            self._lowest_score = self._min_score
            del self._tiers[0]

    def can_enter(self, task: str, words: float) -> bool:
        """Check whether a video of the task with this evidence could still enter the results."""
        bound = np.array(self.prior_bonuses[task] + words)
        limit = self._visual_bounds[self._lineages[self._ranks[task]]]
        return bool(can_reach_score(bound, self._lowest_score, limit))

    def add_hits(
        self,
        hits_by_task: Iterable[tuple[str, Hits]],
        words: Callable[[Ids], tuple[Scores, npt.NDArray[np.bool_]]],
    ) -> None:
        """Add the hits of a round.

        Args:
            hits_by_task: Task IDs and hits with cosines, best first. For each task, the requested number of hits from
                different videos, or all there are; other hits may follow.
            words: Looks up the evidence of texts for vector IDs, and whether each video's texts match all terms of the
                query.
        """
        parts = [(task, hits) for task, hits in hits_by_task if len(hits.ids)]
        if not parts:
            return
        counts = [len(hits.ids) for _, hits in parts]
        ids = np.concatenate([hits.ids for _, hits in parts])
        cosines = np.concatenate([hits.scores for _, hits in parts])
        orders = np.repeat([self._orders[task] for task, _ in parts], counts)
        bonuses = np.repeat(np.array([self.prior_bonuses[task] for task, _ in parts], np.float32), counts)
        evidence, match_all = words(ids)
        lineages = np.repeat(self._lineages[[self._ranks[task] for task, _ in parts]], counts)
        visual = (cosines - self._neutrals[lineages]) * self._weights[lineages]  # as VisualScore.log_odds
        scores = (visual + evidence) + bonuses
        np.maximum.at(self._highest_cosines, lineages, cosines)
        columns = zip(self._pool, (ids, scores, orders, cosines, evidence, match_all), strict=True)
        pool = [np.concatenate(column) for column in columns]
        rows = rank_distinct(pool[0], pool[1], pool[2], self.depth)
        self._pool = [column[rows] for column in pool]
        earlier = {hit.id for hit in self._earlier_hits}
        self._tier_hits = [
            Hit(self._searchable[order], video, score, cosine=cosine, words=words_part)
            for video, score, order, cosine, words_part in zip(
                *map(np.ndarray.tolist, self._pool[:-1]), strict=True
            )
            if score >= self._min_score and video not in earlier
        ]
        self.hits = (self._earlier_hits + self._tier_hits)[: self.depth]
        is_long = len(self.hits) >= self.depth
        self._lowest_score = max(self.hits[-1].score, self._min_score) if is_long else self._min_score
        if self._uses_likely_bound:
            self._is_full = len(self._tier_hits) >= self.depth and bool(self._pool[-1].all())
            slack = 0.0 if self._is_full else self._limits.cosine_slack
            likely = np.minimum(COSINE_LIMIT, self._highest_cosines + slack)
            likely[self._highest_cosines == -np.inf] = COSINE_LIMIT  # not searched yet
            self._visual_bounds = np.array(
                [visual.log_odds(cosine) for visual, cosine in zip(self._visuals, likely, strict=True)]
            )

    def rank_key(self, hit: Hit) -> tuple[bool, float, int, int]:
        """Compute a hit's sort key, even if it is no longer in the list."""
        is_in_later_tier = self._ranks[hit.task] >= self._first_tier
        return is_in_later_tier, -hit.score, self._orders.get(hit.task, -1), hit.id
