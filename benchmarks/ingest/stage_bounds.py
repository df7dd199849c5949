"""Bounds of the stages of ingest: bare PyAV decoding of the same frames, and bare forward passes of the image tower."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from media import sample_times
from models.backbones.backbone import Backbone

__all__ = ["bare_frames", "best_forward_rate", "decode_all", "decode_concurrently"]

_BATCHES = (1, 2, 4, 8, 16)  # videos per forward pass


def bare_frames(path: Path, frames: int) -> list[npt.NDArray[np.uint8]]:
    """RGB frames on display at the sample times of a video, in full size.

    One thread decodes every frame up to the last. Nothing is checked, hashed, scaled or written.
    """
    pictures: list[npt.NDArray[np.uint8]] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        base = float(stream.time_base or 0)
        times = sample_times(float(stream.duration or 0) * base, frames)
        shown = None
        for frame in container.decode(stream):
            begins = ((frame.pts or 0) - (stream.start_time or 0)) * base
            while shown is not None and len(pictures) < frames and begins > times[len(pictures)]:
                pictures.append(np.asarray(shown.to_ndarray(format="rgb24"), np.uint8))
            if len(pictures) == frames:
                break
            shown = frame
        while shown is not None and len(pictures) < frames:
            pictures.append(np.asarray(shown.to_ndarray(format="rgb24"), np.uint8))
    return pictures


def decode_all(paths: Sequence[Path], frames: int) -> float:
    """Seconds of the bare decoding of several files, one after the other."""
    start = time.perf_counter()
    for path in paths:
        bare_frames(path, frames)
    return time.perf_counter() - start


def decode_concurrently(
    pool: ProcessPoolExecutor, paths: Sequence[Path], frames: int, processes: int
) -> float:
    """Seconds of the bare decoding of several files by several processes of a pool."""
    start = time.perf_counter()
    parts = [paths[index::processes] for index in range(processes)]
    list(pool.map(decode_all, parts, [frames] * processes))
    return time.perf_counter() - start


@torch.inference_mode()
def best_forward_rate(backbone: Backbone, frames: Tensor) -> tuple[float, int]:
    """Videos per second of the image tower alone on normalized pixels, at the fastest of several batch sizes.

    Args:
        backbone: Backbone of the tower.
        frames: Frames ``uint8 [n, M, H, W, 3]``.

    Returns:
        Videos per second, and the videos per batch.
    """
    rates = []
    for size in (size for size in _BATCHES if size <= len(frames)):
        batches = [backbone.pixels(batch) for batch in frames.split(size) if len(batch) == size]
        tower = _image_tower(backbone)
        start = time.perf_counter()
        for pixels in batches:
            tower(pixels)
        rates.append((size * len(batches) / (time.perf_counter() - start), size))
    return max(rates)


def _image_tower(backbone: Backbone) -> Callable[[Tensor], Any]:
    encode: Callable[[Tensor], Any] = getattr(backbone.clip, "encode_image", backbone.clip.visual)
    return encode
