"""Search by example: find the videos whose stored vectors are nearest to a library video's.

Vectors from two shards are comparable only if one encoder made both, that is, if their fingerprints match. A method
that adapts the video side makes a new encoder with every task, and cosines across its shards mean nothing. By default,
a video is therefore compared within its own task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
from sqlalchemy import select

from cinestrata_schemas.choice_types import SearchScope
from cinestrata_schemas.search import SimilarVideosResponse
from index.arrays import Vectors
from index.errors import ShardMissing, ShardStoreError
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core import request_limits
from service.core.errors import Conflict, FieldError, InvalidInput, NotFound
from service.search.errors import TaskNotLoaded
from service.search.search_request import find_count_errors
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.snapshots.video_grouping import drop_moments
from service.search.text_search.search_responses import build_nearest

_SCOPES = get_args(SearchScope)


def search_similar(
    snapshot: SearchSnapshot, video_id: str, k: int, scope: str, min_score: float | None
) -> SimilarVideosResponse:
    """Find the k videos nearest to a video, without the video itself. Scores are cosines.

    Args:
        k: Number of results.
        scope: ``task`` for the video's own task; ``all`` for every task that uses the same encoder.
        min_score: Lowest score of a result; None accepts all scores.

    Raises:
        InvalidInput: A parameter is invalid.
        NotFound: There is no such video.
        Conflict: The video has no vector, or with ``all`` there is no other comparable task.
        Unavailable: The task's shard cannot be searched.
    """
    errors = find_scope_errors(k, scope, "results")
    if min_score is not None and not math.isfinite(min_score):
        errors.append(FieldError("min_score", "The value is not a score.", "Give a number, such as 0.2."))
    if errors:
        raise InvalidInput.of(errors)
    vector_id, task, vector = load_stored_vector(snapshot, video_id)
    tasks, not_compared = _comparable_tasks(snapshot, task, scope)
    scans = [ShardScan(other, vector, k, group=drop_moments, exclude=(vector_id,)) for other in tasks]
    hits = dict(zip(tasks, snapshot.scan(scans), strict=True))
    return SimilarVideosResponse(
        video_id=video_id,
        task=snapshot.task_names[task],
        task_id=task,
        release=snapshot.release_id,
        generation=snapshot.generation,
        results=build_nearest(hits, k, min_score, snapshot),
        searched=[snapshot.task_names[other] for other in tasks],
        not_compared=not_compared,
        degraded=snapshot.degraded_by_name if scope == "all" else {},
    )


def find_scope_errors(k: int, scope: str, noun: str) -> list[FieldError]:
    """Check the parameters ``k`` and ``scope``, and list the errors.

    Args:
        k: Number of results.
        scope: Which tasks to search.
        noun: What the results are, in the plural.
    """
    errors = find_count_errors(k, "k", noun, request_limits.MAX_RESULTS)
    if scope not in _SCOPES:
        errors.append(
            FieldError("scope", f"There is no scope {scope[:40]!r}.", f"Use {' or '.join(_SCOPES)}.")
        )
    return errors


def load_stored_vector(snapshot: SearchSnapshot, video_id: str) -> tuple[int, str, Vectors]:
    """Look up a video's vector ID, its task ID and its stored vector.

    Raises:
        NotFound: There is no such video.
        TaskNotLoaded: The snapshot does not contain the video's task.
        Conflict: The video has no vector.
        Unavailable: The task's shard cannot be searched.
    """
    with session_scope() as session:
        row = session.execute(
            select(Video.vector_id, Video.task_id, Video.status, Video.reason).where(Video.id == video_id)
        ).one_or_none()
    if row is None:
        raise NotFound(f"There is no video {video_id!r}.")
    vector_id, task, status, reason = row
    if status == "rejected":
        raise Conflict(f"Video {video_id!r} has no vector: it was rejected. {reason}")
    snapshot.require_searchable(task)
    if task not in snapshot.shards:
        raise TaskNotLoaded(video_id, task)
    try:
        vector = snapshot.shards[task].vectors(np.array([vector_id]))[0]
    except ShardMissing:
        raise Conflict(
            f"Video {video_id!r} has no vector: it was not available when its task was indexed."
        ) from None
    except ShardStoreError as error:
        snapshot.mark_degraded(task, error)
        raise snapshot.unavailable_error(task) from error
    return vector_id, task, vector


def _comparable_tasks(
    snapshot: SearchSnapshot, task: str, scope: str
) -> tuple[Sequence[str], dict[str, str]]:
    """Find the IDs of comparable tasks; also return, by task name, why each other task is not comparable."""
    if scope == "task":
        return [task], {}
    fingerprints = {other: shard.entry.fingerprint for other, shard in snapshot.shards.items()}
    own = fingerprints[task]
    tasks = [other for other, fingerprint in fingerprints.items() if fingerprint == own]
    not_compared = {
        snapshot.task_names[
            other
        ]: f"its videos were embedded by encoder {fingerprint[:12]}, this task's by {own[:12]}"
        for other, fingerprint in fingerprints.items()
        if fingerprint != own
    }
    if len(tasks) == 1 and not_compared:
        raise Conflict(
            "scope: Videos of other tasks can't be compared with those of "
            f"{snapshot.task_names[task]!r}: every task has its own video encoder, so cosines between "
            "their vectors are meaningless. Leave scope out to search the video's own task, or search "
            "all tasks by text."
        )
    return tasks, not_compared
