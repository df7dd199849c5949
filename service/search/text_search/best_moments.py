"""The moments of the videos that a search shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from index.hits import Hit
from index.vector_ids import video_ids_of
from service.core.schemas import MomentMatch
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.video_metadata_cache import VideoMetadataCache

__all__ = ["best_moments"]

Vectors = npt.NDArray[np.float32]


def best_moments(
    serving: SearchSnapshot,
    hits: Sequence[Hit],
    queries: Mapping[str, Vectors],
    lift: Mapping[str, float],
    most: int,
    reader: VideoMetadataCache,
) -> dict[int, list[MomentMatch]]:
    """The best moments of videos that were found, best first, by vector id of the video.

    They are looked for among all moments of these videos, and not among the hits that led to them, which may be few of
    them. Equal scores are ordered by time.

    Args:
        hits: videos, of tasks that may have moments.
        queries: ``float32 [dim]`` by task id.
        lift: what is added to the scores of each task.
        most: how many for each video.
    """
    found: dict[int, list[MomentMatch]] = {}
    for task in dict.fromkeys(hit.task for hit in hits):
        moments = reader.moments(task, serving.shards[task].state)
        rows = moments.rows(np.array([hit.id for hit in hits if hit.task == task], np.int64))
        spans = {int(moments.ids[row]): moments.spans[row].tolist() for row in rows}
        if not spans:
            continue
        theirs = serving.search_moments(task, queries[task], moments.ids[rows])
        scores = theirs.scores + np.float32(lift[task])
        for moment, video, score in zip(
            theirs.ids.tolist(), video_ids_of(theirs.ids).tolist(), scores.tolist(), strict=True
        ):
            listed = found.setdefault(video, [])
            if len(listed) < most:
                start, end = spans[moment]
                listed.append(MomentMatch(start=start, end=end, score=score))
    return found
