"""Moments: long videos are embedded in overlapping windows too, so that a hit says where in the video.

A moment is embedded by the encoder that embeds the whole video, from as many frames. It is no example to learn from,
and nothing is measured on it. Its frames are decoded when they are needed and then thrown away, some at a time: those
of a film would take a gigabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from index.vector_ids import moment_ids
from media import MediaError, VideoDecoder, VideoLimits, content_hash, sample_times

__all__ = ["LongVideo", "embed_moments", "group_segments"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_BATCH = 32  # moments at a time; fixed, so that a second run gives the same bits
_FRAMES = 512  # decoded at a time, unless one moment has more
_SEGMENT = 65_536  # vectors, after which a new segment is begun


@dataclass(frozen=True)
class LongVideo:
    """A video with moments.

    Attributes:
        id: as the user knows it.
        vector_id: its number in the shard.
        content_hash: of the file that was accepted.
        spans: start and end of each moment, in seconds, in order of time.
    """

    id: str
    vector_id: int
    content_hash: str
    spans: tuple[tuple[float, float], ...]


def embed_moments(
    encode: Callable[[Tensor], Tensor],
    videos: Sequence[LongVideo],
    frames: int,
    size: int,
    *,
    locate: Callable[[LongVideo], Path],
    scratch: Path,
    limits: VideoLimits,
    on_skip: Callable[[LongVideo, str], None],
    report: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[Ids, Vectors]]:
    """Ids and unit vectors ``[n, dim]`` of the moments of each video, one video after the other.

    A video whose moments cannot be had is left out: it is still found as a whole, and nothing that was learned is lost
    because a file went away meanwhile. What a video's moments come to does not depend on the others.

    Args:
        encode: ``uint8 [n, M, H, W, 3]`` to ``[n, dim]``.
        frames: M.
        size: H and W.
        locate: the file of a video; may raise MediaError or OSError.
        scratch: a file that is written, and removed in the end.
        on_skip: told a video and the reason.
        report: called with the number of moments that are done, of all videos.

    Raises:
        OSError: the scratch file cannot be written.
    """
    done = 0
    try:
        with VideoDecoder(limits) as examiner:
            for video in videos:
                vectors: list[Vectors] = []
                try:
                    path = _accepted(video, locate)
                    for part in _parts(video.spans, frames):
                        pictures = _frames(examiner, path, video.id, part, frames, size, scratch)
                        vectors.append(encode(pictures).float().cpu().numpy())
                        report(done + sum(map(len, vectors)))
                except MediaError as error:
                    on_skip(video, error.reason)
                else:
                    yield moment_ids(video.vector_id, len(video.spans)), np.concatenate(vectors)
                done += len(video.spans)
    finally:
        scratch.unlink(missing_ok=True)


def group_segments(
    found: Iterable[tuple[Ids, Vectors]], max_rows: int = _SEGMENT
) -> Iterator[tuple[Ids, Vectors]]:
    """Vectors of several videos put together, until there are ``max_rows`` or more: what is written as one segment."""
    waiting: list[tuple[Ids, Vectors]] = []
    for ids, vectors in found:
        waiting.append((ids, vectors))
        if sum(len(ids) for ids, _ in waiting) >= max_rows:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _accepted(video: LongVideo, locate: Callable[[LongVideo], Path]) -> Path:
    """The file of a video; raises MediaError where it is gone, or not the one that was accepted."""
    try:
        path = locate(video)
        same = content_hash(path) == video.content_hash
    except OSError as error:
        raise MediaError(f"the file cannot be read ({error.strerror or type(error).__name__})") from error
    if not same:
        raise MediaError("the file is not the one that was accepted")
    return path


def _joined(parts: Sequence[tuple[Ids, Vectors]]) -> tuple[Ids, Vectors]:
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([vectors for _, vectors in parts])


def _parts(spans: Sequence[tuple[float, float]], frames: int) -> Iterator[Sequence[tuple[float, float]]]:
    size = max(1, min(_BATCH, _FRAMES // frames))
    for start in range(0, len(spans), size):
        yield spans[start : start + size]


def _frames(
    examiner: VideoDecoder,
    path: Path,
    name: str,
    spans: Sequence[tuple[float, float]],
    frames: int,
    size: int,
    scratch: Path,
) -> Tensor:
    """``uint8 [len(spans), M, size, size, 3]``; what overlapping moments share is decoded once."""
    wanted = np.array([[start + t for t in sample_times(end - start, frames)] for start, end in spans])
    times, places = np.unique(wanted.round(6), return_inverse=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    examiner.sample(path, times=times.tolist(), size=size, into=scratch, name=name)
    return torch.from_numpy(np.load(scratch, mmap_mode="r")[places.reshape(wanted.shape)])
