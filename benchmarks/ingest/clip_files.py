"""Write video files for measurements: any number of tiny distinct files, or clips of ordinary size.

A tiny file is a clip of the demo, scaled down, followed by a ``free`` box with its number (ISO/IEC 14496-12, "Free
Space Box"), which decoders skip. A hundred thousand distinct files thus cost the encoding of a few clips, and no two
have the same content hash.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from media.frame_images import crop_square
from media.mp4_encoding import encode_mp4
from media.scenes.scene_domains import SCENE_DOMAINS, make_scenes
from media.scenes.scene_rendering import render_scene

_TINY_SIZE, _TINY_FPS, _TINY_SECONDS = 64, 4, 2.0
_PER_FOLDER = 1000
_MAX_PICTURES = 400
_WIDTH, _HEIGHT, _FPS = 640, 360, 25
_MARGIN = 240  # pixels that the camera moves over
_GRAIN = 24  # pixels per random value in a picture


def write_tiny_clips(folder: Path, count: int, *, pictures: int = 64) -> list[Path]:
    """Write distinct mp4 files of 64 × 64 pixels and two seconds; existing files are kept.

    Args:
        folder: Folder for the files, in subfolders of a thousand.
        pictures: Number of clips that decode differently; file i contains clip i modulo this number.

    Returns:
        Paths relative to the folder.

    Raises:
        ValueError: ``pictures`` is not between 1 and 400.
    """
    sources = _encoded_clips(min(pictures, count))
    paths = []
    for number in range(count):
        path = Path(f"{number // _PER_FOLDER:04}") / f"{number:07}.mp4"
        paths.append(path)
        if (folder / path).exists():
            continue
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(sources[number % len(sources)] + _free_box(struct.pack(">Q", number)))
    return paths


def write_ordinary_clips(folder: Path, count: int, *, seconds: float = 10.0) -> list[Path]:
    """Write H.264 clips of 640 × 360 pixels and 25 frames per second; existing files are kept.

    In each clip, the camera moves over a different random picture.

    Args:
        folder: Folder for the files; created if missing.
        seconds: Duration of each clip.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:04}-{seconds:g}s.mp4" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            encode_mp4(_camera_motion(number, round(seconds * _FPS)), path, fps=_FPS)
    return paths


def _encoded_clips(count: int) -> Sequence[bytes]:
    """Encode small clips from the demo's domains, in turn."""
    if not 1 <= count <= _MAX_PICTURES:
        raise ValueError(f"pictures: {count} is not between 1 and {_MAX_PICTURES}")
    each = -(-count // len(SCENE_DOMAINS))
    domains = (make_scenes(name, train=each, val=0, test=0) for name in SCENE_DOMAINS)
    scenes = islice(chain.from_iterable(zip(*domains, strict=True)), count)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        contents = []
        for scene in scenes:
            encode_mp4(_shrink(render_scene(scene)), path, fps=_TINY_FPS)
            contents.append(path.read_bytes())
    return contents


def _shrink(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Take frames at equal distances, and scale their center squares."""
    chosen = np.linspace(0, len(frames) - 1, round(_TINY_FPS * _TINY_SECONDS)).round().astype(int)
    return np.stack([crop_square(Image.fromarray(frames[index]), _TINY_SIZE) for index in chosen])


def _free_box(payload: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(payload), b"free") + payload


def _camera_motion(seed: int, frames: int) -> npt.NDArray[np.uint8]:
    """Render views ``uint8 [frames, 360, 640, 3]`` of a smooth random picture along a curve."""
    rng = np.random.default_rng(seed)
    size = _WIDTH + _MARGIN, _HEIGHT + _MARGIN
    coarse = rng.integers(0, 256, (size[1] // _GRAIN, size[0] // _GRAIN, 3), np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.int16)
    picture = np.clip(picture + rng.normal(0, 6, picture.shape), 0, 255).astype(np.uint8)
    phases = 2 * np.pi * np.linspace(0, 1, frames)
    left = np.round((1 + np.sin(phases + rng.uniform(0, 6))) / 2 * _MARGIN).astype(int)
    top = np.round((1 + np.cos(phases + rng.uniform(0, 6))) / 2 * _MARGIN).astype(int)
    return np.stack([picture[y : y + _HEIGHT, x : x + _WIDTH] for x, y in zip(left, top, strict=True)])
