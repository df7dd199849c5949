"""Compare the throughput of ingest with bounds measured in the same run; ``make bench-ingest``.

    python -m benchmarks.ingest.ingest_cost --out DIR

Each row is a ratio of two rates in videos per second, as the median over rounds. Within a round, both rates are
measured right after each other, or file by file in turn. Absolute rates depend on the machine and on its other load.

- Decoding: :class:`media.VideoDecoder` with hash, frame cache and thumbnail, against a bare PyAV loop that decodes the
  same frames and does nothing else.
- Embedding: cached frames to vectors, against the image tower alone on ready tensors at its best batch size.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.ingest.clip_files import write_ordinary_clips, write_tiny_clips
from benchmarks.reporting.markdown_tables import write_json
from media import VideoDecoder, frame_cache_path, sample_times
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from trainer.methods import start_method
from trainer.task_data import Clip, load_frames

_TARGET = 0.8
_BATCHES = (1, 2, 4, 8, 16)  # videos per forward pass

Rates = list[tuple[float, float]]  # videos per second of the bound and of the product, one pair per round


def measure_decoding(paths: Sequence[Path], folder: Path, *, frames: int, size: int, rounds: int) -> Rates:
    """Measure decoding by the product against bare decoding, file by file in turn."""
    rates = []
    with VideoDecoder() as decoder:

        def decode(path: Path) -> None:
            thumbnail = folder / f"{path.stem}.jpg"
            decoder.decode(path, frames=frames, size=size, thumbnail=thumbnail, cache=folder / "frames")

        decode(paths[0])  # starts the process
        for _ in range(rounds):
            bare = product = 0.0
            for path in paths:
                start = time.perf_counter()
                bare_frames(path, frames)
                middle = time.perf_counter()
                decode(path)
                bare, product = bare + middle - start, product + time.perf_counter() - middle
            rates.append((len(paths) / bare, len(paths) / product))
    return rates


def bare_frames(path: Path, frames: int) -> list[npt.NDArray[np.uint8]]:
    """Decode the full-size RGB frames on display at a video's sample times in one thread, and do nothing else."""
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


def measure_embedding(name: str, paths: Sequence[Path], folder: Path, *, rounds: int) -> Rates:
    """Measure the embedding of cached frames against the image tower alone."""
    backbone = load_backbone(name)
    method = start_method("zero_shot", backbone, {}, None)
    clips = []
    with VideoDecoder() as decoder:
        for number, path in enumerate(paths):
            info = decoder.decode(path, frames=backbone.spec.frames, size=backbone.spec.size, cache=folder)
            frames_path = frame_cache_path(folder, *backbone.spec, info.content_hash)
            clips.append(Clip(path.name, number, frames_path, (), None))
    frames = load_frames(clips)
    rates = []
    for _ in range(rounds + 1):
        bare = best_forward_rate(backbone, frames)
        start = time.perf_counter()
        method.embed_videos(clips)
        rates.append((bare, len(clips) / (time.perf_counter() - start)))
    return rates[1:]  # the first round allocated buffers


@torch.inference_mode()
def best_forward_rate(backbone: Backbone, frames: Tensor) -> float:
    """Measure videos per second of the image tower alone on normalized pixels, at the best of several batch sizes."""
    tower = getattr(backbone.clip, "encode_image", backbone.clip.visual)
    rates = []
    for size in (size for size in _BATCHES if size <= len(frames)):
        batches = [backbone.pixels(batch) for batch in frames.split(size) if len(batch) == size]
        start = time.perf_counter()
        for pixels in batches:
            tower(pixels)
        rates.append(size * len(batches) / (time.perf_counter() - start))
    return max(rates)


def main() -> None:
    """Measure, print the ratios and write ``ingest.json``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clips", type=int, default=24, help="number of videos of 640 × 360 pixels and 10 s")
    parser.add_argument("--out", type=Path, default=Path("bench-ingest"))
    options = parser.parse_args()
    rounds: int = options.rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="cinestrata-ingest-") as temporary:
        folder = Path(temporary)
        ordinary = write_ordinary_clips(folder / "ordinary", options.clips)
        tiny = [folder / "tiny" / path for path in write_tiny_clips(folder / "tiny", 10 * options.clips)]
        measured = {
            "decoding over bare PyAV, 10 s of 640 × 360": measure_decoding(
                ordinary, folder / "decoded", frames=8, size=224, rounds=rounds
            ),
            "embedding over the bare tower, small": measure_embedding(
                "small", ordinary[:16], folder / "small", rounds=rounds
            ),
            "embedding over the bare tower, tiny": measure_embedding(
                "tiny", tiny[:64], folder / "tiny-frames", rounds=rounds
            ),
        }
    rows: list[dict[str, Any]] = []
    for name, rates in measured.items():
        ratios = [product / bound for bound, product in rates]
        rows.append({"name": name, "ratio": median(ratios), "target": _TARGET, "rates": rates})
        figures = " and ".join(f"{median(side):.2f}" for side in zip(*rates, strict=True))
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name}: {median(ratios):.2f} ({spread}; ≥ {_TARGET}; {figures} videos/s)")
    write_json(options.out / "ingest.json", {"cores": os.cpu_count(), "rows": rows})


if __name__ == "__main__":
    main()
