"""Search by an uploaded clip or picture. Nothing of the upload is kept.

The upload is untrusted: it is copied to a temporary folder under a fixed name, decoded in a child process like the
videos of a task, and always removed.

Every shard was embedded by its own release's video encoder; no single encoder covers them all. So the clip is decoded
once per backbone and embedded once per distinct encoder, and each shard is searched with its own vector. Routing needs
text and is not used. Cosines from two shards are not comparable, because some shards hold videos that all look alike.
They are rescaled so that 0 is the shard's mean cosine between two videos and 1 stays 1.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, BinaryIO
from weakref import WeakKeyDictionary

import numpy as np

from cinestrata_schemas.search import CaptionMatch, ClipSearchResponse, ClipTiming, SearchQuery, SearchResult
from index.arrays import Frames, Hits, Vectors, is_moment
from index.errors import ShardStoreError
from media import (
    DecoderUnavailable,
    MediaError,
    VideoDecoder,
    VideoInfo,
    VideoLimits,
    frame_cache_path,
    load_frames,
)
from models.backbones.backbone_description import FrameSpec
from models.errors import ModelError
from service.core import request_limits
from service.core.errors import InvalidInput, TooLarge, TooManyRequests, Unavailable
from service.core.settings import Settings
from service.search.catalog_read_cache import CatalogReadCache
from service.search.search_request import SearchRequest, find_count_errors, parse_requests
from service.search.snapshots.query_vector_cache import DEGRADED_RETRY_SECONDS
from service.search.snapshots.search_snapshot import (
    SearchSnapshot,
    ServedLineage,
    ShardScan,
    drop_moments,
)
from service.search.snapshots.snapshot_loading import pinned_video_releases
from service.search.text_search.answers import build_nearest
from service.search.text_search.executor import resolve_tasks
from service.search.video_filters import find_passing_videos
from service.search.video_search import CaptionIndex

if TYPE_CHECKING:
    from models.backbones.backbone import Backbone
    from models.encoders.query_encoder import QueryEncoder
    from models.encoders.video_encoder import VideoEncoder

MAX_CONCURRENT_CLIPS = 4  # each occupies a thread that could run text searches
_SAMPLED_VECTORS = 512  # per shard, for its mean cosine
_BUSY_RETRY_SECONDS = 2
_CLIP_NAME = "the clip"  # in decoder errors
_MIN_SPREAD = 1e-3  # lower bound on 1 - mean cosine, for shards of near-identical videos


class ClipSearch:
    """Searches by uploaded clips, one decoded at a time; ``slots`` limits those that wait. Thread-safe."""

    def __init__(self, settings: Settings, cache: CatalogReadCache, caption_index: CaptionIndex) -> None:
        self.slots = BoundedSemaphore(MAX_CONCURRENT_CLIPS)
        self._settings = settings
        self._cache = cache
        self._caption_index = caption_index
        self._decoder = VideoDecoder(
            VideoLimits(
                max_bytes=request_limits.MAX_CLIP_BYTES, timeout_seconds=request_limits.MAX_CLIP_SECONDS
            )
        )
        self._decoding = Lock()
        # By query encoder: the two share towers, and leave the memory together.
        self._encoders: tuple[SearchSnapshot, WeakKeyDictionary[QueryEncoder, VideoEncoder]] | None = None
        self._mean_cosines: dict[str, tuple[str, float]] = {}  # shard state and mean cosine by task ID

    def close(self) -> None:
        """Stop the decoder process."""
        with self._decoding:
            self._decoder.close()

    def search(
        self, snapshot: SearchSnapshot, upload: BinaryIO, query: SearchQuery, captions: int | None
    ) -> ClipSearchResponse:
        """Find the videos most similar to a clip.

        Args:
            upload: Video or picture; read to its end.
            query: Search parameters other than the text: ``k``, ``task``, filters and ``min_score``.
            captions: Number of captions to return for the clip; None: none.

        Raises InvalidInput, for the file of field ``clip``; TooLarge; TooManyRequests if too many clips are waiting; or
        Unavailable if a requested task cannot be searched, or no task can, or the clip cannot be decoded.
        """
        (request,) = parse_requests([query], self._settings)
        most = request_limits.MAX_RESULTS
        if captions is not None and (errors := find_count_errors(captions, "captions", "captions", most)):
            raise InvalidInput.of(errors)
        tasks = resolve_tasks(snapshot, request, self._cache)
        start = time.perf_counter()
        if not self.slots.acquire(blocking=False):
            raise TooManyRequests(
                "Other clip searches are running; try again in a moment.", _BUSY_RETRY_SECONDS
            )
        try:
            decode_ms = encode_ms = 0.0
            decoded: dict[FrameSpec, tuple[VideoInfo, Frames]] = {}
            vectors: dict[str, Vectors] = {}
            broken: dict[str, str] = {}
            for lineage in snapshot.lineages_of(tasks):
                of_lineage = [task for task in tasks if snapshot.lineages[task] is lineage]
                try:
                    query_encoder = lineage.query_cache.encoder
                    towers = query_encoder.backbone.towers()  # the first clip loads them
                except (ModelError, Unavailable) as error:
                    broken |= {snapshot.task_names[task]: str(error) for task in of_lineage}
                    continue
                started = time.perf_counter()
                if towers.spec not in decoded:
                    decoded[towers.spec] = self.decode(upload, towers.spec)
                info, frames = decoded[towers.spec]
                ended = time.perf_counter()
                of_tasks, unread = self._embed(
                    snapshot, lineage, query_encoder, towers, frames=frames, tasks=of_lineage
                )
                del query_encoder, towers  # they may leave the memory for the next lineage's
                vectors |= of_tasks
                broken |= unread
                decode_ms += 1000 * (ended - started)
                encode_ms += 1000 * (time.perf_counter() - ended)
            if not vectors:
                raise Unavailable(
                    f"No domain can be searched by clip: {'; '.join(broken.values()) or 'there is none'}",
                    DEGRADED_RETRY_SECONDS,
                )
            vectors = {task: vectors[task] for task in tasks if task in vectors}
        finally:
            self.slots.release()
        embedded = time.perf_counter()
        results, best_task = self._find(snapshot, request, vectors)
        caption_views: list[CaptionMatch] | None = None
        if captions is not None:
            caption_views, _ = self._caption_index.find_nearest(
                snapshot, vectors[best_task], best_task, [best_task], captions
            )
        end = time.perf_counter()
        is_picture = info.container.endswith("_pipe")
        return ClipSearchResponse(
            kind="picture" if is_picture else "video",
            width=info.width,
            height=info.height,
            duration=None if is_picture else info.duration,
            release=snapshot.release_id,
            generation=snapshot.generation,
            results=results,
            searched=list(dict.fromkeys(snapshot.task_names[task] for task in vectors)),
            captions=caption_views,
            timing_ms=ClipTiming(
                decode=decode_ms,
                encode=encode_ms,
                search=1000 * (end - embedded),
                total=1000 * (end - start),
            ),
            degraded={**snapshot.degraded_by_name, **broken},
        )

    def decode(self, upload: BinaryIO, spec: FrameSpec) -> tuple[VideoInfo, Frames]:
        """Decode an upload: probe its media properties and sample frames ``uint8 [1, M, H, W, 3]``.

        Raises InvalidInput, TooLarge or Unavailable as :meth:`search`.
        """
        count, size = spec
        limit = request_limits.MAX_CLIP_BYTES
        if upload.seek(0, os.SEEK_END) > limit:
            raise TooLarge(
                f"clip: The file is larger than {limit} bytes. Shorten it, or reduce its resolution."
            )
        upload.seek(0)
        try:
            with self._decoding, TemporaryDirectory(prefix="cinestrata-clip-") as name:
                folder = Path(name)
                path = folder / "clip"
                with path.open("wb") as file:
                    shutil.copyfileobj(upload, file)
                info = self._decoder.decode(
                    path, frames=count, size=size, name=_CLIP_NAME, cache=folder, pictures=True
                )
                frames = load_frames(frame_cache_path(folder, count, size, info.content_hash))
        except MediaError as error:
            raise InvalidInput.at("clip", f"{error.reason[:1].upper()}{error.reason[1:]}.") from None
        except DecoderUnavailable as error:
            raise Unavailable(f"Clips can't be decoded: {error}.", DEGRADED_RETRY_SECONDS) from None
        except OSError as error:
            raise Unavailable(
                f"The clip can't be stored for decoding ({error.strerror}).", DEGRADED_RETRY_SECONDS
            ) from None
        return info, frames[None]

    def _embed(
        self,
        snapshot: SearchSnapshot,
        lineage: ServedLineage,
        query_encoder: QueryEncoder,
        backbone: Backbone,
        *,
        frames: Frames,
        tasks: Sequence[str],
    ) -> tuple[dict[str, Vectors], dict[str, str]]:
        """Embed a clip for each task of a lineage; also say by task name which encoders cannot be read, and why."""
        # Imported here: no other search needs torch.
        import torch

        from models.encoders.video_encoder import VideoEncoder

        cached = self._encoders  # read once: a concurrent clip may replace it
        if cached is None or cached[0] is not snapshot:
            cached = self._encoders = snapshot, WeakKeyDictionary()
        if (encoder := cached[1].get(query_encoder)) is None:
            of_lineage = [task for task in snapshot.shards if snapshot.lineages[task] is lineage]
            fingerprints = {task: snapshot.shards[task].entry.fingerprint for task in of_lineage}
            releases = pinned_video_releases(snapshot.index_snapshot, fingerprints)
            encoder = cached[1][query_encoder] = VideoEncoder(backbone, fingerprints, releases)
        tasks_by_fingerprint: dict[str, list[str]] = {}
        for task in tasks:
            tasks_by_fingerprint.setdefault(snapshot.shards[task].entry.fingerprint, []).append(task)
        vectors: dict[str, Vectors] = {}
        broken: dict[str, str] = {}
        for group in tasks_by_fingerprint.values():
            try:
                vector = encoder.encode(torch.from_numpy(frames), group[:1])[0, 0]
            except (ModelError, ShardStoreError, OSError) as error:
                broken |= {
                    snapshot.task_names[task]: f"its video encoder cannot be read: {error}" for task in group
                }
                continue
            vectors |= dict.fromkeys(group, vector)
        return vectors, broken

    def _find(
        self, snapshot: SearchSnapshot, request: SearchRequest, vectors: Mapping[str, Vectors]
    ) -> tuple[list[SearchResult], str]:
        """Search the shards; return the results and the best one's task, or the first searched task without results."""
        passing = find_passing_videos(
            request.filter, snapshot, list(vectors), self._cache, request.field_prefix
        )
        k = request.query.k
        scans = [
            ShardScan(task, vector, k, among=passing[task], group=drop_moments)
            for task, vector in vectors.items()
            if task in passing
        ]
        hits: dict[str, Hits] = {}
        for scan, task_hits in zip(scans, snapshot.scan(scans), strict=True):
            if len(task_hits.ids):  # an unreadable shard has no hits
                mean = self._mean_cosine(snapshot, scan.task)
                scores = (task_hits.scores - mean) / max(1 - mean, _MIN_SPREAD)
                hits[scan.task] = Hits(task_hits.ids, scores.astype(np.float32))
        results = build_nearest(hits, k, request.query.min_score, snapshot)
        best = max(hits, key=lambda task: hits[task].scores[0], default="")
        return results, best if results else next(iter(vectors))

    def _mean_cosine(self, snapshot: SearchSnapshot, task: str) -> float:
        """Estimate the mean cosine between two videos of a shard from a sample; 0 for a single video."""
        shard = snapshot.shards[task]
        state, mean = self._mean_cosines.get(task, ("", 0.0))
        if state != shard.state:
            ids = shard.ids
            ids = ids[~is_moment(ids)]
            rows = np.linspace(0, len(ids) - 1, min(len(ids), _SAMPLED_VECTORS)).astype(np.int64)
            vectors = shard.vectors(ids[rows])
            count, total = len(vectors), vectors.sum(axis=0, dtype=np.float64)
            of_same_video = float(np.einsum("nd,nd->", vectors, vectors, dtype=np.float64))
            mean = (float(total @ total) - of_same_video) / (count * (count - 1)) if count > 1 else 0.0
            self._mean_cosines[task] = shard.state, mean
        return mean
