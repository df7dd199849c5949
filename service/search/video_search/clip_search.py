"""Search by a clip or a picture that somebody uploads: no words, and nothing of it is kept.

The file is a stranger's. It is copied under a name of ours into a folder of its own, decoded there by the child process
that also decodes the videos of tasks, and the folder is removed, whatever came of it.

Every shard was embedded by the image side of its own release, and there is none for all of them. So a clip is embedded
once for every such encoder, and meets each shard with its own vector. Routing goes by words and has no say. Cosines of
two shards do not mean the same, for in some all videos are close together; each is therefore stretched: 0 is what two
videos of the shard have on average, 1 stays 1.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore, Lock
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from index.errors import ShardStoreError
from index.hits import Hits, merge_hits
from index.index_snapshot import IndexSnapshot
from index.shards.searchable_shard import SearchableShard
from index.vector_ids import is_moment
from media import (
    DecoderUnavailable,
    MediaError,
    VideoDecoder,
    VideoInfo,
    VideoLimits,
    frame_cache_path,
    load_frames,
)
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import read_video_release
from models.encoders.video_encoder import VideoEncoder
from models.errors import ModelError
from models.releases.release_state import ReleaseState
from service.core import request_limits
from service.core.errors import InvalidInput, TooLarge, TooManyRequests, Unavailable
from service.core.schemas import CaptionMatch, ClipSearchResponse, ClipTiming, SearchQuery, SearchResult
from service.core.settings import Settings
from service.search.requests.video_filters import allowed
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.snapshots.video_grouping import delete_moments
from service.search.text_search.executor import Search, candidates, check, described
from service.search.video_metadata_cache import VideoMetadataCache
from service.search.video_search.captioning import CaptionSearch

__all__ = ["ClipSearch"]

Vectors = npt.NDArray[np.float32]

_SAMPLE = 512  # vectors of a shard that tell how alike its videos are
_AT_ONCE = 4  # clips that are waited for: each holds a thread that could answer searches
_BUSY = "Other clips are being searched with; try again in a moment."
_RETRY_SECONDS = 2
_NAME = "the clip"
_ALIKE = 1e-3  # 1 − the mean cosine of a shard, at the least: videos that are all the same tell nothing


class ClipSearch:
    """Answers searches by clips; one per process. Safe to be shared by threads; one clip is decoded at a time."""

    def __init__(self, configured: Settings, facts: VideoMetadataCache, describer: CaptionSearch) -> None:
        self._settings = configured
        self._facts = facts
        self._describer = describer
        self._examiner = VideoDecoder(
            VideoLimits(
                max_bytes=request_limits.MAX_CLIP_BYTES, timeout_seconds=request_limits.MAX_CLIP_SECONDS
            )
        )
        self._decoding = Lock()
        self._at_once = BoundedSemaphore(_AT_ONCE)
        self._encoder: tuple[SearchSnapshot, VideoEncoder] | None = None
        self._typical: dict[str, tuple[str, float]] = {}  # by task: state of its shard, and mean cosine

    def close(self) -> None:
        """End the child process that decodes."""
        with self._decoding:
            self._examiner.close()

    def search(
        self,
        serving: SearchSnapshot,
        backbone: Backbone,
        upload: BinaryIO,
        query: SearchQuery,
        captions: int | None,
    ) -> ClipSearchResponse:
        """The videos most like a clip.

        Args:
            upload: a video or a picture; read to its end.
            query: what search knows beside the words: ``k``, ``task``, filters and ``min_score``.
            captions: how many texts to describe it with; None: none.

        Raises:
            InvalidInput: names the field; ``clip`` where the file cannot be used.
            TooLarge: the file is larger than is accepted.
            TooManyRequests: others are waiting already.
            Unavailable: a task that was asked for by name cannot be searched, or none can.
        """
        limits = self._settings
        (search,) = check([query], limits, batch=False)
        if captions is not None and not 1 <= captions <= limits.limits.max_results:
            raise InvalidInput.at(
                "captions", "So many texts cannot be given.", f"Ask for 1 to {limits.limits.max_results}."
            )
        tasks = candidates(serving, search)
        start = time.perf_counter()
        if not self._at_once.acquire(blocking=False):
            raise TooManyRequests(_BUSY, _RETRY_SECONDS)
        try:
            info, frames = self._decoded(upload, backbone)
            decoded = time.perf_counter()
            vectors, broken = self._embedded(serving, backbone, frames, tasks)
        finally:
            self._at_once.release()
        embedded = time.perf_counter()
        results, first = self._found(serving, search, vectors)
        texts: list[CaptionMatch] | None = None
        if captions is not None:
            texts = self._texts(serving, vectors, first, captions)
        end = time.perf_counter()
        picture = info.container.endswith("_pipe")
        return ClipSearchResponse(
            kind="picture" if picture else "video",
            width=info.width,
            height=info.height,
            duration=None if picture else info.duration,
            release=serving.release,
            generation=serving.snapshot.generation,
            results=results,
            searched=[serving.names[task] for task in vectors],
            captions=texts,
            timing_ms=ClipTiming(
                decode=1000 * (decoded - start),
                encode=1000 * (embedded - decoded),
                search=1000 * (end - embedded),
                total=1000 * (end - start),
            ),
            degraded={**serving.named_degraded, **broken},
        )

    def _decoded(self, upload: BinaryIO, backbone: Backbone) -> tuple[VideoInfo, Tensor]:
        """VideoMetadata of a file, and its frames ``uint8 [1, M, H, W, 3]``. What is written meanwhile is gone afterwards."""
        count, size = backbone.spec
        try:
            with self._decoding, TemporaryDirectory(prefix="cinestrata-clip-") as name:
                folder = Path(name)
                path = folder / "clip"
                with path.open("wb") as file:
                    shutil.copyfileobj(_Bounded(upload, request_limits.MAX_CLIP_BYTES), file)
                info = self._examiner.decode(
                    path, frames=count, size=size, name=_NAME, cache=folder, pictures=True
                )
                frames = load_frames(frame_cache_path(folder, count, size, info.content_hash))
        except MediaError as error:
            raise InvalidInput.at("clip", _sentence(error.reason)) from None
        except DecoderUnavailable as error:
            raise Unavailable(f"Clips cannot be decoded: {error}.", 30) from None
        except OSError as error:
            raise Unavailable(
                f"The clip cannot be stored while it is decoded ({error.strerror}).", 30
            ) from None
        return info, torch.from_numpy(frames).unsqueeze(0)

    def _embedded(
        self, serving: SearchSnapshot, backbone: Backbone, frames: Tensor, tasks: Sequence[str]
    ) -> tuple[dict[str, Vectors], dict[str, str]]:
        """By task its vector of the clip; and by name of the tasks that cannot be searched by a clip, why."""
        known = self._encoder  # read once: another clip may bring the encoder of another generation meanwhile
        if known is None or known[0] is not serving:
            fingerprints = {task: shard.entry.fingerprint for task, shard in serving.shards.items()}
            encoder = VideoEncoder(backbone, fingerprints, _Makers(serving.snapshot, tuple(fingerprints)))
            known = self._encoder = serving, encoder
        encoder = known[1]
        alike: dict[str, list[str]] = {}
        for task in tasks:
            alike.setdefault(serving.shards[task].entry.fingerprint, []).append(task)
        vectors: dict[str, Vectors] = {}
        broken: dict[str, str] = {}
        for group in alike.values():
            try:
                vector = encoder.encode(frames, group[:1])[0, 0]
            except (ModelError, ShardStoreError, OSError) as error:
                broken |= {
                    serving.names[task]: f"its video encoder cannot be read: {error}" for task in group
                }
                continue
            vectors |= dict.fromkeys(group, vector)
        if not vectors:
            raise Unavailable(
                f"No domain can be searched by a clip: {'; '.join(broken.values()) or 'there is none'}", 30
            )
        return {task: vectors[task] for task in tasks if task in vectors}, broken

    def _found(
        self, serving: SearchSnapshot, search: Search, vectors: Mapping[str, Vectors]
    ) -> tuple[list[SearchResult], str]:
        """Results, and the task that the best of them is of; without any, the first that was searched."""
        shards = {task: serving.shards[task] for task in vectors}
        among = allowed(
            search.filter, {task: shard.state for task, shard in shards.items()}, self._facts, search.at
        )
        scans = [
            ShardScan(task, vector, search.query.k, among[task], delete_moments)
            for task, vector in vectors.items()
            if task in among
        ]
        hits = {
            scan.task: _stretched(found, self._mean_cosine(scan.task, shards[scan.task]))
            for scan, found in zip(scans, serving.scan(scans), strict=True)
            if len(found.ids)  # and so the shard can be read
        }
        least = search.query.min_score
        merged = [hit for hit in merge_hits(hits, search.query.k) if least is None or hit.score >= least]
        return described([merged], serving)[0], merged[0].task if merged else next(iter(vectors))

    def _texts(
        self, serving: SearchSnapshot, vectors: Mapping[str, Vectors], task: str, count: int
    ) -> list[CaptionMatch]:
        mode = self._settings.served_mode(serving.modes)
        found, _ = self._describer.describe(serving, vectors[task], task, [task], count, mode)
        return found

    def _mean_cosine(self, task: str, shard: SearchableShard) -> float:
        """Of two videos of a task's shard, estimated from some of them; 0 where there is only one."""
        state, mean = self._typical.get(task, ("", 0.0))
        if state != shard.state:
            every = shard.ids
            ids = every[~is_moment(every)]
            chosen = ids[np.linspace(0, len(ids) - 1, min(len(ids), _SAMPLE)).astype(np.int64)]
            mean = mean_cosine(shard.vectors(chosen))
            self._typical[task] = shard.state, mean
        return mean


def mean_cosine(vectors: Vectors) -> float:
    """Mean over all pairs of two different unit vectors of ``[n, dim]``; 0 for a single one."""
    n = len(vectors)
    total = vectors.sum(axis=0, dtype=np.float64)
    squares = float(np.einsum("nd,nd->", vectors, vectors, dtype=np.float64))
    return (float(total @ total) - squares) / (n * (n - 1)) if n > 1 else 0.0


def _stretched(hits: Hits, mean: float) -> Hits:
    scores = (hits.scores - mean) / max(1 - mean, _ALIKE)
    return Hits(hits.ids, scores.astype(np.float32))


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."


class _Bounded:
    """A file that ends in an error where it is larger than is accepted."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file, self._left, self._limit = file, limit, limit

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        chunk = self._file.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise TooLarge(f"clip: The file is larger than {self._limit} bytes. Cut it, or scale it down.")
        return chunk


@dataclass(frozen=True)
class _Makers(Mapping[str, ReleaseState]):
    """For each task the image side of the release that made its shard, read when asked for and not kept."""

    snapshot: IndexSnapshot
    tasks: tuple[str, ...]

    def __getitem__(self, task: str) -> ReleaseState:
        release = self.snapshot.manifest.shards[task].release
        folder = self.snapshot.release_folder(release)
        return read_video_release(folder, profiles=False)

    def __contains__(self, task: object) -> bool:
        return task in self.tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)
