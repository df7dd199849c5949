"""From a video to words: the texts of the library that fit it best.

Nothing is written anew: the texts are captions that videos of the library came with, encoded as queries are, under the
task of the video that is described, and compared with its vector. They are encoded when a task is first asked for, and
kept in memory up to a bound, so the first time takes longer. No file of a video is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from index import ShardMissing
from service.catalog.database import session_scope
from service.catalog.models import Video
from service.errors import Conflict, FieldError, InvalidInput
from service.serving import Serving
from service.settings import QueryMode, Settings
from service.similar import place
from service.views import CaptionsResponse, CaptionView

__all__ = ["Describer", "captions_of"]

Vectors = npt.NDArray[np.float32]

_TEXTS = 4096  # of a task, those of its first videos: encoding them is what takes time
_CHUNK = 256  # encoded at a time
_REMEMBERED = 256 * 1024**2  # bytes of vectors
_SCOPES = ("task", "all")


@dataclass(frozen=True)
class _Texts:
    """Different texts of a task, each with the first video that it was given to; and their vectors under a task.

    Attributes:
        vectors: ``float16 [n, dim]``.
    """

    texts: tuple[str, ...]
    videos: tuple[str, ...]
    vectors: npt.NDArray[np.float16]


class Describer:
    """Holds encoded captions. Safe to be shared by threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, str, str, str], _Texts] = OrderedDict()

    def describe(
        self,
        serving: Serving,
        vector: Vectors,
        under: str,
        sources: Sequence[str],
        count: int,
        mode: QueryMode,
        own: Collection[str] = (),
    ) -> tuple[list[CaptionView], int]:
        """The texts whose vectors are nearest to a video's, each once; and how many there were.

        Args:
            vector: ``[dim]`` of the video, unit length, in the space of a task.
            under: id of that task.
            sources: ids of the tasks whose texts are compared.
            mode: query mode.
            own: texts that were given to the video.
        """
        best: dict[str, CaptionView] = {}
        compared = 0
        for source in sources:
            found = self._texts(serving, under, source, mode)
            compared += len(found.texts)
            scores = found.vectors.astype(np.float32) @ vector
            for row in np.argsort(-scores, kind="stable")[:count]:
                text, score = found.texts[row], float(scores[row])
                if text not in best or score > best[text].score:
                    best[text] = CaptionView(
                        text=text,
                        score=score,
                        own=text in own,
                        video_id=found.videos[row],
                        task=serving.names[source],
                        task_id=source,
                    )
        ranked = sorted(best.values(), key=lambda caption: -caption.score)
        return ranked[:count], compared

    def _texts(self, serving: Serving, under: str, source: str, mode: str) -> _Texts:
        # Whatever encodes texts for a pinned shard never changes, so neither do their vectors.
        anchor = serving.encoder.anchor(under, mode) or serving.release
        # Texts of videos that were deleted go with them.
        gone = serving.snapshot.manifest.tombstones.get(source)
        shard = "+".join([part.id for part in serving.shards[source].parts] + ([gone.id] if gone else []))
        key = anchor, under, shard, mode
        with self._lock:
            if key not in self._known:
                self._known[key] = _encoded(serving, under, source, mode)
            self._known.move_to_end(key)
            while len(self._known) > 1 and sum(t.vectors.nbytes for t in self._known.values()) > _REMEMBERED:
                self._known.popitem(last=False)
            return self._known[key]


def captions_of(
    serving: Serving, limits: Settings, describer: Describer, video_id: str, k: int, scope: str
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
    _check(limits, k, scope)
    vector_id, task = place(serving, video_id)
    try:
        vector = serving.shards[task].vectors(np.array([vector_id]))[0]
    except ShardMissing:
        raise Conflict(
            f"Video {video_id!r} has no vector: it was not there when its task was laid down."
        ) from None
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


def _check(limits: Settings, k: int, scope: str) -> None:
    errors = []
    if not 1 <= k <= limits.max_results:
        said = f"{k} texts" if abs(k) < 10**9 else "So many texts"
        errors.append(FieldError("k", f"{said} cannot be given.", f"Ask for 1 to {limits.max_results}."))
    if scope not in _SCOPES:
        errors.append(
            FieldError("scope", f"There is no scope {scope[:40]!r}.", f"Use {' or '.join(_SCOPES)}.")
        )
    if errors:
        raise InvalidInput.of(errors)


def _encoded(serving: Serving, under: str, source: str, mode: str) -> _Texts:
    videos: dict[str, str] = {}
    with session_scope() as session:
        rows = session.execute(
            select(Video.id, Video.captions)
            .where(Video.task_id == source, Video.status == "accepted")
            .order_by(Video.vector_id)
        )
        for video, captions in rows:
            for text in captions:
                videos.setdefault(text, video)
            if len(videos) >= _TEXTS:
                break
    texts = tuple(videos)[:_TEXTS]
    chunks = [texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK)]
    encoded = [serving.encoder.fresh(chunk, mode, under).astype(np.float16) for chunk in chunks]
    vectors = (
        np.concatenate(encoded) if encoded else np.empty((0, serving.shards[under].entry.dim), np.float16)
    )
    return _Texts(texts, tuple(videos[text] for text in texts), vectors)
