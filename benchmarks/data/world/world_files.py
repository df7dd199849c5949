"""Video world on disk: one folder per domain with mp4 files and a manifest for ``POST /tasks``."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.data.world.domain_clips import make_domain
from benchmarks.data.world.mp4_writer import write_mp4
from benchmarks.data.world.scene_model import Clip

__all__ = ["manifest_line", "process_map", "write_atomically", "write_world"]

_SECONDS = 3.0
Progress = Callable[[int, int], None]
_Item = TypeVar("_Item")


def write_world(
    root: Path,
    *,
    domains: Iterable[str],
    seed: int,
    train: int = 16,
    val: int = 4,
    test: int = 40,
    categories: int | None = None,
    captions: int = 5,
    workers: int = 2,
    progress: Progress | None = None,
) -> None:
    """Write ``root/<domain>/<clip id>.mp4`` and ``root/<domain>/manifest.jsonl``; existing files are kept.

    The id of a clip contains domain, seed, category, split and number, so an existing file is valid if the
    code of the world has not changed. The manifest is written last, so a folder with a manifest is complete.

    Args:
        root: Folder of the world, created if it does not exist. URIs in a manifest are relative to its folder.
        domains: Names of domains, written in this order.
        seed: Seed of the clips; ``seed``, ``train``, ``val``, ``test``, ``categories`` and ``captions`` are described
            in :func:`make_domain`.
        workers: Number of rendering processes; 1 renders in the calling process. The processes are spawned, so a
            script that uses several must be protected by ``if __name__ == "__main__"``.
        progress: Called in the calling process with the number of finished videos and of all videos.
    """
    clips_by_domain = {
        name: make_domain(
            name, seed=seed, train=train, val=val, test=test, categories=categories, captions=captions
        )
        for name in domains
    }
    total = sum(len(clips) for clips in clips_by_domain.values())
    done = 0
    with process_map(workers) as run:
        for name, clips in clips_by_domain.items():
            folder = root / name
            folder.mkdir(parents=True, exist_ok=True)
            missing = [clip for clip in clips if not (folder / f"{clip.id}.mp4").exists()]
            done += len(clips) - len(missing)
            for _ in run(partial(_write_clip, folder), missing):
                done += 1
                if progress:
                    progress(done, total)
            write_atomically(folder / "manifest.jsonl", "".join(manifest_line(clip) + "\n" for clip in clips))
    if progress:
        progress(total, total)


def manifest_line(clip: Clip) -> str:
    """The clip as one line of JSON with the fields of ``POST /tasks``."""
    return json.dumps(
        {
            "uri": f"{clip.id}.mp4",
            "captions": list(clip.captions),
            "id": clip.id,
            "split": clip.split,
            "metadata": {"category": clip.category, "duration": _SECONDS},
        },
        ensure_ascii=False,
    )


def _write_clip(folder: Path, clip: Clip) -> None:
    write_mp4(clip, folder / f"{clip.id}.mp4", seconds=_SECONDS)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file (UTF-8) that appears complete or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


@contextmanager
def process_map(workers: int) -> Iterator[Callable[[Callable[[_Item], None], list[_Item]], Iterator[None]]]:
    """A ``map`` over processes, or the built-in one for a single worker.

    Items are sent to spawned processes, so they and the function must be picklable.
    """
    if workers <= 1:
        yield map
        return
    # Spawned, since torch may have started threads and locks that do not survive a fork.
    executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield partial(executor.map, chunksize=4)
    finally:
        executor.shutdown(cancel_futures=True)
