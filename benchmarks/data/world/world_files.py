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

from benchmarks.data.world.domain_clips import make_domain
from benchmarks.data.world.mp4_writer import write_mp4
from benchmarks.data.world.scene_model import Clip

__all__ = ["manifest_line", "write_world"]

_SECONDS = 3.0
Progress = Callable[[int, int], None]


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
    """Write ``root/<domain>/<clip id>.mp4`` and ``root/<domain>/manifest.jsonl``; files that exist are kept.

    A clip's id names domain, seed, category, split and number, so an existing file is the right one as long as
    the world's code has not changed. A manifest is written last: where there is one, its folder is complete.

    Args:
        root: folder of the world; created when missing. URIs in a manifest are relative to its own folder.
        domains: names, written in this order.
        seed: see :func:`make_domain`, as for the counts and ``captions``.
        workers: processes that render; 1 renders in this one. They are spawned, so with more than one a calling
            script needs the usual ``if __name__ == "__main__"``.
        progress: called with (videos done, videos in all) as they come, from this process.
    """
    wanted = {
        name: make_domain(
            name, seed=seed, train=train, val=val, test=test, categories=categories, captions=captions
        )
        for name in domains
    }
    total = sum(len(clips) for clips in wanted.values())
    done = 0
    with _mapping(workers) as run:
        for name, clips in wanted.items():
            folder = root / name
            folder.mkdir(parents=True, exist_ok=True)
            missing = [clip for clip in clips if not (folder / f"{clip.id}.mp4").exists()]
            done += len(clips) - len(missing)
            for _ in run(partial(_write, folder), missing):
                done += 1
                if progress:
                    progress(done, total)
            _replace(folder / "manifest.jsonl", "".join(manifest_line(clip) + "\n" for clip in clips))
    if progress:
        progress(total, total)


def manifest_line(clip: Clip) -> str:
    """The clip as one line of JSON, in the words of ``POST /tasks``."""
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


def _write(folder: Path, clip: Clip) -> None:
    write_mp4(clip, folder / f"{clip.id}.mp4", seconds=_SECONDS)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


@contextmanager
def _mapping(workers: int) -> Iterator[Callable[[Callable[[Clip], None], list[Clip]], Iterator[None]]]:
    """A ``map`` over processes, or the plain one for a single worker."""
    if workers <= 1:
        yield map
        return
    # Spawned, not forked: the caller may hold threads and locks of torch.
    executor = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield partial(executor.map, chunksize=4)
    finally:
        executor.shutdown(cancel_futures=True)
