"""From a video to words: the texts of the library that fit it best.

Nothing is written anew: the texts are captions that videos of the library came with, encoded as queries are, under the
task of the video that is described, and compared with its vector. They are encoded when a task is first asked for, and
kept in memory up to a bound, so the first time takes longer. A text goes with the last video that it was given to, for
what is shown is held against the catalog. No file of a video is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import InvalidInput
from service.core.schemas import CaptionMatch, CaptionsResponse
from service.core.settings import QueryMode, Settings
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.video_search.similar_search import stored, wrong

__all__ = ["CaptionSearch", "captions_of"]

Vectors = npt.NDArray[np.float32]

_TEXTS = 4096  # of a task, those of its first videos: encoding them is what takes time
_CHUNK = 256  # encoded at a time
_REMEMBERED = 256 * 1024**2  # bytes of vectors


@dataclass(frozen=True)
class _Texts:
    """Different texts of a task, each with the first video that it was given to; and their vectors under a task.

    Attributes:
        state: of the task's shard when the catalog was read.
        videos: vector ids, which are never given anew.
        vectors: ``float16 [n, dim]``.
    """

    state: str
    texts: tuple[str, ...]
    videos: tuple[int, ...]
    vectors: npt.NDArray[np.float16]


class _Near(NamedTuple):
    score: float
    text: str
    task: str
    video: int


class CaptionSearch:
    """Holds encoded captions. Safe to be shared by threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, str, str, str], _Texts] = OrderedDict()

    def describe(
        self,
        serving: SearchSnapshot,
        vector: Vectors,
        under: str,
        sources: Sequence[str],
        count: int,
        mode: QueryMode,
        own: Collection[str] = (),
    ) -> tuple[list[CaptionMatch], int]:
        """The texts whose vectors are nearest to a video's, each once; and how many there were.

        Args:
            vector: ``[dim]`` of the video, unit length, in the space of a task.
            under: id of that task.
            sources: ids of the tasks whose texts are compared.
            mode: query mode.
            own: texts that were given to the video.
        """
        texts = {source: self._texts(serving, under, source, mode) for source in sources}
        while True:
            best = _nearest(texts, vector, count)
            names = _names(near.video for near in best)
            outdated = {near.task for near in best if near.video not in names}
            if not outdated:
                break
            # A video was deleted, and the shard does not say so yet: what is remembered of it is never shown.
            texts |= {source: self._texts(serving, under, source, mode, anew=True) for source in outdated}
        captions = [
            CaptionMatch(
                text=near.text,
                score=near.score,
                own=near.text in own,
                video_id=names[near.video],
                task=serving.names[near.task],
                task_id=near.task,
            )
            for near in best
        ]
        return captions, sum(len(found.texts) for found in texts.values())

    def _texts(
        self, serving: SearchSnapshot, under: str, source: str, mode: str, *, anew: bool = False
    ) -> _Texts:
        """Those of a task; read from the catalog again where its shard has changed, or where that is asked for."""
        # Whatever encodes texts for a pinned shard never changes, so neither do their vectors.
        key = serving.encoder.encoding_identity(under, mode) or serving.release, under, source, mode
        with self._lock:
            known = self._known.get(key)
            if known is None or anew or known.state != serving.shards[source].state:
                self._known[key] = _encoded(serving, under, source, mode, known)
            self._known.move_to_end(key)
            while len(self._known) > 1 and sum(t.vectors.nbytes for t in self._known.values()) > _REMEMBERED:
                self._known.popitem(last=False)
            return self._known[key]


def captions_of(
    serving: SearchSnapshot, limits: Settings, describer: CaptionSearch, video_id: str, k: int, scope: str
) -> CaptionsResponse:
    """The k texts that fit a video best.

    Args:
        scope: ``task``: captions of its own task; ``all``: of every task that can be searched.

    Raises:
        InvalidInput: names the field.
        NotFound: there is no such video.
        Conflict: it has no vector.
        Unavailable: the shard of its task is broken.
    """
    if errors := wrong(limits, k, scope, "texts"):
        raise InvalidInput.of(errors)
    _, task, vector = stored(serving, video_id)
    with session_scope() as session:
        own = session.scalar(select(Video.captions).where(Video.id == video_id)) or []
    mode = limits.served_mode(serving.modes)
    sources = [task] if scope == "task" else [name for name in serving.shards if name not in serving.degraded]
    captions, compared = describer.describe(serving, vector, task, sources, k, mode, own)
    return CaptionsResponse(
        video_id=video_id,
        task=serving.names[task],
        task_id=task,
        release=serving.release,
        generation=serving.snapshot.generation,
        mode=mode,
        captions=captions,
        candidates=compared,
        degraded=serving.named_degraded if scope == "all" else {},
    )


def _nearest(texts: Mapping[str, _Texts], vector: Vectors, count: int) -> list[_Near]:
    """Of all tasks, best first; a text that several have counts where it is nearest."""
    best: dict[str, _Near] = {}
    for source, found in texts.items():
        scores = found.vectors.astype(np.float32) @ vector
        for row in np.argsort(-scores, kind="stable")[:count]:
            near = _Near(float(scores[row]), found.texts[row], source, found.videos[row])
            if near.text not in best or near.score > best[near.text].score:
                best[near.text] = near
    return sorted(best.values(), key=lambda near: -near.score)[:count]


def _names(vector_ids: Iterable[int]) -> dict[int, str]:
    """Vector id → id of those videos that are in the catalog."""
    with session_scope() as session:
        rows = session.execute(select(Video.vector_id, Video.id).where(Video.vector_id.in_(set(vector_ids))))
        return {vector_id: video for vector_id, video in rows}


def _encoded(serving: SearchSnapshot, under: str, source: str, mode: str, known: _Texts | None) -> _Texts:
    """Texts of a task as the catalog has them now; only those are encoded that were not known."""
    videos: dict[str, int] = {}
    with session_scope() as session:
        rows = session.execute(
            select(Video.vector_id, Video.captions)
            .where(Video.task_id == source, Video.status == "accepted")
            .order_by(Video.vector_id)
        )
        for video, captions in rows:
            for text in captions:
                videos.setdefault(text, video)
            if len(videos) >= _TEXTS:
                break
    texts = tuple(videos)[:_TEXTS]
    kept = dict(zip(known.texts, known.vectors, strict=True)) if known else {}
    new = [text for text in texts if text not in kept]
    for start in range(0, len(new), _CHUNK):
        chunk = new[start : start + _CHUNK]
        kept |= zip(chunk, serving.encoder.fresh(chunk, mode, under).astype(np.float16), strict=True)
    vectors = np.empty((len(texts), serving.shards[under].dim), np.float16)
    for row, text in enumerate(texts):
        vectors[row] = kept[text]
    return _Texts(serving.shards[source].state, texts, tuple(videos[text] for text in texts), vectors)
