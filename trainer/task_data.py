"""What a task learns from: clips, captions, batches and frames, and stored vectors of earlier tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from index.arrays import Frames, Ids, Vectors, batches
from media import FrameSize, frame_shape
from trainer.errors import FramesMissing

Split = Literal["train", "val", "test", "fold"]


@dataclass(frozen=True)
class Clip:
    """An accepted video."""

    id: str
    vector_id: int  # ID of its vector in the shard
    frames_path: Path  # .npy file with its decoded frames, uint8 [M, H, W, 3]
    captions: tuple[str, ...]
    # use of the video: test videos are never trained on; fold videos are (by gradient steps, in the last epoch), and
    # are measured by a model trained without them; videos without a split are only indexed
    split: Split | None


class Pair(NamedTuple):
    """A video and one of its captions, to train on."""

    clip: Clip
    caption: str


@dataclass(frozen=True)
class TaskData:
    """The accepted videos of a task, in vector ID order."""

    task_id: str
    name: str
    clips: tuple[Clip, ...]

    @property
    def train(self) -> list[Clip]:
        """Training videos, with those of the fold."""
        return [clip for clip in self.clips if clip.split in ("train", "fold")]

    @property
    def val(self) -> list[Clip]:
        """Validation videos."""
        return [clip for clip in self.clips if clip.split == "val"]

    @property
    def test(self) -> list[Clip]:
        """Held-out videos."""
        return [clip for clip in self.clips if clip.split == "test"]

    @property
    def pairs(self) -> list[Pair]:
        """One training pair per caption of each training video."""
        return [Pair(clip, caption) for clip in self.train for caption in clip.captions]

    def without_fold(self) -> TaskData:
        """Leave out the videos of the fold."""
        return replace(self, clips=tuple(clip for clip in self.clips if clip.split != "fold"))

    def observed(self, limit: int | None = None) -> list[Clip]:
        """List the captioned training videos that a closed-form method learns from: all, or a sample of ``limit``."""
        clips = [clip for clip in self.train if clip.captions]
        return clips if limit is None else list(draw_sample(clips, limit))

    @property
    def training_captions(self) -> list[str]:
        """Captions of all training videos."""
        return [pair.caption for pair in self.pairs]


def draw_batches(pairs: Sequence[Pair], size: int, rng: np.random.Generator) -> list[list[Pair]]:
    """Divide all pairs into shuffled batches of at most ``size`` that differ by at most one in length.

    Two captions of one video in a batch would be each other's negatives although both are right, so they are kept apart
    where the counts allow it: each batch takes pairs from the videos with the most remaining captions, ties at random
    (which separates them whenever no video has more captions than there are batches), and repeats a video only when no
    other is left. The batches are then shuffled.
    """
    count = math.ceil(len(pairs) / size)
    remaining_pairs: dict[int, list[Pair]] = {}
    for index in rng.permutation(len(pairs)):
        remaining_pairs.setdefault(pairs[index].clip.vector_id, []).append(pairs[index])
    levels: list[list[list[Pair]]] = [
        [] for _ in range(max(map(len, remaining_pairs.values()), default=0) + 1)
    ]
    for left in remaining_pairs.values():
        levels[len(left)].append(left)
    result: list[list[Pair]] = []
    for number in range(count):
        room = len(pairs) // count + (number < len(pairs) % count)
        batch: list[Pair] = []
        taken: list[list[Pair]] = []
        while len(batch) < room:
            while len(levels) > 1 and not levels[-1]:
                levels.pop()
            if len(levels) == 1:  # every video is in the batch
                levels = _return_videos(levels, taken)
            level = levels[-1]
            chosen = int(rng.integers(len(level)))
            level[chosen], level[-1] = level[-1], level[chosen]
            taken.append(level.pop())
            batch.append(taken[-1].pop())
        levels = _return_videos(levels, taken)
        result.append([batch[i] for i in rng.permutation(len(batch))])
    return [result[i] for i in rng.permutation(count)]


def _return_videos(levels: list[list[list[Pair]]], taken: list[list[Pair]]) -> list[list[list[Pair]]]:
    """Put a batch's videos back into the levels of their remaining captions, and empty ``taken``."""
    levels += [[] for _ in range(max(map(len, taken), default=0) + 1 - len(levels))]
    for left in taken:
        levels[len(left)].append(left)
    taken.clear()
    return levels


def load_examples(pairs: Sequence[Pair], size: int) -> Iterator[tuple[Tensor, list[str]]]:
    """Yield the pairs in order, n ≤ ``size`` at a time, as frames ``uint8 [n, M, H, W, 3]`` and captions."""
    for chunk in batches(pairs, size):
        yield load_frames([pair.clip for pair in chunk]), [pair.caption for pair in chunk]


def load_frames(clips: Sequence[Clip]) -> Tensor:
    """Read the cached frames of several videos, ``uint8 [n, M, H, W, 3]``."""
    return torch.from_numpy(np.stack(open_frames(clips)))


def read_ahead(
    groups: Iterable[Sequence[Clip]], read: Callable[[Sequence[Clip]], Any] | None = None
) -> Iterator[tuple[Sequence[Clip], Any]]:
    """Read each group in a thread while the previous one is used; errors are raised when the group is due. By default,
    ``read`` loads :func:`pinned` frames ``uint8 [n, M, H, W, 3]``.
    """
    read = read or (lambda clips: pinned(load_frames(clips)))
    with ThreadPoolExecutor(1, thread_name_prefix="videos") as thread:
        ahead: tuple[Sequence[Clip], Future[Any]] | None = None
        for clips in groups:
            current, ahead = ahead, (clips, thread.submit(read, clips))
            if current:
                yield current[0], current[1].result()
        if ahead:
            yield ahead[0], ahead[1].result()


def pinned(tensor: Tensor) -> Tensor:
    """Copy to pinned pages, which a GPU reads by itself, so that no step waits for the transfer."""
    return tensor.pin_memory() if torch.cuda.is_available() else tensor


def open_frames(clips: Sequence[Clip]) -> list[Frames]:
    """Map the cached frames of several videos into memory, ``[M, H, W, 3]`` each and all of one shape; raise
    FramesMissing, which names the video and the remedy.
    """
    opened = [_open_clip(clip) for clip in clips]
    for clip, frames in zip(clips, opened, strict=True):
        if frames.shape != opened[0].shape:
            raise FramesMissing(
                f"video {clip.id!r}: its decoded frames are {list(frames.shape)}, those of {clips[0].id!r} are "
                f"{list(opened[0].shape)}; retry the task, so that all are decoded alike"
            )
    return opened


def clips_without_frames(clips: Sequence[Clip], frames: int, size: FrameSize) -> list[Clip]:
    """List the clips whose cache does not hold frames of that shape; reads only file headers."""

    def is_missing(clip: Clip) -> bool:
        try:
            return _open_clip(clip).shape != (frames, *frame_shape(size), 3)
        except FramesMissing:
            return True

    return [clip for clip in clips if is_missing(clip)]


def _open_clip(clip: Clip) -> Frames:
    try:
        frames = np.load(clip.frames_path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FramesMissing(
            f"video {clip.id!r}: its decoded frames ({clip.frames_path.name}) cannot be read "
            f"({type(error).__name__}); retry the task, and the video will be decoded again"
        ) from error
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
        raise FramesMissing(
            f"video {clip.id!r}: its decoded frames ({clip.frames_path.name}) are {frames.dtype} "
            f"{list(frames.shape)}, not uint8 [frames, height, width, 3]; delete the file and retry the task"
        )
    return frames


class VectorSource(Protocol):
    """Source of stored vectors, for example a shard."""

    def vectors(self, ids: Ids) -> Vectors:
        """Read the vectors of ``ids``, ``float32 [len(ids), dim]``."""
        ...


class StoredVectors:
    """Stored vectors of earlier tasks' training videos: the negatives of the cross-task loss.

    Vectors are read only when sampled, so that the hundredth task costs as much as the second. Sources are shards with
    the IDs of their *training* videos; others would show the loss videos that recall is measured on.
    """

    def __init__(self, sources: Sequence[tuple[VectorSource, Ids]] = ()) -> None:
        self._sources = [(source, np.asarray(ids, np.int64)) for source, ids in sources if len(ids)]
        self._ends = np.cumsum([len(ids) for _, ids in self._sources], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def sample(self, count: int, rng: np.random.Generator) -> Tensor | None:
        """Draw vectors ``[min(count, len), dim]`` without replacement; None if there are none."""
        if not len(self):
            return None
        chosen = rng.choice(len(self), size=min(count, len(self)), replace=False)
        return torch.from_numpy(np.concatenate(list(self._read(np.sort(chosen)))))

    def _read(self, chosen: Ids) -> Iterator[Vectors]:
        owners = np.searchsorted(self._ends, chosen, side="right")
        for owner in np.unique(owners):
            source, ids = self._sources[owner]
            start = self._ends[owner] - len(ids)
            yield source.vectors(ids[chosen[owners == owner] - start])


def vector_ids(clips: Sequence[Clip]) -> Ids:
    """Collect the vector IDs ``int64 [n]`` of clips."""
    return np.array([clip.vector_id for clip in clips], np.int64)


Item = TypeVar("Item")


def draw_sample(items: Sequence[Item], limit: int) -> tuple[Item, ...]:
    """Draw at most ``limit`` items and keep their order; the same positions for the same number of items."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(items))[:limit])
    return tuple(items[row] for row in chosen)
