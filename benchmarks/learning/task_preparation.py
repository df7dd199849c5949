"""Prepare a protocol's tasks: create each video's frames once, and cache them as ``.npy`` files.

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

from benchmarks.data.frame_sources import FrameSource, ImageFrames, WorldFrames, write_frames
from benchmarks.data.source_tasks import SourceTask, SourceVideo
from benchmarks.errors import ProtocolError
from benchmarks.learning.labeled_pairs import LabeledTask
from benchmarks.learning.protocol import Protocol
from models.backbones.backbone_description import FrameSpec
from trainer.task_data import Clip, TaskData, clips_without_frames

_MAX_LISTED_VIDEOS = 5  # in error messages
_MIN_DISTRIBUTED_IMAGES = 500  # fewer are decoded before more processes have started
Progress = Callable[[int, int], None]


def prepare_tasks(
    protocol: Protocol,
    spec: FrameSpec,
    cache: Path,
    *,
    videos: Path | None = None,
    tasks: int | None = None,
    workers: int = 1,
    progress: Progress = lambda done, total: None,
) -> list[TaskData]:
    """Prepare a protocol's tasks: create missing frames, and return the tasks in order.

    Args:
        spec: Number and size of the frames per video, as the backbone requires.
        cache: Cache folder; the frames are in its subfolder ``<frames>x<size>``.
        videos: Folder of videos, for a protocol that does not render its own.
        tasks: Number of tasks; the protocol's by default.
        workers: Number of decoding processes.

    Raises:
        ProtocolError: Videos are missing or cannot be decoded; the message names them.
    """
    source_tasks = protocol.source.tasks(videos, tasks or protocol.tasks)
    return prepare_source_tasks(source_tasks, spec, cache, workers=workers, progress=progress)


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
        workers: Number of decoding processes.

    Raises:
        ProtocolError: Videos are missing or cannot be decoded; the message names them.
    """
    folder = cache / f"{spec.frames}x{spec.size}"
    sources: dict[Path, FrameSource] = {}
    prepared: list[TaskData] = []
    numbers = itertools.count(1)

    def clips_of(videos: Sequence[SourceVideo]) -> tuple[Clip, ...]:
        clips: list[Clip] = []
        for video in videos:
            path = folder / f"{video.frame_source.key}.npy"
            sources[path] = video.frame_source
            clips.append(Clip(video.id, next(numbers), path, video.captions, video.split, video.category))
        return tuple(clips)

    labeled: list[Clip] = []
    for source_task in source_tasks:
        task = TaskData(source_task.id, source_task.name, clips_of(source_task.videos))
        if source_task.pair_queries:
            queries, gallery = clips_of(source_task.pair_queries), clips_of(source_task.pair_gallery)
            task = LabeledTask(task.task_id, task.name, task.clips, queries, gallery)
            labeled += queries + gallery
        prepared.append(task)
    if not any(clip.captions for task in prepared for clip in task.test):
        raise ProtocolError("no held-out video has a caption, so nothing can be evaluated; add captions")
    if not any(task.pairs for task in prepared):
        raise ProtocolError("no training video has a caption, so nothing can be learned; add captions")
    every = (*(clip for task in prepared for clip in task.clips), *labeled)
    missing = {clip.frames_path: clip for clip in clips_without_frames(every, *spec)}
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        _make(list(missing.values()), sources, spec, workers, progress)
    return prepared


def _make(
    missing: Sequence[Clip],
    sources: dict[Path, FrameSource],
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
    write: Callable[[tuple[FrameSource, Path]], str], work: Sequence[tuple[FrameSource, Path]], workers: int
) -> Iterator[str]:
    """Render, and decode a few images, in this process, which takes milliseconds each; decode in several processes."""
    heavy = [source for source, _ in work if not isinstance(source, WorldFrames)]
    has_few_images = len(heavy) < _MIN_DISTRIBUTED_IMAGES and all(isinstance(s, ImageFrames) for s in heavy)
    if workers == 1 or has_few_images:
        yield from map(write, work)
        return
    # Processes are spawned, not forked: this one may have torch threads and locks.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(write, work)
    finally:
        pool.shutdown(cancel_futures=True)
