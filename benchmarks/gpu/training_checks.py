"""Measure training with realistic towers: rate, memory, utilization, and how long the loop waits for data."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from benchmarks.gpu.check_plan import GpuPlan, TrainingSize
from benchmarks.gpu.check_runner import CheckFailed, Figures
from benchmarks.gpu.device_meter import DeviceMeter
from benchmarks.gpu.drawn_frames import make_captions, write_task
from models.backbones.backbone_loading import load_backbone
from models.backbones.tower_computation import compute_device, has_fast_bfloat16
from trainer.methods import Method, start_method
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
    peaks = []
    for checkpointing in (False, True):
        settings = {"epochs": 2, "batch_size": size.batch, "checkpointing": checkpointing}
        method = start_method(size.method, backbone, settings, None)
        method.begin_task(task.task_id, task.name)
        clock, meter = _LoopClock(method), DeviceMeter(device)
        with meter.measure():
            fit(method, task, report=clock.report)
        prefix = "checkpointing_" if checkpointing else ""
        found = {**clock.figures(size.batch), **meter.figures()}
        figures |= {f"{prefix}{name}": value for name, value in found.items()}
        if method.micro_batch:
            figures[f"{prefix}micro_batch"] = method.micro_batch
        peaks.append(meter.peak_gib)
        del method, clock
        gc.collect()  # they refer to each other, and the next peak must not include them
    if plan.device == "cuda":
        if figures["precision"] != "bfloat16":
            raise CheckFailed("the GPU is not used with bfloat16", figures)
        # Parts of a batch fill the same memory with and without checkpointing.
        if "micro_batch" not in figures and peaks[1] >= peaks[0]:
            raise CheckFailed("gradient checkpointing saves no memory", figures)
    return figures


class _LoopClock:
    """Times the steps of the training loop's second epoch.

    The loop waits for data from the end of a step to the next call of the loss. If it does not wait for the device, the
    device may still be busy then, so the share is an upper bound.

    Args:
        method: Method whose loss and end of step are observed.
    """

    def __init__(self, method: Method) -> None:
        self._loss, self._after_step = method.loss, method.after_step
        self._left: float | None = None  # when the last step ended
        self._waits: list[float] = []
        self._ticks: list[float] = []
        self.losses: list[float] = []
        observed: Any = method
        observed.loss, observed.after_step = self._observe(self._loss), self._end_step

    def report(self, progress: TrainingProgress) -> None:
        """Build the callback for the training loop."""
        if progress.loss is not None:
            self.losses.append(progress.loss)
        if progress.epoch == 1:
            self._waits, self._ticks = [], []
        self._ticks.append(time.perf_counter())

    def figures(self, batch: int) -> Figures:
        """Compute the rate, the share of waiting, and the mean losses of the first and last step."""
        seconds, steps = self._ticks[-1] - self._ticks[0], len(self._ticks) - 1
        return {
            "videos_per_second": round(batch * steps / seconds, 2),
            "milliseconds_per_step": round(1000 * seconds / steps, 1),
            "waiting_for_data": round(sum(self._waits[-steps:]) / seconds, 4),
            "first_loss": round(self.losses[0], 4),
            "last_loss": round(self.losses[-1], 4),
        }

    def _observe(self, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def observed(frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
            if self._left is not None:
                self._waits.append(time.perf_counter() - self._left)
            return loss(frames, texts, references)

        return observed

    def _end_step(self) -> None:
        self._after_step()
        self._left = time.perf_counter()
