"""Prepare tasks: create each video's frames once, and cache them as ``.npy`` files.

Several processes can share a cache: files are written under a temporary name and renamed, and a file's name is a digest
of its source, so no cached file is ever stale.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from benchmarks.data.frame_sources import FileFrames, write_frames
from benchmarks.data.source_tasks import SourceTask, SourceVideo
from benchmarks.errors import ProtocolError
from models.backbones.backbone_description import FrameSpec
from trainer.task_data import Clip, TaskData, clips_without_frames

_MAX_LISTED_VIDEOS = 5  # in error messages
Progress = Callable[[int, int], None]


def prepare_source_tasks(
    source_tasks: Iterable[SourceTask],
    spec: FrameSpec,
    cache: Path,
    *,
    workers: int = 1,
    progress: Progress = lambda done, total: None,
) -> list[TaskData]:
    """Create the missing frames for some tasks' videos, and return the tasks in order.

    Args:
        source_tasks: Tasks before their frames are created.
        spec: Number and size of the frames per video, as the backbone requires.
        cache: Cache folder; the frames are in its subfolder ``<frames>x<size>``.

    Raises:
        ProtocolError: Videos are missing or cannot be decoded; the message names them.
    """
    folder = cache / f"{spec.frames}x{spec.size}"
    sources: dict[Path, FileFrames] = {}
    prepared: list[TaskData] = []
    numbers = itertools.count(1)

    def clips_of(videos: Sequence[SourceVideo]) -> tuple[Clip, ...]:
        clips: list[Clip] = []
        for video in videos:
            path = folder / f"{video.frame_source.key}.npy"
            sources[path] = video.frame_source
            clips.append(Clip(video.id, next(numbers), path, video.captions, video.split))
        return tuple(clips)

    for source_task in source_tasks:
        prepared.append(TaskData(source_task.id, source_task.name, clips_of(source_task.videos)))
    if not any(clip.captions for task in prepared for clip in task.test):
        raise ProtocolError("no held-out video has a caption, so nothing can be evaluated; add captions")
    if not any(task.pairs for task in prepared):
        raise ProtocolError("no training video has a caption, so nothing can be learned; add captions")
    every = [clip for task in prepared for clip in task.clips]
    missing = {clip.frames_path: clip for clip in clips_without_frames(every, *spec)}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        _make(list(missing.values()), sources, spec, workers, progress)
    return prepared


def _make(
    missing: Sequence[Clip],
    sources: dict[Path, FileFrames],
    spec: FrameSpec,
    workers: int,
    progress: Progress,
) -> None:
    work = [(sources[clip.frames_path], clip.frames_path) for clip in missing]
    failures: list[str] = []
    done = 0
    try:
        reasons = _run(partial(write_frames, count=spec.frames, size=spec.size), work, workers)
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
        more = " …" if len(failures) > _MAX_LISTED_VIDEOS else ""
        raise ProtocolError(
            f"{len(failures)} of {len(missing)} videos cannot be used: "
            f"{'; '.join(failures[:_MAX_LISTED_VIDEOS])}{more}. Replace these files and repeat the command: decoded "
            "videos are kept"
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
