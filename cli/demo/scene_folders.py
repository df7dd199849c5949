"""Folders of the demo's videos: one per domain with mp4 files and a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.data.world.world_files import process_map, write_atomically
from media.scenes.scene_files import manifest_line, scene_file_name, write_scene
from media.scenes.scene_model import Scene

__all__ = ["write_scenes"]


def write_scenes(
    root: Path,
    scenes: Mapping[str, Sequence[Scene]],
    workers: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write ``root/<domain>/<scene id>.mp4`` and ``root/<domain>/manifest.jsonl``; existing videos are kept.

    Args:
        root: Folder of the domains; it is created if it does not exist.
        scenes: Scenes by name of the domain.
        workers: Number of processes that render.
        progress: Called with the number of finished videos and of all videos.
    """
    missing = []
    for name, members in scenes.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        missing += [scene for scene in members if not (folder / scene_file_name(scene)).exists()]
        write_atomically(folder / "manifest.jsonl", "".join(map(manifest_line, members)))
    total = sum(map(len, scenes.values()))
    done = total - len(missing)
    with process_map(workers) as run:
        written: Iterable[None] = run(partial(_write_video, root), missing)
        for _ in written:
            done += 1
            if progress:
                progress(done, total)
    if progress:
        progress(total, total)


def _write_video(root: Path, scene: Scene) -> None:
    write_scene(root / scene.domain, scene)
