"""Plan a search: in which order to search tasks, and when the results are complete.

A video's score is the visual score of its cosine with the query vector of its shard, plus the *prior bonus* of its
task (its bounded routing evidence), plus the evidence of its texts. All prior bonuses, and the highest evidence of
texts in each task, are known before the first round; their sum is an *upper bound* on what a video of the task has
besides its visual score. Tasks are therefore searched in rounds, highest bound first, and the search ends when no
remaining task can contain a video that would enter the results (:func:`models.routing.router.can_reach_score`). The
cost depends on how clearly the text points to tasks, not on how many there are.

``auto`` is designed to keep 99 of 100 correct results in the first ten of ``all``. Encoders that share one text tower
pass between tasks have wider limits: another task then costs only the scan of its shard, and a few large rounds cost
less than many small ones. ``docs/ranking.md`` says when
each kind of ``routes`` stops, and lists the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Hit, Hits, Ids, Rows, Scores, rank_distinct
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

_GROUP = 64  # values whose maximum tells whether one of them can be among the highest

# Vector IDs, scores, numbers of the tasks, cosines, evidence of texts, and whether these match all terms.
_EMPTY_POOL: list[npt.NDArray[Any]] = [
    np.empty(0, dtype) for dtype in (np.int64, np.float32, np.int64, np.float32, np.float32, np.bool_)
]


class TaskValues(Mapping[str, float]):
    """Values ``[T]`` of a snapshot's tasks, by ID; tasks that a search does not include have −∞, and are missing."""

    def __init__(self, numbers: Mapping[str, int], array: npt.NDArray[np.floating]) -> None:
        self._numbers, self.array = numbers, array

    def __getitem__(self, task: str) -> float:
        value = float(self.array[self._numbers[task]])
        if value == -np.inf:
            raise KeyError(task)
        return value

    def __iter__(self) -> Iterator[str]:
        return (task for task, value in zip(self._numbers, self.array, strict=True) if value > -np.inf)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.array > -np.inf))


def best_first(values: Floats, count: int, ties: Floats, among: npt.NDArray[np.bool_] | None = None) -> Rows:
    """Find the rows of the highest values, of all or among some, highest first; equal ones by ``ties``, then by row."""
    # Sorting thousands of values would take longer than the rest of the planning.
    is_candidate = values >= _kth_highest(values if among is None else values[among], count)
    rows = np.flatnonzero(is_candidate if among is None else is_candidate & among)
    return rows[np.lexsort([-ties[rows], -values[rows]])][:count]


def _kth_highest(values: Floats, k: int) -> float:
    """Find the k-th highest value, or the lowest if there are fewer; −∞ without any."""
    k = min(max(1, k), len(values))
    groups = len(values) // _GROUP
    if 0 < k <= groups:  # the k-th highest of the groups' maxima is a lower bound, which few values reach
        maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        values = values[values >= _kth_highest(maxima, k)]
    return float(np.partition(values, -k)[-k]) if k else -np.inf


class RoundPlanner:
    """Orders the tasks of one search, and collects its hits.

    Call :meth:`next_round`, search its tasks, call :meth:`add_hits`, and repeat until the round is empty. Arrays have
    an entry for each task, T in all, so that nothing is done for one task after the other.

    Args:
        tasks: IDs of the tasks in learned order, which also orders equal scores.
        numbers: Index of each in ``tasks``, by ID.
        prior_bonuses: Their prior bonuses, ``[T]``; −∞ for those that the search does not include.
        searchable: Whether each task may contain hits, ``[T]``; None: all that the search includes.
        depth: Number of hits to find, each from a different video.
        tasks_in_first_page: With ``auto``, how many of the likeliest tasks the list's first page considered; None on
            the first page. Their hits precede all others, so that a list does not depend on its page sizes.
        words: Highest evidence of texts in each task, ``[T]``.
        likelihoods: Order of tasks with equal upper bounds, highest first, ``[T]``.
        visuals: Visual score of each lineage.
        lineages: Index of each task's lineage in ``visuals``, ``[T]``.

    Attributes:
        prior_bonuses: Prior bonuses of the included tasks, by ID.
        searched: Tasks in the rounds so far.
        reached_tasks: Number of likeliest tasks down to the last searched one, including those that cannot contain
            hits.
        hits: The best hits so far, at most ``depth``.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        numbers: Mapping[str, int],
        prior_bonuses: npt.NDArray[np.floating],
        searchable: npt.NDArray[np.bool_] | None,
        depth: int,
        *,
        min_score: float | None = None,
        routes: Routes = "all",
        limits: RoundLimits = SEPARATE_ENCODINGS,
        tasks_in_first_page: int | None = None,
        words: npt.NDArray[np.floating] | float = 0.0,
        likelihoods: npt.NDArray[np.floating],
        visuals: Sequence[VisualScore],
        lineages: npt.NDArray[np.intp],
    ) -> None:
        self.searched: set[str] = set()
        self.reached_tasks = 0
        self.hits: list[Hit] = []
        self._tasks, self._numbers = tasks, numbers
        bonuses = np.asarray(prior_bonuses, np.float64)
        self.prior_bonuses = TaskValues(numbers, bonuses)
        self._bounds = bonuses + words
        self._likelihoods, self._lineages = likelihoods, lineages
        is_included = bonuses > -np.inf
        self._count = int(np.count_nonzero(is_included))
        self._is_searchable = is_included if searchable is None else is_included & searchable
        self.depth = depth
        self._min_score = -np.inf if min_score is None else min_score
        self._uses_likely_bound = routes == "auto" and tasks_in_first_page is None
        self._limits = limits
        self._visuals = visuals
        self._weights, self._neutrals = np.array([[v.weight, v.neutral] for v in visuals], np.float32).T
        # Whether each task is left to search, ``[T]``, in tiers: a tier's hits precede the next one's.
        self._is_in_first_tier = is_included
        if tasks_in_first_page is not None:
            self._is_in_first_tier = np.zeros(len(numbers), np.bool_)
            self._is_in_first_tier[self._likeliest(tasks_in_first_page)] = True
        tiers = [self._is_searchable]
        if isinstance(routes, int):
            lowest = _kth_highest(self._bounds, min(routes, self._count))
            tiers = [self._is_searchable & (self._bounds >= lowest)]
        elif routes == "auto" and tasks_in_first_page is not None:
            tiers = [
                self._is_searchable & self._is_in_first_tier,
                self._is_searchable & ~self._is_in_first_tier,
            ]
        self._tiers = [tier.copy() for tier in tiers if tier.any()] or [tiers[0].copy()]
        lowest = self._bounds.max(initial=-np.inf) - limits.first_round_margin * max(
            v.weight for v in visuals
        )
        near = min(int(np.count_nonzero(self._bounds >= lowest)), limits.max_first_round)
        self._round_size = max(near, limits.min_first_round)
        self._earlier_hits: list[Hit] = []  # of previous tiers
        self._pool = _EMPTY_POOL  # best hits of the current tier
        self._tier_hits: list[Hit] = []  # those that can be results
        self._highest_cosines = np.full(len(visuals), -np.inf)
        self._lowest_score = self._min_score  # that changes the results
        # For each lineage, a bound on the visual score of videos not found yet; with auto, it is only likely.
        self._visual_bounds = np.array([visual.log_odds(COSINE_LIMIT) for visual in visuals])
        self._is_full = False  # of videos that match all terms

    def _likeliest(self, count: int, among: npt.NDArray[np.bool_] | None = None) -> Rows:
        """Find the likeliest tasks, of all or among some: those with the highest upper bounds, in this order."""
        return best_first(self._bounds, count, self._likelihoods, among)

    def _rank(self, number: int) -> int:
        """Count the tasks that are likelier than one."""
        bounds, ties = self._bounds, self._likelihoods
        precedes = (ties > ties[number]) | (ties == ties[number]) & (np.arange(len(ties)) < number)
        return int(np.count_nonzero((bounds > bounds[number]) | (bounds == bounds[number]) & precedes))

    def next_round(self) -> list[str]:
        """Choose the tasks to search next; empty when the list of hits is complete."""
        while True:
            left = self._tiers[0]
            limits = self._visual_bounds[self._lineages]
            is_reachable = left & can_reach_score(self._bounds, self._lowest_score, limits)
            if self._uses_likely_bound and self._lowest_score > self._min_score:  # there are enough results
                # Tasks with equal bounds are equally likely, so none is cut off: tasks without captions have equal
                # bonuses. Videos that match all terms can have no better rivals, so the limit then holds for such
                # tasks, too.
                most = self._limits.max_likely_tasks
                if self._is_full:
                    likeliest = self._likeliest(min(most, _MAX_LIKELY_TASKS_IF_FULL))
                    is_reachable &= np.bincount(likeliest, minlength=len(left)) > 0
                elif self._count >= most:
                    is_reachable &= self._bounds >= _kth_highest(self._bounds, most)
            if reachable := np.count_nonzero(is_reachable):
                chosen = self._likeliest(self._round_size, left if self._uses_likely_bound else is_reachable)
                if self._uses_likely_bound:  # later pages start with all tasks down to this page's last one
                    (places,) = np.nonzero(is_reachable[chosen])
                    if len(places) == reachable:
                        chosen = chosen[: places[-1] + 1]
                left[chosen] = False
                tasks = [self._tasks[number] for number in chosen.tolist()]
                self.reached_tasks = max(self.reached_tasks, self._rank(chosen[-1]) + 1)
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
        limit = self._visual_bounds[self._lineages[self._numbers[task]]]
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
        numbers = np.repeat([self._numbers[task] for task, _ in parts], counts)
        bonuses = self.prior_bonuses.array[numbers].astype(np.float32)
        evidence, match_all = words(ids)
        lineages = self._lineages[numbers]
        visual = (cosines - self._neutrals[lineages]) * self._weights[lineages]  # as VisualScore.log_odds
        scores = (visual + evidence) + bonuses
        np.maximum.at(self._highest_cosines, lineages, cosines)
        columns = zip(self._pool, (ids, scores, numbers, cosines, evidence, match_all), strict=True)
        pool = [np.concatenate(column) for column in columns]
        rows = rank_distinct(pool[0], pool[1], pool[2], self.depth)
        self._pool = [column[rows] for column in pool]
        earlier = {hit.id for hit in self._earlier_hits}
        self._tier_hits = [
            Hit(self._tasks[number], video, score, cosine=cosine, words=words_part)
            for video, score, number, cosine, words_part in zip(
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
        number = self._numbers[hit.task]
        order = number if self._is_searchable[number] else -1
        return not self._is_in_first_tier[number], -hit.score, order, hit.id
