"""Compare the throughput of ingest with bounds measured in the same run; ``make bench-ingest``.

    python -m benchmarks.ingest.ingest_cost --out DIR

Each row is a ratio of two rates in videos per second, as the median over rounds. Within a round, both rates are
measured right after each other, or file by file in turn. Absolute rates depend on the machine and on its other load.

- Decoding: :class:`media.VideoDecoder` with hash, frame cache and thumbnail, against a bare PyAV loop that decodes the
  same frames and does nothing else.
- Embedding: cached frames to vectors, against the image tower alone on ready tensors at its best batch size.
- A task's probing and embedding: workers on a catalog and a broker, against the same bounds; then two workers against
  one. Two bare processes against one show how much a second process gains on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import av
import httpx
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.ingest.clip_files import write_ordinary_clips, write_tiny_clips
from benchmarks.ingest.embedded_service import (
    FINAL_STATES,
    WORKER_NICE,
    additional_workers,
    create,
    embedded_service,
)
from benchmarks.reporting.markdown_tables import markdown_table
from media import VideoDecoder, frame_cache_path, sample_times
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from trainer.methods import start_method
from trainer.task_data import Clip, load_frames
from trainer.video_embedding import embed_clips

_BOUND_TARGET = 0.8
_WORKERS_TARGET = 1.7
_BATCHES = (1, 2, 4, 8, 16)  # videos per forward pass


@dataclass
class Row:
    """A row in the table.

    Attributes:
        name: Name of the measurement.
        target: Minimum ratio; None without a target.
        rates: Pairs of videos per second, one per round; the ratio is second over first.
    """

    name: str
    target: float | None
    rates: list[tuple[float, float]] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios."""
        return median(second / first for first, second in self.rates)

    @property
    def cells(self) -> list[str]:
        """The row's cells in the table."""
        ratios = [second / first for first, second in self.rates]
        target = "–" if self.target is None else f"≥ {self.target:g}"
        verdict = "" if self.target is None else "yes" if self.ratio >= self.target else "no"
        rates = (f"{median(pair[place] for pair in self.rates):.2f}" for place in (0, 1))
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        return [self.name, *rates, f"{self.ratio:.2f}", spread, target, verdict]


def measure_decoding(
    name: str, paths: Sequence[Path], folder: Path, *, frames: int, size: int, rounds: int
) -> Row:
    """Measure decoding by the product against bare decoding, file by file in turn."""
    row = Row(f"decoding, {name}: product over bare PyAV", _BOUND_TARGET)
    with VideoDecoder() as decoder:

        def decode(path: Path) -> None:
            decoder.decode(
                path, frames=frames, size=size, thumbnail=folder / f"{path.stem}.jpg", cache=folder / "frames"
            )

        decode(paths[0])  # starts the process
        for _ in range(rounds):
            bare = product = 0.0
            for path in paths:
                start = time.perf_counter()
                bare_frames(path, frames)
                middle = time.perf_counter()
                decode(path)
                bare, product = bare + middle - start, product + time.perf_counter() - middle
            row.rates.append((len(paths) / bare, len(paths) / product))
    return row


def measure_embedding(backbone: str, paths: Sequence[Path], folder: Path, *, rounds: int) -> Row:
    """Measure the embedding of cached frames against the image tower alone."""
    loaded = load_backbone(backbone)
    method = start_method("zero_shot", loaded, {}, None)
    clips = []
    with VideoDecoder() as decoder:
        for number, path in enumerate(paths):
            info = decoder.decode(path, frames=loaded.spec.frames, size=loaded.spec.size, cache=folder)
            clips.append(
                Clip(path.name, number, frame_cache_path(folder, *loaded.spec, info.content_hash), (), None)
            )
    frames = load_frames(clips)
    row = Row(f"embedding, {backbone}: product over bare tower", _BOUND_TARGET)
    for _ in range(rounds + 1):
        bare, _ = best_forward_rate(loaded, frames)
        start = time.perf_counter()
        embed_clips(method.encode_videos, clips)
        row.rates.append((bare, len(clips) / (time.perf_counter() - start)))
    del row.rates[0]  # it allocated buffers
    return row


def measure_workers(backbone: str, paths: Sequence[Path], folder: Path, *, rounds: int) -> list[Row]:
    """Measure tasks ingested by one worker and by two workers per queue, against bare processes.

    Args:
        paths: Distinct video files.
        rounds: Number of rounds; in each, one worker and then two ingest all files as a domain.
    """
    spec = load_backbone(backbone).spec
    bare = Row("bare PyAV: two processes over one", None)
    probing = Row(f"probing of a task, {backbone}: one worker over bare PyAV", _BOUND_TARGET)
    scaling = {
        stage: Row(f"{stage} of a task, {backbone}: two workers over one", _WORKERS_TARGET)
        for stage in ("probing", "embedding")
    }
    settings = {
        "CINESTRATA_BACKBONE": backbone,
        "CINESTRATA_MEDIA_ROOT": str(paths[0].parent.resolve()),
        "CINESTRATA_TORCH_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    count = len(paths)
    with (
        ProcessPoolExecutor(2, get_context("spawn"), os.nice, (WORKER_NICE,)) as pool,
        embedded_service(folder, settings) as api,
    ):
        decode_concurrently(pool, paths[:2], spec.frames, 2)  # starts the processes
        for number in range(rounds + 1):
            alone = count / decode_concurrently(pool, paths, spec.frames, 1)
            one = _ingest(api, f"one worker {number}", paths)
            both = count / decode_concurrently(pool, paths, spec.frames, 2)
            with additional_workers(folder, settings):
                _ingest(api, f"start of two workers {number}", paths[:4])  # loads the backbone
                two = _ingest(api, f"two workers {number}", paths)
            bare.rates.append((alone, both))
            probing.rates.append((alone, one["probing"]))
            for stage, row in scaling.items():
                row.rates.append((one[stage], two[stage]))
            sys.stderr.write(f"round {number}: bare {alone:.1f}, {both:.1f}; one {one}, two {two}\n")
    rows = [bare, probing, *scaling.values()]
    for row in rows:
        del row.rates[0]  # the worker loaded the backbone for its first task
    return rows


def _ingest(api: httpx.Client, name: str, paths: Sequence[Path]) -> dict[str, float]:
    """Ingest videos without captions as a domain; returns videos per second by stage, from the task's events."""
    videos = [{"uri": str(path.resolve())} for path in paths]
    task = create(api, "/tasks", {"name": name, "videos": videos})
    entered: dict[str, float] = {}
    stage = None
    with api.stream("GET", f"/tasks/{task}/events") as events:
        for line in events.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            stage = event["data"].get("state" if event["kind"] == "state" else "stage")
            if event["kind"] in ("state", "progress") and stage:
                entered.setdefault(stage, datetime.fromisoformat(event["at"]).timestamp())
            if stage in FINAL_STATES:
                break
    if "ready" not in entered:
        raise RuntimeError(f"{name}: the task ended as {stage}")
    return {
        stage: len(paths) / (entered[end] - entered[start])
        for stage, start, end in (("probing", "probing", "waiting"), ("embedding", "indexing", "evaluating"))
    }


def main() -> None:
    """Parse the command line, measure, and write ``ingest.json`` and ``ingest.md``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clips", type=int, default=24, help="number of videos of 640 × 360 pixels and 10 s")
    parser.add_argument(
        "--videos", type=Path, help="folder of mp4 files to measure instead of generated ones"
    )
    parser.add_argument("--folder", type=Path, help="folder of generated clips (default: a temporary one)")
    parser.add_argument("--skip-workers", action="store_true", help="measure decoding and embedding only")
    parser.add_argument("--out", type=Path, default=Path("bench-ingest"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cinestrata-ingest-") as temporary:
        folder = options.folder or Path(temporary)
        ordinary = (
            sorted(options.videos.rglob("*.mp4"))[: options.clips]
            if options.videos
            else write_ordinary_clips(folder / "ordinary", options.clips)
        )
        tiny = [folder / "tiny" / path for path in write_tiny_clips(folder / "tiny", 10 * options.clips)]
        scratch = Path(temporary) / "scratch"
        rounds = options.rounds
        rows = [
            measure_decoding("10 s of 640 × 360", ordinary, scratch, frames=8, size=224, rounds=rounds),
            measure_decoding("2 s of 64 × 64", tiny, scratch, frames=8, size=56, rounds=rounds),
            measure_embedding("small", ordinary[:16], scratch / "small", rounds=rounds),
            measure_embedding("tiny", tiny[:64], scratch / "tiny", rounds=rounds),
        ]
        rows[1].target = None  # fixed costs per file and process exceed the decoding of eight tiny frames
        _write(options.out, rows)
        if not options.skip_workers:
            shutil.rmtree(scratch)
            rows += measure_workers("small", ordinary, Path(temporary) / "library", rounds=rounds)
    sys.stdout.write(_write(options.out, rows))


def _write(out: Path, rows: Sequence[Row]) -> str:
    """Write the rows as a table, which is returned, and as JSON."""
    table = markdown_table(
        ["measurement", "first, videos/s", "second, videos/s", "ratio", "rounds", "target", "met"],
        [row.cells for row in rows],
    )
    (out / "ingest.md").write_text(table, encoding="utf-8")
    facts = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
    }
    (out / "ingest.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return table


if __name__ == "__main__":
    main()


def bare_frames(path: Path, frames: int) -> list[npt.NDArray[np.uint8]]:
    """Decode the full-size RGB frames on display at a video's sample times.

    One thread decodes every frame up to the last one needed. Nothing is checked, hashed, scaled or written.
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
    """Time the bare decoding of several files one by one, in seconds."""
    start = time.perf_counter()
    for path in paths:
        bare_frames(path, frames)
    return time.perf_counter() - start


def decode_concurrently(
    pool: ProcessPoolExecutor, paths: Sequence[Path], frames: int, processes: int
) -> float:
    """Time the bare decoding of several files by several processes in a pool, in seconds."""
    start = time.perf_counter()
    parts = [paths[index::processes] for index in range(processes)]
    list(pool.map(decode_all, parts, [frames] * processes))
    return time.perf_counter() - start


@torch.inference_mode()
def best_forward_rate(backbone: Backbone, frames: Tensor) -> tuple[float, int]:
    """Measure the image tower alone on normalized pixels, at the fastest of several batch sizes.

    Args:
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
