"""Search results as the API returns them: hits joined with the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from cinestrata_schemas.search import MomentMatch, SearchResult
from index.hits import Hit
from service.library.video_details import stream_url, thumbnail_url
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search.result_confidence import UNKNOWN_CONFIDENCE, ListConfidence
from service.search.video_rows import VideoRow


def build_results(
    hits: Sequence[Hit],
    rows: Mapping[int, VideoRow],
    snapshot: SearchSnapshot,
    *,
    first_rank: int = 1,
    confidence: ListConfidence = UNKNOWN_CONFIDENCE,
    moments: Mapping[int, list[MomentMatch]] = MappingProxyType({}),
) -> list[SearchResult]:
    """Join hits with their catalog rows. Hits without a row (deleted videos) are left out.

    Args:
        hits: Hits by falling score.
        rows: Vector ID → row.
        snapshot: Snapshot that found the hits.
        moments: Vector ID → best moments of the video.
    """
    results: list[SearchResult] = []
    for hit in hits:
        row = rows.get(hit.id)
        if row is None:
            continue
        best = moments.get(hit.id, [])
        results.append(
            SearchResult(
                rank=first_rank + len(results),
                video_id=row.video_id,
                uri=row.uri,
                task=snapshot.task_names[hit.task],
                task_id=hit.task,
                score=hit.score,
                confidence=confidence.results.get(hit.id),
                matches=None if confidence.reached is None else hit.id in confidence.reached,
                captions=row.captions,
                thumbnail_url=thumbnail_url(row.video_id),
                stream_url=stream_url(row.video_id, best[0] if best else None),
                moments=best,
            )
        )
    return results
