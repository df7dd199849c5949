"""State of a search between its waves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.choice_types import QueryMode
from cinestrata_schemas.search import MomentMatch
from index.hits import Hit
from service.search.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot, TextRouting
from service.search.text_search.planner import WavePlanner
from service.search.text_search.result_confidence import UNKNOWN_CONFIDENCE, ListConfidence

Ids = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float32]


@dataclass(eq=False)
class SearchState:
    """A search in progress.

    Attributes:
        snapshot: Snapshot that answers the search from its first wave to its response.
        mode: Query mode.
        routing: Routing of the text to the candidate tasks.
        allowed_ids: Task ID → IDs that pass the filter, with those of moments; None where all pass. Tasks without a
            passing video are left out.
        planner: Order of the tasks, and the hits so far.
        offset: Number of hits on earlier pages; when the search is complete, without those that were deleted since.
        end: Number of hits on earlier pages and this one.
        depth: Number of hits to find.
        can_have_next_page: Whether the depth limit allows another page.
        wave: Tasks to search next; empty when the search is complete.
        ranked: Hits of the complete search that pass its thresholds, from the first page on.
        confidence: Confidence of the list and of its hits.
        query_vectors: Task ID → query vector, for tasks with hits that may have moments, where moments are requested.
        moments: Vector ID → best moments of the videos of the page.
        times: Stage → milliseconds; the time of a shared batch is divided equally among its searches.
    """

    snapshot: SearchSnapshot
    request: SearchRequest
    mode: QueryMode
    routing: TextRouting
    allowed_ids: dict[str, Ids | None]
    planner: WavePlanner
    offset: int
    end: int
    depth: int
    can_have_next_page: bool
    wave: list[str] = field(default_factory=list)
    ranked: Sequence[Hit] = ()
    confidence: ListConfidence = UNKNOWN_CONFIDENCE
    query_vectors: dict[str, Vector] = field(default_factory=dict)
    moments: dict[int, list[MomentMatch]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)

    @property
    def page(self) -> Sequence[Hit]:
        """Hits of the requested page."""
        return self.ranked[self.offset : self.end]

    @property
    def has_next_page(self) -> bool:
        """Whether another page follows; one more hit is searched than a page shows."""
        return self.can_have_next_page and len(self.ranked) > self.end
