"""Best moments of the videos on a page of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.search import MomentMatch
from index.hits import Hit
from index.vector_ids import video_ids_of
from service.core.errors import Unavailable
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.video_metadata_cache import VideoMetadataCache

Vector = npt.NDArray[np.float32]


def find_best_moments(
    snapshot: SearchSnapshot,
    hits: Sequence[Hit],
    query_vectors: Mapping[str, Vector],
    lifts: Mapping[str, float],
    max_moments: int,
    cache: VideoMetadataCache,
) -> dict[int, list[MomentMatch]]:
    """The best moments of each video, by falling score, then by time.

    All moments of the videos are scored, because only some of them may be among the hits.

    Args:
        snapshot: Snapshot that found the hits.
        hits: Hits of videos in tasks that may have moments.
        query_vectors: Task ID → query vector ``float32 [dim]``.
        lifts: Task ID → value added to cosines of the task.
        max_moments: Maximum number of moments per video.
        cache: Source of the moments' times.

    Returns:
        Vector ID of the video → moments.
    """
    moments_by_video: dict[int, list[MomentMatch]] = {}
    for task in dict.fromkeys(hit.task for hit in hits):
        try:
            moments = cache.moments(task, snapshot.shards[task].state)
        except Unavailable:  # the videos are found without their moments
            continue
        rows = moments.rows_of(np.array([hit.id for hit in hits if hit.task == task], np.int64))
        spans = {int(moments.ids[row]): moments.spans[row].tolist() for row in rows}
        if not spans:
            continue
        ids = moments.ids[rows]
        (found,) = snapshot.scan([ShardScan(task, query_vectors[task], len(ids), ids, group=None)])
        scores = found.scores + np.float32(lifts[task])
        for moment, video, score in zip(
            found.ids.tolist(), video_ids_of(found.ids).tolist(), scores.tolist(), strict=True
        ):
            best = moments_by_video.setdefault(video, [])
            if len(best) < max_moments:
                start, end = spans[moment]
                best.append(MomentMatch(start=start, end=end, score=score))
    return moments_by_video
