"""Caption a video with captions that the library already has.

No text is generated. The library's captions are encoded as queries for the video's task and compared with its vector.
A task's captions are encoded on first use and cached up to a memory limit, so the first request takes longer. A
caption that several videos share is attributed to the first. Results are checked against the catalog. No video file
is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from cinestrata_schemas.choice_types import QueryMode
from cinestrata_schemas.search import CaptionMatch, CaptionsResponse
from index.arrays import Vectors
from index.shards.searchable_shard import SearchableShard
from service.catalog.database import session_scope
from service.catalog.domain_videos import in_domain, read_caption_edits
from service.catalog.tables import Video
from service.core.errors import InvalidInput
from service.search.similar_search import find_scope_errors, load_stored_vector
from service.search.single_flight_cache import SingleFlightCache
from service.search.snapshots.search_snapshot import SearchSnapshot

_MAX_TEXTS = 4096  # per task, from its first videos; encoding them takes most of the time
_ENCODING_BATCH = 256  # texts
_MAX_BYTES = 256 * 1024**2  # of cached vectors


@dataclass(frozen=True)
class _EncodedCaptions:
    """Distinct captions of one task, encoded as queries for another.

    Attributes:
        videos: Vector ID of the first video with each caption. Vector IDs are never reused.
        vectors: ``float16 [n, dim]``.
    """

    texts: tuple[str, ...]
    videos: tuple[int, ...]
    vectors: npt.NDArray[np.float16]


class _RankedCaption(NamedTuple):
    score: float
    text: str
    task: str
    video: int


class CaptionIndex:
    """Caches encoded captions. Thread-safe.

    A task's captions are read and encoded once, however many requests need them at the same time. Requests for other
    tasks don't wait for them.

    Args:
        max_bytes: Maximum memory of cached vectors.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        # By encoder anchor or release, target task, source task, and query mode.
        self._captions: SingleFlightCache[tuple[str, str, str, str], _EncodedCaptions] = SingleFlightCache(
            max_bytes, lambda captions: captions.vectors.nbytes
        )

    def __len__(self) -> int:
        return len(self._captions)

    def clear(self) -> None:
        """Remove all cached captions."""
        self._captions.clear()

    def find_nearest(
        self,
        snapshot: SearchSnapshot,
        vector: Vectors,
        task: str,
        sources: Sequence[str],
        k: int,
        mode: QueryMode,
        own_captions: Collection[str] = (),
    ) -> tuple[list[CaptionMatch], int]:
        """Find the distinct captions nearest to a video's vector.

        Args:
            vector: Unit vector ``float32 [dim]`` of the video, in the space of ``task``.
            task: ID of the task that the captions are encoded for.
            sources: IDs of the tasks that the captions come from.
            own_captions: The video's own captions, to be marked in the result.

        Returns:
            The captions, best first, and how many were compared.
        """
        edits = read_caption_edits()
        captions = {source: self._load(snapshot, task, source, mode=mode, edits=edits) for source in sources}
        while True:
            ranked = _rank(captions, vector, k)
            video_ids = _read_video_ids(caption.video for caption in ranked)
            outdated = {caption.task for caption in ranked if caption.video not in video_ids}
            if not outdated:
                break
            # If a video was deleted after its shard was loaded, its captions must not show.
            captions |= {
                source: self._load(snapshot, task, source, mode=mode, edits=edits, is_outdated=True)
                for source in outdated
            }
        views = [
            CaptionMatch(
                text=caption.text,
                score=caption.score,
                own=caption.text in own_captions,
                video_id=video_ids[caption.video],
                task=snapshot.task_names[caption.task],
                task_id=caption.task,
            )
            for caption in ranked
        ]
        return views, sum(len(encoded.texts) for encoded in captions.values())

    def _load(
        self,
        snapshot: SearchSnapshot,
        task: str,
        source: str,
        mode: str,
        edits: Mapping[str, int],
        *,
        is_outdated: bool = False,
    ) -> _EncodedCaptions:
        # The parameters that encode texts for a pinned shard never change, and neither do the vectors.
        anchor = snapshot.query_vectors.encoding_identity(task, mode) or snapshot.release_id
        return self._captions.get(
            (anchor, task, source, mode),
            f"{snapshot.shards[source].state}+{edits.get(source, 0)}",
            lambda previous: _encode_captions(snapshot, task, source, mode=mode, previous=previous),
            is_outdated=is_outdated,
        )


def caption_video(
    snapshot: SearchSnapshot, index: CaptionIndex, video_id: str, k: int, scope: str
) -> CaptionsResponse:
    """Find the k library captions nearest to a video.

    Args:
        index: Cache of encoded captions.
        scope: ``task`` compares captions from the video's own task; ``all``, those from every searchable task.

    Raises:
        InvalidInput: A parameter is invalid.
        NotFound: There is no such video.
        Conflict: The video has no vector.
        Unavailable: The task's shard cannot be searched.
    """
    if errors := find_scope_errors(k, scope, "captions"):
        raise InvalidInput.of(errors)
    _, task, vector = load_stored_vector(snapshot, video_id)
    with session_scope() as session:
        own_captions = session.scalar(select(Video.captions).where(Video.id == video_id)) or []
    mode = snapshot.served_mode
    searchable = [source for source in snapshot.shards if source not in snapshot.degraded]
    sources = [task] if scope == "task" else searchable
    captions, candidates = index.find_nearest(
        snapshot, vector, task, sources, k=k, mode=mode, own_captions=own_captions
    )
    return CaptionsResponse(
        video_id=video_id,
        task=snapshot.task_names[task],
        task_id=task,
        release=snapshot.release_id,
        generation=snapshot.generation,
        mode=mode,
        captions=captions,
        candidates=candidates,
        degraded=snapshot.degraded_by_name if scope == "all" else {},
    )


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


def _read_video_ids(vector_ids: Iterable[int]) -> dict[int, str]:
    """Map vector IDs to video IDs, leaving out videos that the catalog no longer has."""
    with session_scope() as session:
        rows = session.execute(select(Video.vector_id, Video.id).where(Video.vector_id.in_(set(vector_ids))))
        return {vector_id: video_id for vector_id, video_id in rows}


def _encode_captions(
    snapshot: SearchSnapshot, task: str, source: str, mode: str, previous: _EncodedCaptions | None
) -> _EncodedCaptions:
    """Encode a task's current captions, reusing vectors that the previous version has."""
    videos = _read_captions(source, snapshot.shards[source])
    texts = tuple(videos)
    vectors = dict(zip(previous.texts, previous.vectors, strict=True)) if previous else {}
    new = [text for text in texts if text not in vectors]
    for start in range(0, len(new), _ENCODING_BATCH):
        batch = new[start : start + _ENCODING_BATCH]
        encoded = snapshot.query_vectors.encode_uncached(batch, mode, task)
        vectors |= zip(batch, encoded.astype(np.float16), strict=True)
    stacked = np.empty((len(texts), snapshot.shards[task].dim), np.float16)
    for row, text in enumerate(texts):
        stacked[row] = vectors[text]
    return _EncodedCaptions(texts, tuple(videos.values()), stacked)


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
            place = np.searchsorted(stored, vector_id)
            if place == len(stored) or stored[place] != vector_id:
                continue
            for text in captions:
                videos.setdefault(text, vector_id)
            if len(videos) >= _MAX_TEXTS:
                break
    return dict(list(videos.items())[:_MAX_TEXTS])
