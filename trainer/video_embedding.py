"""Embed a task's videos, and the moments of its long videos, into the vectors of a shard.

Long videos are also embedded in overlapping windows, so that a result names a time span. The encoder embeds a moment
like a whole video, from as many frames. Moments are neither trained on nor evaluated. Their frames are decoded a few at
a time and then discarded, since those of a film would take a gigabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from index.arrays import Ids, Vectors, batches, moment_ids
from media import FrameSize, MediaError, VideoDecoder, VideoLimits, content_hash, sample_times
from trainer.task_data import Clip, read_ahead

_BATCH = 32  # fixed, so that repeated runs give the same bits


def embed_clips(
    encode: Callable[[Any], Tensor],
    clips: Sequence[Clip],
    *,
    read: Callable[[Sequence[Clip]], Any] | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Vectors:
    """Embed clips as unit vectors ``[n, dim]``, in their order; raise FramesMissing if the frames of a video are gone.

    The video encoder gets ``uint8 [n, M, H, W, 3]``, or what ``read`` returns for n clips, see
    :func:`~trainer.task_data.read_ahead`. After each batch, ``report`` gets the number of videos embedded so far.
    """
    parts: list[Vectors] = []
    for _, content in read_ahead(batches(clips, _BATCH), read):
        parts.append(encode(content).float().cpu().numpy())
        report(sum(map(len, parts)))
    return np.concatenate(parts)


class MemoryShard:
    """A shard in memory: IDs ``int64 [n]`` and vectors ``float32 [n, dim]``."""

    def __init__(self, ids: Ids, vectors: Vectors) -> None:
        self.ids = ids
        self._vectors = vectors
        self._rows = {int(video): row for row, video in enumerate(ids)}

    def vectors(self, ids: Ids) -> Vectors:
        """Look up the vectors of ``ids``, ``float32 [len(ids), dim]``."""
        return self._vectors[[self._rows[int(video)] for video in ids]]


MAX_DECODED_FRAMES = 512  # at a time, unless one moment has more
SEGMENT_ROWS = 65_536  # rows at which a segment is complete


@dataclass(frozen=True)
class LongVideo:
    """A video with moments: its ID in the shard, and each moment's start and end in seconds, earliest first."""

    id: str
    vector_id: int
    content_hash: str
    spans: tuple[tuple[float, float], ...]


def embed_moments(
    encode: Callable[[Tensor], Tensor],
    videos: Sequence[LongVideo],
    frames: int,
    size: FrameSize,
    *,
    open_video: Callable[[LongVideo], AbstractContextManager[Path]],
    scratch: Path,
    limits: VideoLimits,
    on_skip: Callable[[LongVideo, str], None],
    report: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[Ids, Vectors]]:
    """Yield the IDs and unit vectors ``[n, dim]`` of each video's moments, one video at a time.

    A video whose moments cannot be decoded is skipped: it remains searchable as a whole, and no task fails because a
    file was removed meanwhile. A video's moment vectors do not depend on other videos.

    Args:
        encode: Video encoder, ``uint8 [n, M, H, W, 3]`` to ``[n, dim]``.
        frames: Frames M per moment.
        size: Side of the square frames in pixels, or how they are resized.
        open_video: Provides a video's file during a ``with`` statement; may raise MediaError or OSError.
        scratch: File for decoded frames; removed at the end.
        on_skip: Called with each skipped video and the reason.
        report: Called with the number of moments processed so far.

    Raises:
        OSError: The scratch file cannot be written.
    """
    done, size_of_part = 0, max(1, min(_BATCH, MAX_DECODED_FRAMES // frames))
    try:
        with VideoDecoder(limits) as decoder:
            for video in videos:
                vectors: list[Vectors] = []
                try:
                    with _accepted_file(video, open_video) as path:
                        for part in batches(video.spans, size_of_part):
                            frame_batch = _decode_frames(decoder, path, video.id, part, frames, size, scratch)
                            vectors.append(encode(frame_batch).float().cpu().numpy())
                            report(done + sum(map(len, vectors)))
                except MediaError as error:
                    on_skip(video, error.reason)
                else:
                    yield moment_ids(video.vector_id, len(video.spans)), np.concatenate(vectors)
                done += len(video.spans)
    finally:
        scratch.unlink(missing_ok=True)


def group_segments(
    parts: Iterable[tuple[Ids, Vectors]], segment_rows: int = SEGMENT_ROWS
) -> Iterator[tuple[Ids, Vectors]]:
    """Join consecutive videos' vectors into segments of at least ``segment_rows`` rows; the last may have fewer."""
    pending: list[tuple[Ids, Vectors]] = []
    for ids, vectors in parts:
        pending.append((ids, vectors))
        if sum(len(ids) for ids, _ in pending) >= segment_rows:
            yield _concatenate(pending)
            pending = []
    if pending:
        yield _concatenate(pending)


@contextmanager
def _accepted_file(
    video: LongVideo, open_video: Callable[[LongVideo], AbstractContextManager[Path]]
) -> Iterator[Path]:
    """Open a video's file; raise MediaError if it is gone or is not the accepted one."""
    with ExitStack() as stack:
        try:
            path = stack.enter_context(open_video(video))
            is_accepted = content_hash(path) == video.content_hash
        except OSError as error:
            raise MediaError(f"the file cannot be read ({error.strerror or type(error).__name__})") from error
        if not is_accepted:
            raise MediaError("the file differs from the accepted one")
        yield path


def _concatenate(parts: Sequence[tuple[Ids, Vectors]]) -> tuple[Ids, Vectors]:
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([vectors for _, vectors in parts])


def _decode_frames(
    decoder: VideoDecoder,
    path: Path,
    name: str,
    spans: Sequence[tuple[float, float]],
    frames: int,
    size: FrameSize,
    scratch: Path,
) -> Tensor:
    """Decode frames ``uint8 [len(spans), M, H, W, 3]``, once where overlapping moments share them."""
    wanted = np.array([[start + t for t in sample_times(end - start, frames)] for start, end in spans])
    times, rows = np.unique(wanted.round(6), return_inverse=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    decoder.sample(path, times=times.tolist(), size=size, into=scratch, name=name)
    return torch.from_numpy(np.load(scratch, mmap_mode="r")[rows.reshape(wanted.shape)])
