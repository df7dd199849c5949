"""Files of the demo's videos: one folder per domain with mp4 files and a manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.data.world.mp4_writer import encode_mp4
from benchmarks.data.world.world_files import process_map, write_atomically
from cli.demo.scenes.scene_model import Scene
from cli.demo.scenes.scene_rendering import FRAMES_PER_SECOND, render_scene

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
        missing += [scene for scene in members if not _video(root, scene).exists()]
        lines = [json.dumps(_manifest_entry(scene)) + "\n" for scene in members]
        write_atomically(folder / "manifest.jsonl", "".join(lines))
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


def _manifest_entry(scene: Scene) -> dict[str, object]:
    return {
        "uri": _video(Path(), scene).name,
        "captions": list(scene.captions),
        "id": scene.id,
        "split": scene.split,
        "metadata": {
            "subject": scene.subject,
            "color": scene.color,
            "place": scene.backdrop,
            "with": scene.companion,
        },
    }


def _video(root: Path, scene: Scene) -> Path:
    return root / scene.domain / f"{scene.id}.mp4"


def _write_video(root: Path, scene: Scene) -> None:
    encode_mp4(render_scene(scene), _video(root, scene), fps=FRAMES_PER_SECOND)
