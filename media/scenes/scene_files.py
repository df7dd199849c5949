"""Write drawn videos: an mp4 file and a manifest line per scene."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from media.mp4_encoding import encode_mp4
from media.scenes.scene_model import Scene
from media.scenes.scene_rendering import FRAMES_PER_SECOND, render_scene


def scene_file_name(scene: Scene) -> str:
    """Name a scene's mp4 file."""
    return f"{scene.id}.mp4"


def manifest_line(scene: Scene) -> str:
    """Format a scene's line in a JSONL manifest, with its line break."""
    entry = {
        "uri": scene_file_name(scene),
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
    return json.dumps(entry) + "\n"


def write_scene(folder: Path, scene: Scene) -> Path:
    """Draw a scene, write its mp4 file atomically, and return the file's path."""
    path = folder / scene_file_name(scene)
    encode_mp4(render_scene(scene), path, fps=FRAMES_PER_SECOND)
    return path


def write_scenes(
    root: Path,
    scenes: Mapping[str, Sequence[Scene]],
    workers: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write ``root/<domain>/<scene ID>.mp4`` and ``root/<domain>/manifest.jsonl``; existing videos are kept."""
    missing = []
    for name, members in scenes.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        missing += [scene for scene in members if not (folder / scene_file_name(scene)).exists()]
        _write_atomically(folder / "manifest.jsonl", "".join(map(manifest_line, members)))
    total = sum(map(len, scenes.values()))
    done = total - len(missing)
    # Spawn, since torch may have threads and locks that do not survive a fork.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, context, initializer=_leave_interrupts_to_parent)
    try:
        for _ in executor.map(partial(_write_video, root), missing, chunksize=4):
            done += 1
            if progress:
                progress(done, total)
    finally:
        executor.shutdown(cancel_futures=True)
    if progress:
        progress(total, total)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _write_video(root: Path, scene: Scene) -> None:
    write_scene(root / scene.domain, scene)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
