"""Tasks before their frames are decoded, and their preparation: frames are decoded once, and cached as ``.npy`` files.

Several processes can share a cache: files are written under a temporary name and renamed. A file's name is a digest of
its source's name, size and modification time, so frames of a changed file are decoded again.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.data.frame_sources import FileFrames, write_frames
from benchmarks.errors import ProtocolError, abbreviate
from media import frame_cache_path
from models.backbones.backbone_description import FrameSpec
from trainer.task_data import Clip, TaskData, clips_without_frames

Split = Literal["train", "val", "test"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SourceVideo:
    """A video before its frames are created."""

    id: str
    captions: tuple[str, ...]
    split: Split | None  # None for a video that is only indexed
    frame_source: FileFrames


@dataclass(frozen=True)
class SourceTask:
    """A task before its frames are created."""

    id: str
    name: str
    videos: tuple[SourceVideo, ...]


def prepare_source_tasks(
    source_tasks: Iterable[SourceTask],
    spec: FrameSpec,
    cache: Path,
    *,
    workers: int = 1,
    progress: Progress = lambda done, total: None,
) -> list[TaskData]:
    """Create the missing frames in the cache, and return the tasks; raise ProtocolError, which names bad videos."""
    folder = frame_cache_path(cache, *spec, "").parent
    sources: dict[Path, FileFrames] = {}
    numbers = itertools.count(1)

    def make_clip(video: SourceVideo) -> Clip:
        path = folder / f"{video.frame_source.key}.npy"
        sources[path] = video.frame_source
        return Clip(video.id, next(numbers), path, video.captions, split=video.split)

    prepared = [TaskData(task.id, task.name, tuple(map(make_clip, task.videos))) for task in source_tasks]
    if not any(clip.captions for task in prepared for clip in task.test):
        raise ProtocolError("no held-out video has a caption, so nothing can be evaluated; add captions")
    if not any(task.pairs for task in prepared):
        raise ProtocolError("no training video has a caption, so nothing can be learned; add captions")
    clips = [clip for task in prepared for clip in task.clips]
    missing = {clip.frames_path: clip for clip in clips_without_frames(clips, *spec)}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        work = [(sources[path], path) for path in missing]
        reasons = _run(partial(write_frames, count=spec.frames, size=spec.size), work, workers)
        _await_frames(list(missing.values()), reasons, workers, progress)
    return prepared


def _await_frames(missing: Sequence[Clip], reasons: Iterator[str], workers: int, progress: Progress) -> None:
    """Wait for the frames of clips; raise ProtocolError with the reasons if some cannot be decoded."""
    failures: list[str] = []
    done = 0
    try:
        for clip, reason in zip(missing, reasons, strict=True):
            done += 1
            progress(done, len(missing))
            if reason:
                failures.append(f"{clip.id}: {reason}")
    except BrokenProcessPool as error:
        suspects = [c.id for c in missing[done:] if not c.frames_path.exists()][: 2 * workers]
        raise ProtocolError(
            f"the decoder crashed on one of {', '.join(suspects)}; replace the file and repeat the command: decoded "
            "videos are kept"
        ) from error
    if failures:
        raise ProtocolError(
            f"{len(failures)} of {len(missing)} videos cannot be used: {abbreviate(failures, '; ')}. Replace these "
            "files and repeat the command: decoded videos are kept"
        )


def _run(
    write: Callable[[tuple[FileFrames, Path]], str], work: Sequence[tuple[FileFrames, Path]], workers: int
) -> Iterator[str]:
    if workers == 1:
        yield from map(write, work)
        return
    # Processes are spawned, not forked: this one may have torch threads and locks.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(write, work)
    finally:
        pool.shutdown(cancel_futures=True)
