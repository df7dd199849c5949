"""Render scenes, and write their videos: an mp4 file (H.264) and a manifest line for each."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageColor, ImageDraw

from media.scenes.painting import DETAIL, FRAME_HEIGHT, FRAME_WIDTH, Layer, Painter, Stroke
from media.scenes.scene_domains import COLORS, SCENE_DOMAINS, SYMBOLS, Scene

FRAMES_PER_SECOND = 12
FRAMES = 30
_PHASES = (0.0, 0.2, 0.4, 0.6, 0.8)  # of movements, each of which is painted once
_CYCLES = 3  # of movements per video
_STOP = 204.0  # where the front of a vehicle stops, in units from the left


def render_scene(scene: Scene) -> npt.NDArray[np.uint8]:
    """Render RGB frames ``uint8 [30, 208, 288, 3]``; equal scenes give equal frames."""
    domain = SCENE_DOMAINS[scene.domain]
    rng = np.random.default_rng(scene.seed)
    place = domain.places[scene.place].drawing
    strokes = [part for stroke in place for part in SYMBOLS.get(stroke.shape, [stroke])]
    drops = [stroke for stroke in strokes if stroke.shape == "drops"]
    seeds = [rng.random((int(stroke.points[0].real), 3)) for stroke in drops]
    backdrop = Painter(SYMBOLS, scene.seed).paint(place).picture.convert("RGB")
    subject = _subject_layers(scene, rng.uniform(0.95, 1.1))
    companion = _companion_layers(scene.domain, scene.companion)
    offset = _plan_path(scene, subject[0], rng)
    frames = np.empty((FRAMES, FRAME_HEIGHT, FRAME_WIDTH, 3), np.uint8)
    for index in range(FRAMES):
        time = index / (FRAMES - 1)
        phase = int(time * _CYCLES * len(_PHASES)) % len(_PHASES)
        frame = backdrop.copy()
        for (picture, left, top), (dx, dy) in ((subject[phase], offset(time)), (companion[phase], (0, 0))):
            frame.paste(picture, (left + round(dx * DETAIL), top + round(dy * DETAIL)), picture)
        for stroke, places in zip(drops, seeds, strict=True):
            _draw_drops(frame, stroke, places, time)
        frames[index] = np.asarray(frame.reduce(DETAIL))
    return frames


def _subject_layers(scene: Scene, zoom: float) -> list[Layer]:
    """Paint a subject in the middle of the frame, with its shadow, at each phase of its movement."""
    domain = SCENE_DOMAINS[scene.domain]
    drawing = domain.subjects[scene.subject].drawing
    if domain.movement != "swim":
        drawing = (Stroke.parse(f"glow black {FRAME_WIDTH / 2},{domain.floor - 6} 66,8"), *drawing)
    center, body = complex(FRAME_WIDTH / 2, domain.floor), COLORS[scene.color]
    return [Painter(SYMBOLS, phase=phase).paint(drawing, body, zoom, center) for phase in _PHASES]


@cache
def _companion_layers(domain: str, name: str) -> list[Layer]:
    drawing = SCENE_DOMAINS[domain].companions[name].drawing
    return [Painter(SYMBOLS, phase=phase).paint(drawing) for phase in _PHASES]


def _plan_path(
    scene: Scene, subject: Layer, rng: np.random.Generator
) -> Callable[[float], tuple[float, float]]:
    """Plan how far a subject is from the middle of the frame at a time 0..1, in units."""
    domain = SCENE_DOMAINS[scene.domain]
    lift, sway = rng.uniform(-4, 4), rng.uniform(0, 2 * math.pi)
    if domain.movement == "stand":
        return lambda time: (34 + 2 * lift + 40 * max(0.0, 1 - 3 * time) ** 2, 0.0)
    if domain.movement == "swim":
        return lambda time: (24 + 34 * (time - 0.5), lift + 6 * math.sin(2 * math.pi * time + sway))
    # As its captions say.
    stops = "stops" in domain.companions[scene.companion].words[0]
    end = _STOP - (subject.left + subject.picture.width) / DETAIL if stops else 28.0

    def drive(time: float) -> tuple[float, float]:
        eased = 1 - (1 - min(1.0, time / 0.6)) ** 2 if stops else time
        return end - 118 * (1 - eased), 0.5 * math.sin(24 * time) * (eased < 1)

    return drive


def _draw_drops(frame: Image.Image, drops: Stroke, places: npt.NDArray[np.float64], time: float) -> None:
    """Draw falling snow or rain, or rising bubbles, at a time 0..1; each drop has a place and a size 0..1."""
    pen = ImageDraw.Draw(frame, "RGBA")
    color = (*ImageColor.getrgb(drops.fill), round(255 * drops.number("alpha", 1.0)))
    speed, radii = drops.points[0].imag, drops.points[1] * DETAIL
    for x, y, size in places.tolist():
        left = (x + 0.01 * math.sin(9 * time + 6 * size)) * frame.width
        top = (y + speed * (0.7 + 0.6 * size) * time) % 1 * frame.height
        rx, ry = radii.real * (0.5 + size), radii.imag * (0.5 + size)
        pen.ellipse([left - rx, top - ry, left + rx, top + ry], color)


def manifest_line(scene: Scene) -> str:
    """Format a scene's line in a JSONL manifest, with its line break."""
    entry = {
        "uri": scene.file_name,
        "captions": list(scene.captions),
        "id": scene.id,
        "split": scene.split,
        "metadata": {
            "subject": scene.subject,
            "color": scene.color,
            "place": scene.place,
            "with": scene.companion,
        },
    }
    return json.dumps(entry) + "\n"


def write_scene(folder: Path, scene: Scene) -> Path:
    """Draw a scene, write its mp4 file atomically, and return the file's path."""
    path = folder / scene.file_name
    encode_mp4(render_scene(scene), path, fps=FRAMES_PER_SECOND)
    return path


def write_scenes(
    root: Path,
    scenes: Mapping[str, Sequence[Scene]],
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write ``root/<domain>/<scene ID>.mp4``; existing videos are kept."""
    missing = []
    for name, members in scenes.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        missing += [(folder, scene) for scene in members if not (folder / scene.file_name).exists()]
    total = sum(map(len, scenes.values()))
    # Spawn, since torch may have threads and locks that do not survive a fork. The parent handles interrupts.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(workers, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        written = executor.map(write_scene, *zip(*missing, strict=True), chunksize=4) if missing else ()
        for done, _ in enumerate(written, total - len(missing) + 1):
            progress(done, total)
    finally:
        executor.shutdown(cancel_futures=True)
    progress(total, total)


def encode_mp4(frames: npt.NDArray[np.uint8], path: Path, *, fps: int) -> None:
    """Write RGB frames ``uint8 [count, height, width, 3]`` of even size to an mp4 file (H.264, yuv420p, index before
    the data), which appears atomically. Equal frames give equal files.
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
