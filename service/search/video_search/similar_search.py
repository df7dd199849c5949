"""Search by example: the videos whose stored vectors are nearest to that of a video which is there already.

Vectors of two shards can be compared only where one encoder made both (their fingerprints agree). A method that learns
the image side makes another encoder with every task, and then a cosine across shards means nothing; so by default a
video is compared with those of its own task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from index.errors import ShardMissing, ShardStoreError
from index.hits import merge_hits
from index.shards.searchable_shard import SearchableShard
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import Conflict, FieldError, InvalidInput, NotFound, Unavailable
from service.core.schemas import SimilarVideosResponse
from service.core.settings import Settings
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.video_grouping import delete_moments
from service.search.text_search.executor import described

__all__ = ["similar", "stored", "wrong"]

Vector = npt.NDArray[np.float32]

_SCOPES = ("task", "all")


def similar(
    serving: SearchSnapshot, limits: Settings, video_id: str, k: int, scope: str, min_score: float | None
) -> SimilarVideosResponse:
    """The k nearest videos to one, itself left out; scores are cosines.

    Args:
        scope: ``task``: its own; ``all``: every task whose videos the same encoder has embedded.

    Raises:
        InvalidInput: names the field.
        NotFound: there is no such video.
        Conflict: it has no vector, or with ``all`` there is no other task that it can be compared with.
        Unavailable: the shard of its task is broken.
    """
    errors = wrong(limits, k, scope, "results")
    if min_score is not None and not math.isfinite(min_score):
        errors.append(FieldError("min_score", "This is no score.", "Give a number, such as 0.2."))
    if errors:
        raise InvalidInput.of(errors)
    vector_id, task, vector = stored(serving, video_id)
    own = serving.shards[task]
    searched, apart = _comparable(serving, task, own, scope)
    hits = {
        name: serving.search(name, vector, k, exclude=[vector_id], reduced=delete_moments)
        for name in searched
    }
    merged = [hit for hit in merge_hits(hits, k) if min_score is None or hit.score >= min_score]
    return SimilarVideosResponse(
        video_id=video_id,
        task=serving.names[task],
        task_id=task,
        release=serving.release,
        generation=serving.snapshot.generation,
        results=described([merged], serving)[0],
        searched=[serving.names[name] for name in searched],
        not_compared=apart,
        degraded=serving.named_degraded if scope == "all" else {},
    )


def wrong(limits: Settings, k: int, scope: str, what: str) -> list[FieldError]:
    """What is wrong with how many are asked for, and in which tasks.

    Args:
        what: is asked for, in the plural.
    """
    errors = []
    if not 1 <= k <= limits.limits.max_results:
        said = f"{k} {what}" if abs(k) < 10**9 else f"So many {what}"
        errors.append(
            FieldError("k", f"{said} cannot be given.", f"Ask for 1 to {limits.limits.max_results}.")
        )
    if scope not in _SCOPES:
        errors.append(
            FieldError("scope", f"There is no scope {scope[:40]!r}.", f"Use {' or '.join(_SCOPES)}.")
        )
    return errors


def stored(serving: SearchSnapshot, video_id: str) -> tuple[int, str, Vector]:
    """Vector id, task and vector of a video that is laid down.

    Raises:
        NotFound: there is no such video.
        Conflict: it has no vector.
        Unavailable: the shard of its task is broken.
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
    if task in serving.degraded:
        raise Unavailable(
            f"Task {serving.names.get(task, task)!r} cannot be searched: {serving.degraded[task]}", 30
        )
    if task not in serving.shards:
        raise Conflict(
            f"Video {video_id!r} has no vector yet: see GET /tasks/{task} for how far its task is."
        )
    try:
        vector = serving.shards[task].vectors(np.array([vector_id]))[0]
    except ShardMissing:
        raise Conflict(
            f"Video {video_id!r} has no vector: it was not there when its task was laid down."
        ) from None
    except ShardStoreError as error:
        serving.set_aside(task, error)
        raise Unavailable(f"Task {serving.names[task]!r} cannot be searched: {error}", 30) from error
    return vector_id, task, vector


def _comparable(
    serving: SearchSnapshot, task: str, own: SearchableShard, scope: str
) -> tuple[Sequence[str], dict[str, str]]:
    """Tasks to search, and by name of the others why their videos cannot be compared."""
    if scope == "task":
        return [task], {}
    made_by = {name: shard.entry.fingerprint for name, shard in serving.shards.items()}
    searched = [name for name, encoder in made_by.items() if encoder == own.entry.fingerprint]
    apart = {
        serving.names[name]: f"its videos were embedded by encoder {encoder[:12]}, this one's by "
        f"{own.entry.fingerprint[:12]}"
        for name, encoder in made_by.items()
        if encoder != own.entry.fingerprint
    }
    if len(searched) == 1 and apart:
        raise Conflict(
            f"scope: No other task's videos can be compared with those of {serving.names[task]!r}: every task has a "
            "video encoder of its own, so a cosine between their vectors means nothing. Leave scope out to search its "
            "own task, or search all tasks by text."
        )
    return searched, apart
