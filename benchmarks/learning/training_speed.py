"""Measure training speed: the product's loop against a straightforward loop on the same videos in one process.

The straightforward loop decodes every video file at every step, computes in float32 and pads texts to the context
length. Each optimization in the product's loop is measured alone, and the full set is measured without each of them.
Runs alternate, so that other load on the machine affects all variants. Results are medians of rates, and of ratios
within one round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.frame_sources import FileFrames, write_frames
from benchmarks.data.world import make_domain, write_mp4
from benchmarks.errors import ProtocolError
from benchmarks.learning.run_costs import ResourceMeter
from benchmarks.rivals import METHODS, configure, start_method
from models.backbones import OPEN_CLIP_PREFIX
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import load_backbone
from models.backbones.open_clip_backbone import OpenClipBackbone
from models.backbones.tokenizer import clip_tokenizer
from models.backbones.tower_computation import compute_device, has_fast_bfloat16, mixed_precision
from trainer.methods import Method
from trainer.task_data import Clip, Pair, TaskData, draw_batches, load_frames
from trainer.training_loop import fit

_CAPTIONS = 5  # captions per video
_CATEGORIES = 3  # in the domain
_RANDOM = "/random"


@dataclass(frozen=True)
class SpeedPlan:
    """Sizes of the benchmark.

    Attributes:
        backbone: Name of a backbone, or ``open_clip:<model>/random`` for a model with random weights.
        batch: Pairs per step; by default as in the method's recipe for the backbone.
        frames: Frames per video; the backbone's by default.
        repeats: Runs per loop variant.
        device: ``cpu`` or ``cuda``.
    """

    backbone: str = "tiny"
    method: str = "ffa_tame"
    batch: int | None = None
    frames: int | None = None
    steps: int = 5
    repeats: int = 5
    device: str = "cpu"

    @property
    def size(self) -> int:
        """Pairs per step."""
        return self.batch or configure(self.method, self.backbone, {}).batch_size


@dataclass(frozen=True)
class LoopVariant:
    """A training loop with a set of optimizations.

    Attributes:
        label: Name in the table.
        cached: Whether frames are decoded once.
        mixed: Whether matrix products use bfloat16 where the hardware supports it.
        short: Whether texts are padded to the longest text of their batch.
        product: Whether the loop is :func:`trainer.training_loop.fit`, which has all three optimizations.
        checkpointing: Whether activation checkpointing is on; product loop only.
        kept: Whether the output of frozen first blocks is computed once per video; product loop only.
    """

    label: str
    cached: bool = False
    mixed: bool = False
    short: bool = False
    product: bool = False
    checkpointing: bool = False
    kept: bool = True


_STRAIGHTFORWARD = LoopVariant("straightforward")
_ALL = LoopVariant("all three", cached=True, mixed=True, short=True)
_PRODUCT = replace(_ALL, label="the product", product=True)
LOOPS = (
    _STRAIGHTFORWARD,
    replace(_STRAIGHTFORWARD, label="+ frames decoded once", cached=True),
    replace(_STRAIGHTFORWARD, label="+ bfloat16", mixed=True),
    replace(_STRAIGHTFORWARD, label="+ short padding", short=True),
    replace(_ALL, label="all, but frames decoded at every step", cached=False),
    replace(_ALL, label="all, but float32", mixed=False),
    replace(_ALL, label="all, but padded to the context length", short=False),
    _ALL,
    _PRODUCT,
    replace(_PRODUCT, label="the product, checkpointing", checkpointing=True),
    replace(_PRODUCT, label="the product, but frozen blocks at every step", kept=False),
)


@dataclass
class LoopSpeed:
    """Speed and memory of one loop variant.

    Attributes:
        rates: Videos per second in each run.
        ratios: Rates relative to those of the straightforward loop in the same round.
        peak_mib: Peak memory of a run in its own process, minus the memory before the run; on a GPU, the peak that
            torch allocated. None if not measured.
    """

    loop: LoopVariant
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    peak_mib: float | None = None


@dataclass
class SpeedReport:
    """Result of the benchmark.

    Attributes:
        plan: Sizes of the benchmark.
        rows: Speed and memory of each loop variant.
        reading: Share of the product loop's step spent on reading frames from the cache.
        padding: Share of padding tokens in the product loop and in the straightforward loop.
        threads: Number of torch threads.
        bfloat16: Whether the hardware supports bfloat16 well.
    """

    plan: SpeedPlan
    rows: list[LoopSpeed]
    reading: float
    padding: tuple[float, float]
    threads: int
    bfloat16: bool

    def save(self, folder: Path) -> None:
        """Write ``speed.json`` and ``speed.md``."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "speed.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        (folder / "speed.md").write_text(speed_table(self), encoding="utf-8")


def measure_speed(plan: SpeedPlan, folder: Path) -> SpeedReport:
    """Train with every loop variant in alternating runs.

    Args:
        plan: Sizes of the benchmark.

    Raises:
        ProtocolError: The method is not trainable, or the benchmark does not support the backbone.
    """
    bench = SpeedBenchmark(plan, folder)
    rows = [LoopSpeed(loop) for loop in LOOPS if loop.kept or bench.freezes]
    for turn in range(plan.repeats + 1):
        meter = ResourceMeter(bench.backbone.device)
        for row in rows if turn % 2 else rows[::-1]:
            bench.run(row.loop, meter)
        if turn:  # the first round is a warm-up
            rates = [len(bench.task.pairs) / meter.seconds[row.loop.label][0] for row in rows]
            for row, rate in zip(rows, rates, strict=True):
                row.rates.append(rate)
                row.ratios.append(rate / rates[0])
    for row in rows:
        if row.loop.product or row.loop == _STRAIGHTFORWARD:
            row.peak_mib = measure_peak_in_process(row.loop, plan, folder)
    product = next(row for row in rows if row.loop == _PRODUCT)
    return SpeedReport(
        plan=plan,
        rows=rows,
        reading=float(np.median(product.rates)) / bench.reading_rate(),
        padding=(bench.padding(_PRODUCT), bench.padding(_STRAIGHTFORWARD)),
        threads=torch.get_num_threads(),
        bfloat16=has_fast_bfloat16(bench.backbone.device),
    )


def speed_table(speed: SpeedReport) -> str:
    """Format the result as Markdown."""
    plan = speed.plan
    note = "" if speed.bfloat16 else " This hardware has no bfloat16, so it is never used."
    lines = [
        f"`{plan.method}` on `{plan.backbone}`, {plan.device}, threads of torch: {speed.threads}; {plan.steps} steps "
        f"of {plan.size} pairs a run; median (least to most) of {plan.repeats} runs in turns.{note}",
        "",
        "| loop | videos/s ↑ | × straightforward ↑ | peak MiB ↓ |",
        "| --- | --- | --- | --- |",
    ]
    for row in speed.rows:
        peak = "" if row.peak_mib is None else f"{row.peak_mib:.0f}"
        lines.append(f"| {row.loop.label} | {_spread(row.rates, 1)} | {_spread(row.ratios, 2)} | {peak} |")
    product, straightforward = speed.padding
    lines += [
        "",
        f"Reading frames takes {speed.reading:.1%} of the product's step. Of all tokens, {product:.0%} are padding, "
        f"{straightforward:.0%} when texts are padded to the context length. Peak memory is the memory that a run "
        "adds to the memory in use.",
        "",
    ]
    return "\n".join(lines)


class SpeedBenchmark:
    """A backbone and a task of mp4 files, trained with any loop variant.

    Args:
        plan: Sizes of the benchmark.
    """

    def __init__(self, plan: SpeedPlan, folder: Path) -> None:
        self.plan = plan
        self.backbone = load_benchmark_backbone(plan)
        self.padded_backbone = pad_texts(self.backbone)
        self.task, self._files = _videos(plan, self.backbone.spec, folder)

    def run(self, loop: LoopVariant, meter: ResourceMeter) -> None:
        """Train from new weights, measuring only the training."""
        settings = {
            "epochs": 1,
            "batch_size": self.plan.size,
            "precision": "auto" if loop.mixed else "float32",
            "checkpointing": loop.checkpointing,
            **({} if loop.kept else {"feature_cache_bytes": 0}),
        }
        method = start_method(self.plan.method, self._backbone(loop), settings, None)
        method.begin_task(self.task.task_id, self.task.name)
        with meter.phase(loop.label):
            if loop.product:
                fit(method, self.task)
            else:
                self._train(method, loop)

    @property
    def freezes(self) -> bool:
        """Check whether the method freezes the first blocks of the image tower."""
        return start_method(self.plan.method, self.backbone, {}, None).frozen_image_block_count > 0

    def reading_rate(self) -> float:
        """Measure how many videos per second are read from the frame cache."""
        clips = [pair.clip for pair in self.task.pairs]
        began = time.perf_counter()
        for start in range(0, len(clips), self.plan.size):
            load_frames(clips[start : start + self.plan.size])
        return len(clips) / (time.perf_counter() - began)

    def padding(self, loop: LoopVariant) -> float:
        """Compute the share of tokens after the end of their text."""
        backbone, tokens, texts = self._backbone(loop), 0, 0
        for batch in self._batches():
            ids = backbone.tokenize([pair.caption for pair in batch])
            tokens += ids.numel()
            texts += int((backbone.end_of_text(ids) + 1).sum())
        return 1 - texts / tokens

    def _train(self, method: Method, loop: LoopVariant) -> None:
        """Run a straightforward training loop with the variant's optimizations."""
        device = self.backbone.device
        optimizer = torch.optim.AdamW(method.parameter_groups())
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        method.train(True)
        for batch in self._batches():
            clips = [pair.clip for pair in batch]
            frames = load_frames(clips) if loop.cached else self.decode(clips)
            optimizer.zero_grad()
            with mixed_precision(enabled=loop.mixed and has_fast_bfloat16(device)):
                loss = method.loss(frames.to(device), [pair.caption for pair in batch], None)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            method.after_step()
        method.train(False)

    def _backbone(self, loop: LoopVariant) -> Backbone:
        return self.backbone if loop.short else self.padded_backbone

    def _batches(self) -> list[list[Pair]]:
        return draw_batches(self.task.pairs, self.plan.size, np.random.default_rng(0))

    def decode(self, clips: Sequence[Clip]) -> Tensor:
        """Decode clips' frames ``uint8 [n, M, H, W, 3]`` from their mp4 files."""
        spec = self.backbone.spec
        return torch.from_numpy(np.stack([FileFrames(self._files[clip.id]).frames(*spec) for clip in clips]))


def _videos(plan: SpeedPlan, spec: FrameSpec, folder: Path) -> tuple[TaskData, dict[str, Path]]:
    """Create a task with one caption per pair in all steps; returns it with each clip's mp4 file."""
    pairs = plan.size * plan.steps
    count = max(plan.size, -(-pairs // _CAPTIONS))
    clips, files = [], {}
    drawn = make_domain(
        "night-traffic",
        seed=5,
        train=-(-count // _CATEGORIES),
        val=0,
        test=0,
        categories=_CATEGORIES,
        captions=_CAPTIONS,
    )
    folder.mkdir(parents=True, exist_ok=True)
    for number, clip in enumerate(drawn[:count]):
        files[clip.id] = folder / f"{clip.id}.mp4"
        frames = folder / f"{clip.id}-{spec.frames}x{spec.size}.npy"
        if not files[clip.id].exists():
            write_mp4(clip, files[clip.id])
        if not frames.exists():
            write_frames((FileFrames(files[clip.id]), frames), *spec)
        captions = clip.captions[: pairs // count + (number < pairs % count)]
        clips.append(Clip(clip.id, number, frames, captions, "train"))
    return TaskData("speed", "speed", tuple(clips)), files


def load_benchmark_backbone(plan: SpeedPlan) -> Backbone:
    """Load a plan's backbone; raise ProtocolError if it cannot be measured."""
    if plan.method in METHODS and not METHODS[plan.method].is_trainable:
        raise ProtocolError(f"method {plan.method!r} is not trainable; choose another method")
    shape = plan.backbone.startswith(OPEN_CLIP_PREFIX) and plan.backbone.endswith(_RANDOM)
    backbone = (
        random_backbone(plan.backbone, plan.frames or 12)
        if shape
        else load_backbone(plan.backbone, plan.frames)
    )
    if not backbone.has_causal_text:
        raise ProtocolError(
            f"the speed of backbone {plan.backbone!r} is not measured: it pads texts itself; choose 'tiny' or "
            f"'{OPEN_CLIP_PREFIX}<model>/<weights, or random>'"
        )
    return backbone.to(plan.device)


def random_backbone(name: str, frames: int) -> Backbone:
    """Create an open_clip model with random weights, which do not affect speed; ``name`` as in :class:`SpeedPlan`."""
    model = name.removeprefix(OPEN_CLIP_PREFIX).removesuffix(_RANDOM)
    if open_clip.get_model_config(model) is None:
        raise ProtocolError(f"open_clip knows no model {model!r}")
    torch.manual_seed(0)
    clip: Any = open_clip.create_model(model, pretrained=None)
    spec = FrameSpec(frames, clip.visual.image_size[0])
    tokenizer = clip_tokenizer(model, clip.context_length)
    normalisation = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    return OpenClipBackbone(name, clip, tokenizer, spec, *normalisation)


def pad_texts(backbone: Backbone) -> Backbone:
    """Copy a backbone and make the copy pad texts to the context length."""
    padded = backbone.clone()
    length = backbone.text.context_length

    def tokenize(texts: Sequence[str]) -> Tensor:
        ids = backbone.tokenize(texts)
        return F.pad(ids, (0, length - ids.shape[1]))

    padded.tokenize = tokenize  # type: ignore[method-assign]
    return padded


def measure_peak_in_process(loop: LoopVariant, plan: SpeedPlan, folder: Path) -> float:
    """Measure a loop variant's peak memory in a new process; see :class:`LoopSpeed`."""
    # The process is spawned: a fork would start with this process's memory.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure_peak, loop, plan, folder, torch.get_num_threads()).result()


def measure_peak(loop: LoopVariant, plan: SpeedPlan, folder: Path, threads: int) -> float:
    """Measure the peak memory in MiB that a run of a loop variant adds in this process."""
    torch.set_num_threads(threads)
    bench = SpeedBenchmark(replace(plan, steps=min(plan.steps, 2)), folder)
    meter = ResourceMeter(bench.backbone.device)
    with meter.phase("before"):
        pass
    bench.run(loop, meter)
    if loop.label in meter.peak_device_mib:
        return meter.peak_device_mib[loop.label][0]
    return meter.peak_mib[loop.label][0] - meter.peak_mib["before"][0]


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{np.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    """Parse the command line, measure, and print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backbone", default="tiny", help="or open_clip:<model>/random for random weights")
    parser.add_argument("--method", default="ffa_tame")
    parser.add_argument("--batch", type=int, help="pairs per step (default: the method's)")
    parser.add_argument("--frames", type=int, help="frames per video (default: the backbone's)")
    parser.add_argument("--steps", type=int, default=5, help="steps per run")
    parser.add_argument("--repeats", type=int, default=5, help="runs per variant")
    parser.add_argument("--device", default="auto", type=lambda name: compute_device(name).type)
    parser.add_argument("--out", type=Path, default=Path("cinestrata-data/bench/speed"))
    options = vars(parser.parse_args())
    out = options.pop("out")
    report = measure_speed(SpeedPlan(**options), out / "videos")
    report.save(out)
    sys.stdout.write(speed_table(report))


if __name__ == "__main__":
    main()
