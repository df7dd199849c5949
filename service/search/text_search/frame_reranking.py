"""Re-ranking of the first results by frame vectors: text-conditioned pooling, X-Pool without its learned projections.

The first stage ranks videos by one vector each. This stage scores the first 100 of them again by the frames that the
query attends to (:mod:`index.scanning.frame_pooling`), with the query vectors of the first stage. A long video keeps
the score of its best moment where that is higher. Results after the hundredth keep their score and place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from index.errors import ShardStoreError
from index.hits import Hit, Hits, merge_hits
from index.scanning.frame_pooling import pooled_cosines
from service.core.errors import InvalidInput
from service.search.requests.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.video_grouping import has_moments
from service.search.text_search.best_moments import find_best_moments
from service.search.text_search.search_state import SearchState
from service.search.video_metadata_cache import VideoMetadataCache

__all__ = ["RERANKED_HITS", "require_frame_vectors", "rerank_by_frames"]

RERANKED_HITS = 100

_MAX_LISTED_TASKS = 20  # in an error


def require_frame_vectors(snapshot: SearchSnapshot, request: SearchRequest, tasks: Sequence[str]) -> None:
    """Check that all tasks of a request have frame vectors where it ranks by them.

    Raises:
        InvalidInput: The shard of a task has no frame vectors.
    """
    missing = [
        snapshot.task_names[task]
        for task in tasks
        if request.query.rerank is not None and not snapshot.shards[task].has_frames
    ]
    if missing:
        names = ", ".join(map(repr, missing[:_MAX_LISTED_TASKS]))
        raise InvalidInput.at(
            f"{request.field_prefix}rerank",
            f"The shards of these tasks have no frame vectors: {names}.",
            "Leave rerank out, or name other tasks in task. The setting frame_vectors of a new task stores them.",
        )


def rerank_by_frames(state: SearchState, cache: VideoMetadataCache) -> list[Hit]:
    """The hits of a complete search, the first 100 of them by falling score of their frames.

    Args:
        state: Search whose waves are all searched.
        cache: Source of the moments' times.
    """
    hits, snapshot, lifts = state.planner.hits(), state.snapshot, state.planner.lifts
    head = hits[:RERANKED_HITS]
    tasks = [task for task in snapshot.shards if task in {hit.task for hit in head}]
    encoded = snapshot.encode([(state.request.text, str(state.mode), task) for task in tasks])
    vectors = dict(zip(tasks, encoded, strict=True))  # of the first stage, from the cache
    with_moments = [hit for hit in head if has_moments(snapshot.shards[hit.task])]
    moments = find_best_moments(snapshot, with_moments, vectors, lifts, 1, cache)
    scores: dict[str, Hits] = {}
    for task in tasks:
        ids = np.array([hit.id for hit in head if hit.task == task], np.int64)
        try:
            frames = snapshot.shards[task].frame_vectors(ids)
        except ShardStoreError as error:
            snapshot.mark_degraded(task, error)
            continue
        cosines = pooled_cosines(vectors[task], frames) + np.float32(lifts[task])
        best = [moments[video][0].score if video in moments else -np.inf for video in ids.tolist()]
        scores[task] = Hits(ids, np.maximum(cosines, np.array(best, np.float32)))
    return merge_hits(scores, RERANKED_HITS) + hits[RERANKED_HITS:]
