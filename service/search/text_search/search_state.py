"""The state of a search between waves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.choice_types import QueryMode
from cinestrata_schemas.search import MomentMatch
from index.hits import Hit, Hits
from service.search.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot, TextRouting
from service.search.text_search.planner import WavePlanner
from service.search.text_search.written_words import SearchWords

Ids = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ListConfidence:
    """How confident a list of hits is.

    Attributes:
        results: Probability that each video is right, by vector ID in list order; lacks videos for which neither
            calibration nor text can tell.
        answer: Probability that a searched video is right; None if unknown.
        matches: Whether a searched video is right; None if unknown.
        reached: Vector IDs of the matching hits; None if unknown.
        matching: Vector IDs of all matching videos, ascending, including those beyond the hits; None like ``reached``.
    """

    results: Mapping[int, float] = field(default_factory=dict)
    answer: float | None = None
    matches: bool | None = None
    reached: Set[int] | None = None
    matching: Ids | None = None


UNKNOWN_CONFIDENCE = ListConfidence()


@dataclass(eq=False)
class SearchState:
    """A search in progress.

    Attributes:
        snapshot: Snapshot that the search uses from its first wave to its response.
        edit: Number of the last edit before the search; None if unknown.
        words: Word evidence of the query.
        routing: Weights of the candidate tasks, from bounded evidence and the words of their videos.
        meaning: Weights from the evidence without bounds, which the calibration uses.
        allowed_ids: IDs that pass the filter, including moments, by task ID; None if all pass. Tasks without a passing
            video are left out.
        with_moments: Adds the moments to a task's video IDs.
        planner: Orders the tasks and holds the hits so far.
        nearest: Nearest videos by cosine alone, by searched task.
        offset: Number of hits on previous pages; once the search is complete, without those deleted since.
        end: Number of hits up to the end of this page.
        depth: Number of hits to find.
        can_have_next_page: Whether the depth limit allows another page.
        wave: Tasks to search next; empty when the search is complete.
        ranked: Hits of the completed search that pass its thresholds, from the first page on.
        confidence: Confidence of the list and of its hits.
        query_vectors: Query vectors by task ID, for tasks with hits that may have moments, if moments are requested.
        moments: Best moments of the page's videos, by vector ID.
        times: Milliseconds by stage; a shared batch's time is divided equally among its searches.
    """

    snapshot: SearchSnapshot
    request: SearchRequest
    edit: int | None
    mode: QueryMode
    words: SearchWords
    meaning: TextRouting
    routing: TextRouting
    allowed_ids: dict[str, Ids | None]
    with_moments: Callable[[str, Ids], Ids]
    planner: WavePlanner
    offset: int
    end: int
    depth: int
    can_have_next_page: bool
    wave: list[str] = field(default_factory=list)
    nearest: dict[str, Hits] = field(default_factory=dict)
    ranked: Sequence[Hit] = ()
    confidence: ListConfidence = UNKNOWN_CONFIDENCE
    query_vectors: dict[str, Vector] = field(default_factory=dict)
    moments: dict[int, list[MomentMatch]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)

    @property
    def page(self) -> Sequence[Hit]:
        """Hits on the requested page."""
        return self.ranked[self.offset : self.end]

    @property
    def has_next_page(self) -> bool:
        """Whether another page follows: a search finds one more hit than the page shows."""
        return self.can_have_next_page and len(self.ranked) > self.end
