"""Clips as mp4 files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.data.world.renderer import render
from benchmarks.data.world.scene_model import Clip
from media.mp4_encoding import encode_mp4

__all__ = ["frame_times", "write_mp4"]


def frame_times(count: int) -> list[float]:
    """Mid-points of ``count`` equal intervals of [0, 1]."""
    return [(index + 0.5) / count for index in range(count)]


def write_mp4(clip: Clip, path: Path, *, size: int = 192, fps: int = 10, seconds: float = 3.0) -> None:
    """Render a clip to an mp4 file (H.264, yuv420p, index before the data), which appears atomically.

    Args:
        clip: Clip to draw.
        path: File to write; its folder must exist.
        size: Side of the square picture in pixels, even.
        fps: Frames per second.
        seconds: Duration, rounded to whole frames.

    Raises:
        ValueError: ``size`` is odd, which yuv420p does not allow, or the clip would have no frame.
    """
    count = round(fps * seconds)
    if size % 2 or count < 1:
        raise ValueError(f"size must be even and fps × seconds at least 1, got size={size}, {count} frames")
    encode_mp4(render(clip, size=size, times=frame_times(count)), path, fps=fps)
