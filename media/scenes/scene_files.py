"""Write drawn videos: an mp4 file (H.264) and a manifest line per scene."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

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


def encode_mp4(frames: npt.NDArray[np.uint8], path: Path, *, fps: int) -> None:
    """Write frames to an mp4 file (H.264, yuv420p, index before the data), which appears atomically.

    Args:
        frames: RGB, ``uint8 [count, height, width, 3]``, with even height and width; equal frames give equal files.
    """
    handle, temporary = tempfile.mkstemp(suffix=".mp4", prefix=".", dir=path.parent)
    os.close(handle)
    try:
        with av.open(temporary, "w", options={"movflags": "+faststart"}) as container:
            # One thread, since several processes encode at the same time. No mbtree, since its output varies between
            # runs, and equal clips must give equal files.
            options = {"preset": "veryfast", "crf": "21", "threads": "1", "x264-params": "mbtree=0"}
            stream = container.add_stream("libx264", rate=fps, options=options)
            stream.pix_fmt = "yuv420p"
            stream.height, stream.width = frames.shape[1:3]
            for picture in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
