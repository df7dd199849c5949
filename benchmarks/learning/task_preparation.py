"""From a protocol to tasks that can be learned: every video's frames are made once and kept as a ``.npy`` file.

Any number of processes may share a cache: a file is written beside its place and then renamed, and its name is a
digest of what is on it, so nothing in the cache is ever out of date.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from benchmarks.data.frame_sources import FileFrames, FrameSource, write_frames
from benchmarks.errors import ProtocolError
from benchmarks.learning.protocol import Protocol
from models.backbones.backbone import FrameSpec
from trainer.task_data import Clip, TaskData, clips_without_frames

__all__ = ["prepare_tasks"]

_NAMED = 5  # videos that a message names
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
    """The tasks of a protocol, in order, with the frames of every video in the cache.

    Args:
        spec: frames per video and their size, as the backbone wants them.
        cache: folder; ``<frames>x<size>`` is made in it.
        videos: folder of the videos, where the protocol does not draw its own.
        tasks: how many; by default as many as the protocol says.
        workers: processes that decode.
        progress: called with (videos done, videos that were missing).

    Raises:
        ProtocolError: videos are missing or cannot be decoded; says which.
    """
    folder = cache / f"{spec.frames}x{spec.size}"
    sources: dict[Path, FrameSource] = {}
    prepared: list[TaskData] = []
    number = 0
    for part in protocol.source.tasks(videos, tasks or protocol.tasks):
        clips: list[Clip] = []
        for video in part.videos:
            number += 1
            path = folder / f"{video.frame_source.key}.npy"
            sources[path] = video.frame_source
            clips.append(Clip(video.id, number, path, video.captions, video.split, video.category))
        prepared.append(TaskData(task_id=part.id, name=part.name, clips=tuple(clips)))
    if not any(clip.captions for task in prepared for clip in task.test):
        raise ProtocolError("no held-out video has a caption, so there is nothing to measure")
    if not any(task.pairs for task in prepared):
        raise ProtocolError("no training video has a caption, so there is nothing to learn from")
    missing = {c.frames_path: c for task in prepared for c in clips_without_frames(task.clips, *spec)}
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
    wrong: list[str] = []
    done = 0
    try:
        reasons = _run(partial(write_frames, count=spec.frames, size=spec.size), work, workers)
        for clip, reason in zip(missing, reasons, strict=True):
            done += 1
            progress(done, len(missing))
            if reason:
                wrong.append(f"{clip.id}: {reason}")
    except BrokenProcessPool as error:
        suspects = [c.id for c in missing[done:] if not c.frames_path.exists()][: 2 * workers]
        raise ProtocolError(
            f"the decoder died at one of {', '.join(suspects)}; replace the file, and run this again: what is "
            "decoded is kept"
        ) from error
    if wrong:
        more = " …" if len(wrong) > _NAMED else ""
        raise ProtocolError(
            f"{len(wrong)} of {len(missing)} videos cannot be used: {'; '.join(wrong[:_NAMED])}{more}. Replace "
            "these files, and run this again: what is decoded is kept"
        )


def _run(
    write: Callable[[tuple[FrameSource, Path]], str], work: Sequence[tuple[FrameSource, Path]], workers: int
) -> Iterator[str]:
    """Drawing takes milliseconds and is done here; decoding is spread over processes."""
    if workers == 1 or not any(isinstance(frame_source, FileFrames) for frame_source, _ in work):
        yield from map(write, work)
        return
    # Spawned, not forked: this process may hold threads and locks of torch.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(write, work)
    finally:
        pool.shutdown(cancel_futures=True)
