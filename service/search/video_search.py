"""Search with a library video: the videos most similar to it, and the captions that describe it.

Vectors from two shards are comparable only if one encoder made both, that is, if their fingerprints match. A method
that adapts the video side makes a new encoder with every task, and cosines across its shards mean nothing. By default,
a video is therefore compared within its own task.

To caption a video, the library's captions are encoded as queries for the video's task and compared with its vector; no
text is generated, and no video file is read. A task's captions are encoded on first use and cached up to a memory
limit, so the first request takes longer. A caption that several videos share is attributed to the first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from cinestrata_schemas.choice_types import QueryMode, SearchScope
from cinestrata_schemas.problems import Action
from cinestrata_schemas.search import CaptionMatch, CaptionsResponse, SimilarVideosResponse
from index.arrays import Vectors
from index.errors import ShardMissing, ShardStoreError
from index.files.manifest_format import task_of
from index.shards.vector_store import SearchableShard
from service.catalog.database import session_scope
from service.catalog.domain_videos import in_domain, read_caption_edits
from service.catalog.tables import Video
from service.core import request_limits
from service.core.errors import Conflict, FieldError, InvalidInput, NotFound
from service.search.search_request import find_count_errors
from service.search.single_flight_cache import SingleFlightCache
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan, drop_moments
from service.search.text_search.answers import build_nearest

_SCOPES = get_args(SearchScope)
_MAX_TEXTS = 4096  # per task, from its first videos; encoding them takes most of the time
_ENCODING_BATCH = 256  # texts
_MAX_BYTES = 256 * 1024**2  # of cached vectors


class TaskNotLoaded(Conflict):
    """A request names a video whose task the snapshot does not contain."""

    def __init__(self, video_id: str, task: str) -> None:
        super().__init__(
            f"Video {video_id!r} has no vector yet: its task is not finished.",
            remedy=Action(name="show_task", id=task),
        )
        self.task = task


def search_similar(
    snapshot: SearchSnapshot, video_id: str, k: int, scope: str, min_score: float | None
) -> SimilarVideosResponse:
    """Find the k videos nearest to a video, without the video itself. Scores are cosines.

    Args:
        scope: ``task`` for the video's own task; ``all`` for every task that uses the same encoder.
        min_score: Lowest score of a result; None accepts all scores.

    Raises InvalidInput, Conflict if no other task is comparable with ``all``, or as :func:`load_stored_vector`.
    """
    errors = _find_errors(k, scope, "results")
    if min_score is not None and not math.isfinite(min_score):
        errors.append(FieldError("min_score", "The value is not a score.", "Give a number, such as 0.2."))
    if errors:
        raise InvalidInput.of(errors)
    vector_id, task, vector = load_stored_vector(snapshot, video_id)
    fingerprints = {other: shard.entry.fingerprint for other, shard in snapshot.shards.items()}
    if scope != "all":
        fingerprints = {key: value for key, value in fingerprints.items() if task_of(key) == task_of(task)}
    comparable = fingerprints[task]
    tasks = [other for other, fingerprint in fingerprints.items() if fingerprint == comparable]
    not_compared = {
        snapshot.task_names[other]: (
            f"its videos were embedded by encoder {fingerprint[:12]}, this domain's by {comparable[:12]}"
        )
        for other, fingerprint in fingerprints.items()
        if fingerprint != comparable
    }
    if scope == "all" and len(tasks) == 1 and not_compared:
        raise Conflict(
            "scope: Videos of other domains can't be compared with those of "
            f"{snapshot.task_names[task]!r}: no other domain has its video encoder, and cosines between vectors of "
            "two encoders are meaningless. Leave scope out to search its domain, or search all by text."
        )
    scans = [ShardScan(other, vector, k, group=drop_moments, exclude=(vector_id,)) for other in tasks]
    hits = dict(zip(tasks, snapshot.scan(scans), strict=True))
    return SimilarVideosResponse(
        video_id=video_id,
        task=snapshot.task_names[task],
        task_id=task_of(task),
        release=snapshot.release_id,
        generation=snapshot.generation,
        results=build_nearest(hits, k, min_score, snapshot),
        searched=list(dict.fromkeys(snapshot.task_names[other] for other in tasks)),
        not_compared=not_compared,
        degraded=snapshot.degraded_by_name if scope == "all" else {},
    )


def _find_errors(k: int, scope: str, noun: str) -> list[FieldError]:
    errors = find_count_errors(k, "k", noun, request_limits.MAX_RESULTS)
    if scope not in _SCOPES:
        errors.append(
            FieldError("scope", f"There is no scope {scope[:40]!r}.", f"Use {' or '.join(_SCOPES)}.")
        )
    return errors


def load_stored_vector(snapshot: SearchSnapshot, video_id: str) -> tuple[int, str, Vectors]:
    """Look up a video's vector ID, the key of its shard and its stored vector.

    Raises NotFound, TaskNotLoaded, Conflict if it has no vector, or Unavailable if its shard cannot be searched.
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
    parts = [key for key in snapshot.shards if key != task and task_of(key) == task]
    task = next((key for key in parts if vector_id in snapshot.shards[key].ids), task)
    snapshot.require_searchable(task)
    if task not in snapshot.shards:
        raise TaskNotLoaded(video_id, task)
    try:
        vector = snapshot.shards[task].vectors(np.array([vector_id]))[0]
    except ShardMissing:
        if broken := [key for key in list(snapshot.degraded) if task_of(key) == task]:
            raise snapshot.unavailable_error(broken[0]) from None
        raise Conflict(
            f"Video {video_id!r} has no vector: it was not available when its task was indexed."
        ) from None
    except ShardStoreError as error:
        snapshot.mark_degraded(task, error)
        raise snapshot.unavailable_error(task) from error
    return vector_id, task, vector


# -- captions ---------------------------------------------------------------------------------------------------


def caption_video(
    snapshot: SearchSnapshot, index: CaptionIndex, video_id: str, k: int, scope: str
) -> CaptionsResponse:
    """Find the k library captions nearest to a video, in the video's own task, or with scope ``all`` in all tasks.

    Raises InvalidInput, or as :func:`load_stored_vector`.
    """
    if errors := _find_errors(k, scope, "captions"):
        raise InvalidInput.of(errors)
    _, task, vector = load_stored_vector(snapshot, video_id)
    with session_scope() as session:
        own_captions = session.scalar(select(Video.captions).where(Video.id == video_id)) or []
    searchable = [source for source in snapshot.shards if source not in snapshot.degraded]
    sources = searchable if scope == "all" else [s for s in searchable if task_of(s) == task_of(task)]
    captions, candidates = index.find_nearest(snapshot, vector, task, sources, k=k, own_captions=own_captions)
    return CaptionsResponse(
        video_id=video_id,
        task=snapshot.task_names[task],
        task_id=task_of(task),
        release=snapshot.release_id,
        generation=snapshot.generation,
        mode=snapshot.served_mode,
        captions=captions,
        candidates=candidates,
        degraded=snapshot.degraded_by_name if scope == "all" else {},
    )


@dataclass(frozen=True)
class _EncodedCaptions:
    """Distinct captions of one task, encoded as queries for another."""

    texts: tuple[str, ...]
    videos: tuple[int, ...]  # vector ID of the first video with each caption; the IDs are never reused
    vectors: npt.NDArray[np.float16]  # float16 [n, dim]


class _RankedCaption(NamedTuple):
    score: float
    text: str
    task: str
    video: int


class CaptionIndex(SingleFlightCache[tuple[str, str, str, str], _EncodedCaptions]):
    """Encoded captions by encoder anchor or release, target task, source task, and query mode. Thread-safe."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        super().__init__(max_bytes, lambda captions: captions.vectors.nbytes)

    def find_nearest(
        self,
        snapshot: SearchSnapshot,
        vector: Vectors,
        task: str,
        sources: Sequence[str],
        k: int,
        own_captions: Collection[str] = (),
    ) -> tuple[list[CaptionMatch], int]:
        """Find the distinct captions nearest to a video's vector; also return how many were compared.

        Args:
            vector: Unit vector ``float32 [dim]`` of the video, in the space of ``task``.
            sources: IDs of the tasks that the captions come from.
            own_captions: The video's own captions, to be marked in the result.
        """
        edits, mode = read_caption_edits(), snapshot.served_mode
        # The parameters that encode texts for a pinned shard never change, and neither do the vectors.
        anchor = snapshot.lineages[task].query_cache.encoding_identity(task, mode) or snapshot.release_id

        def load(source: str, *, is_outdated: bool = False) -> _EncodedCaptions:
            return self.get(
                (anchor, task, source, mode),
                f"{snapshot.shards[source].state}+{edits.get(task_of(source), 0)}",
                lambda previous: _encode_captions(snapshot, task, source, mode, previous),
                is_outdated=is_outdated,
            )

        captions = {source: load(source) for source in sources}
        while True:
            ranked = _rank(captions, vector, k)
            with session_scope() as session:
                of_ranked = Video.vector_id.in_({caption.video for caption in ranked})
                rows = session.execute(select(Video.vector_id, Video.id).where(of_ranked))
                video_ids = {vector_id: video_id for vector_id, video_id in rows}
            outdated = {caption.task for caption in ranked if caption.video not in video_ids}
            if not outdated:
                break
            # If a video was deleted after its shard was loaded, its captions must not show.
            captions |= {source: load(source, is_outdated=True) for source in outdated}
        views = [
            CaptionMatch(
                text=caption.text,
                score=caption.score,
                own=caption.text in own_captions,
                video_id=video_ids[caption.video],
                task=snapshot.task_names[caption.task],
                task_id=task_of(caption.task),
            )
            for caption in ranked
        ]
        return views, sum(len(encoded.texts) for encoded in captions.values())


def _rank(captions: Mapping[str, _EncodedCaptions], vector: Vectors, k: int) -> list[_RankedCaption]:
    """Rank captions across tasks and keep the k best; a caption in several tasks gets its highest score."""
    best: dict[str, _RankedCaption] = {}
    for source, encoded in captions.items():
        scores = encoded.vectors.astype(np.float32) @ vector
        for row in np.argsort(-scores, kind="stable")[:k]:
            caption = _RankedCaption(float(scores[row]), encoded.texts[row], source, encoded.videos[row])
            if caption.text not in best or caption.score > best[caption.text].score:
                best[caption.text] = caption
    return sorted(best.values(), key=lambda caption: -caption.score)[:k]


def _encode_captions(
    snapshot: SearchSnapshot, task: str, source: str, mode: QueryMode, previous: _EncodedCaptions | None
) -> _EncodedCaptions:
    """Encode a task's current captions, reusing vectors that the previous version has."""
    videos = _read_captions(source, snapshot.shards[source])
    vectors = dict(zip(previous.texts, previous.vectors, strict=True)) if previous else {}
    new = [text for text in videos if text not in vectors]
    for start in range(0, len(new), _ENCODING_BATCH):
        batch = new[start : start + _ENCODING_BATCH]
        encoded = snapshot.lineages[task].query_cache.encode_uncached(batch, mode, task)
        vectors |= zip(batch, encoded.astype(np.float16), strict=True)
    stacked = np.empty((len(videos), snapshot.shards[task].dim), np.float16)
    for row, text in enumerate(videos):
        stacked[row] = vectors[text]
    return _EncodedCaptions(tuple(videos), tuple(videos.values()), stacked)


def _read_captions(task: str, shard: SearchableShard) -> dict[str, int]:
    """Read the distinct captions of a shard's first videos, each with the vector ID of the first video that has it."""
    videos: dict[str, int] = {}
    stored = shard.ids
    with session_scope() as session:
        # Appends are included: the manifest is replaced before the catalog assigns their videos to the domain.
        rows = session.execute(
            select(Video.vector_id, Video.captions)
            .where(in_domain(task), Video.status == "accepted")
            .order_by(Video.vector_id)
        )
        for vector_id, captions in rows:
            row = np.searchsorted(stored, vector_id)
            if row == len(stored) or stored[row] != vector_id:
                continue
            for text in captions:
                videos.setdefault(text, vector_id)
            if len(videos) >= _MAX_TEXTS:
                break
    return dict(list(videos.items())[:_MAX_TEXTS])
