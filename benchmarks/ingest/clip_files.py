"""Write video files for measurements: any number of tiny distinct files, or clips of ordinary size.

A file is an encoded clip followed by a ``free`` box with its number (ISO/IEC 14496-12, "Free Space Box"), which
decoders skip. A hundred thousand distinct files thus cost the encoding of a few clips, and no two have the same hash.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from media.scenes.scene_files import encode_mp4

_PICTURES = 64  # clips that decode differently
_PER_FOLDER = 1000


def write_tiny_clips(folder: Path, count: int) -> list[Path]:
    """Write distinct mp4 files of 64 × 64 pixels and two seconds, unless they exist; returns relative paths."""
    paths = [Path(f"{number // _PER_FOLDER:04}") / f"{number:07}.mp4" for number in range(count)]
    _write_distinct([folder / path for path in paths], frames=8, width=64, height=64, fps=4)
    return paths


def write_ordinary_clips(folder: Path, count: int) -> list[Path]:
    """Write distinct H.264 clips of 640 × 360 pixels, ten seconds, and 25 frames per second, unless they exist."""
    paths = [folder / f"{number:04}.mp4" for number in range(count)]
    _write_distinct(paths, frames=250, width=640, height=360, fps=25)
    return paths


def _write_distinct(paths: Sequence[Path], *, frames: int, width: int, height: int, fps: int) -> None:
    contents = []
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(min(_PICTURES, len(paths))):
            path = Path(temporary) / "clip.mp4"
            encode_mp4(_camera_motion(number, frames, width, height), path, fps=fps)
            contents.append(path.read_bytes())
    for number, path in enumerate(paths):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            box = struct.pack(">I4sQ", 16, b"free", number)
            path.write_bytes(contents[number % len(contents)] + box)


def _camera_motion(seed: int, frames: int, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Render views ``uint8 [frames, height, width, 3]`` of a smooth random picture along a curve."""
    rng = np.random.default_rng(seed)
    margin, grain = 3 * width // 8, max(8, width // 26)  # of the camera's motion; pixels per random value
    size = width + margin, height + margin
    coarse = rng.integers(0, 256, (size[1] // grain, size[0] // grain, 3), np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.int16)
    picture = np.clip(picture + rng.normal(0, 6, picture.shape), 0, 255).astype(np.uint8)
    phases = 2 * np.pi * np.linspace(0, 1, frames)
    left = np.round((1 + np.sin(phases + rng.uniform(0, 6))) / 2 * margin).astype(int)
    top = np.round((1 + np.cos(phases + rng.uniform(0, 6))) / 2 * margin).astype(int)
    return np.stack([picture[y : y + height, x : x + width] for x, y in zip(left, top, strict=True)])
