"""Search results as the API returns them: hits joined with the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from cinestrata_schemas.search import MomentMatch, SearchResult
from index.hits import Hit
from service.library.video_details import stream_url, thumbnail_url
from service.search.catalog_mirror import ResultRows, read_rows
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.video_rows import ResultRow

__all__ = ["ResultList", "build_results"]


class ResultList(NamedTuple):
    """Hits of a page and their attributes.

    Attributes:
        hits: Hits by falling score.
        first_rank: Rank of the first result.
        confidences: Vector ID → confidence; empty where the release is not calibrated.
        moments: Vector ID → best moments of the video.
        reached: Vector IDs of the hits that belong to the answer; None where the release does not tell.
    """

    hits: Sequence[Hit]
    first_rank: int = 1
    confidences: Mapping[int, float] = {}
    moments: Mapping[int, list[MomentMatch]] = {}
    reached: Set[int] | None = None


def build_results(
    lists: Sequence[ResultList], snapshot: SearchSnapshot, read: ResultRows | None = None
) -> list[list[SearchResult]]:
    """Join hits with their catalog rows, read once for all lists. Hits without a row (deleted videos) are left out.

    Args:
        lists: Hits of each page.
        snapshot: Snapshot that found them.
        read: Rows of the hits; None reads them from the catalog.
    """
    rows = read.rows if read else read_rows([hit.id for page in lists for hit in page.hits])
    return [
        [
            _result(rank, hit, rows[hit.id], snapshot, page)
            for rank, hit in enumerate((hit for hit in page.hits if hit.id in rows), page.first_rank)
        ]
        for page in lists
    ]


def _result(rank: int, hit: Hit, row: ResultRow, snapshot: SearchSnapshot, page: ResultList) -> SearchResult:
    moments = page.moments.get(hit.id, [])
    return SearchResult(
        rank=rank,
        video_id=row.video_id,
        uri=row.uri,
        task=snapshot.task_names[hit.task],
        task_id=hit.task,
        score=hit.score,
        confidence=page.confidences.get(hit.id),
        matches=None if page.reached is None else hit.id in page.reached,
        captions=row.captions,
        thumbnail_url=thumbnail_url(row.video_id),
        stream_url=stream_url(row.video_id, moments[0] if moments else None),
        moments=moments,
    )
