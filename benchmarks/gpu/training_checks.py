"""Measure training with realistic towers: rate, loss and memory, with and without gradient checkpointing."""

from __future__ import annotations

import gc
import time

from benchmarks.gpu.check_runner import CheckFailed, Figures, GpuPlan, TrainingSize
from benchmarks.gpu.drawn_frames import make_captions, write_task
from benchmarks.learning.run_costs import ResourceMeter
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.backbones.tower_computation import compute_device, has_fast_bfloat16
from trainer.methods import start_method
from trainer.task_data import TaskData
from trainer.training_loop import TrainingProgress, fit

_CAPTIONS = 5  # captions per video


def measure_training(plan: GpuPlan, size: TrainingSize) -> Figures:
    """Train for two epochs, with and without gradient checkpointing, and measure the second epoch.

    The first epoch warms up and fills the cache of the frozen blocks' outputs.
    """
    device = compute_device(plan.device)
    backbone = load_backbone(plan.backbone_name(size.model), plan.frames).to(device)
    frames, side = backbone.spec
    pairs = size.batch * size.steps
    videos = max(size.batch, -(-pairs // _CAPTIONS))
    captions = make_captions(pairs)
    task = write_task(plan.folder / "frames", videos=videos, frames=frames, size=side, captions=captions)
    figures: Figures = {
        "batch": size.batch,
        "frames": frames,
        "precision": "bfloat16" if has_fast_bfloat16(device) else "float32",
    }
    for prefix in ("", "checkpointing_"):
        found = _train(backbone, task, size, checkpointing=bool(prefix))
        figures |= {f"{prefix}{name}": value for name, value in found.items()}
        gc.collect()  # method and loop refer to each other, and the next peak must not include them
    if plan.device == "cuda":
        if figures["precision"] != "bfloat16":
            raise CheckFailed("the GPU is not used with bfloat16", figures)
        # Parts of a batch fill the same memory with and without checkpointing.
        saved = figures["peak_memory_gib"] - figures["checkpointing_peak_memory_gib"]
        if "micro_batch" not in figures and saved <= 0:
            raise CheckFailed("gradient checkpointing saves no memory", figures)
    return figures


def _train(backbone: Backbone, task: TaskData, size: TrainingSize, *, checkpointing: bool) -> Figures:
    """Train for two epochs; returns the rate of the second, the losses of the first and last step, and memory."""
    settings = {"epochs": 2, "batch_size": size.batch, "checkpointing": checkpointing}
    method = start_method(size.method, backbone, settings, None)
    method.begin_task(task.task_id, task.name)
    ticks: list[float] = []
    losses: list[float] = []

    def report(progress: TrainingProgress) -> None:
        if progress.loss is not None:
            losses.append(progress.loss)
        if progress.epoch == 1:
            ticks.clear()
        ticks.append(time.perf_counter())

    meter = ResourceMeter(backbone.device)
    with meter.phase("training"):
        fit(method, task, report=report)
    seconds, steps = ticks[-1] - ticks[0], len(ticks) - 1
    return {
        "videos_per_second": round(size.batch * steps / seconds, 2),
        "milliseconds_per_step": round(1000 * seconds / steps, 1),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "peak_memory_gib": meter.peak_gib("training"),
        **({"micro_batch": method.micro_batch} if method.micro_batch else {}),
    }
