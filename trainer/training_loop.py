"""Train any method: optimizer, schedule, gradient clipping, checkpoints and progress.

On the same machine, a run that is interrupted after any epoch and resumed ends with the same bits as one that is not:
every epoch draws its batches and seeds torch from (seed, number of learned tasks, epoch) alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import structlog
import torch
from torch import Tensor, nn

from index.arrays import batches
from models.backbones.device_memory import return_freed_memory
from models.backbones.tower_computation import (
    gradient_checkpointing,
    has_fast_bfloat16,
    micro_batches,
    mixed_precision,
)
from trainer.errors import TrainingDiverged
from trainer.frozen_prefix_cache import open_video_loader
from trainer.methods.base import Method
from trainer.task_data import StoredVectors, TaskData, load_frames
from trainer.training_checkpoint import Checkpoint, CheckpointStore
from trainer.training_memory import plan_memory

log = structlog.get_logger(__name__)

CLIP_NORM = 1.0
BETAS, EPSILON = (0.9, 0.999), 1e-6  # ctvr-ffa-tame, published code


@dataclass(frozen=True)
class TrainingProgress:
    """Training progress after a step.

    Attributes:
        epoch: Current epoch, from 1.
        step: Number of completed steps, over all epochs.
        loss: Loss of this step; None for a closed-form method.
        videos_per_second: Mean since this process started training.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None
    videos_per_second: float


def learn_task(
    method: Method,
    task: TaskData,
    memory: StoredVectors | None = None,
    *,
    report: Callable[[TrainingProgress], None] = lambda progress: None,
    checkpoints: CheckpointStore | None = None,
) -> list[float]:
    """Learn a task: call all of the method's hooks from ``begin_task`` to ``record_task``.

    A task without training captions is only added, and the method keeps its weights.

    Args:
        method: Method to train.
        memory: Stored vectors of earlier tasks.
        report: Called after every step; an exception that it raises ends the training.
        checkpoints: Store to save a checkpoint to after every epoch, and to resume from.

    Returns:
        The mean loss of each epoch; empty without training.

    Raises:
        TrainingDiverged, FramesMissing, NotEnoughMemory: See :func:`fit`.
    """
    captions = task.training_captions
    trained = method.is_trainable and bool(captions)
    method.begin_task(task.task_id, task.name, trained=trained)
    losses = []
    if trained:
        losses = fit(method, task, memory, report=report, checkpoints=checkpoints)
    with micro_batches(method.micro_batch):
        method.end_task(task.pairs if trained else ())
    method.record_task(task.task_id, task.name, captions)
    return losses


def fit(
    method: Method,
    task: TaskData,
    memory: StoredVectors | None = None,
    *,
    report: Callable[[TrainingProgress], None] = lambda progress: None,
    checkpoints: CheckpointStore | None = None,
) -> list[float]:
    """Train the parameters that :meth:`~trainer.methods.base.Method.begin_task` has unfrozen, for all epochs.

    The optimizer is AdamW with the configured schedule, after an optional linear warm-up; gradients are clipped to norm
    1 over the optimized parameters. The state after the last epoch is kept, unless the method restores a better one.

    Args:
        method: Method whose ``begin_task`` was called.
        memory: Stored vectors of earlier tasks; each step draws as many as the batch size.
        report: Called after every step; an exception that it raises ends the training.
        checkpoints: Store to save a checkpoint to after every epoch, and to resume from.

    Returns:
        The mean loss of each epoch.

    Raises:
        TrainingDiverged: Loss or gradient is not finite; the message names the step and the learning rate.
        FramesMissing: The decoded frames of a video are gone.
        NotEnoughMemory: The device has too little memory for one pair at a time; nothing was trained.
    """
    if method.is_closed_form:
        _observe_videos(method, task, report)
        return []
    config = method.config
    memory = memory or StoredVectors()
    pairs = task.pairs
    size = min(config.batch_size, len(pairs))
    steps_per_epoch = task.batch_count(size)
    if config.max_steps is not None:
        steps_per_epoch = min(steps_per_epoch, math.ceil(config.max_steps / config.epochs))
    resumed = checkpoints.load() if checkpoints else None
    if resumed:
        method.load_state_dict(resumed.method)
    optimizer = torch.optim.AdamW(method.parameter_groups(), betas=BETAS, eps=EPSILON)
    rates = [parameters["lr"] for parameters in optimizer.param_groups]
    if resumed:
        optimizer.load_state_dict(resumed.optimizer)
    losses = list(resumed.losses) if resumed else []
    first_epoch = resumed.epoch if resumed else 0
    is_planned = False
    first_epoch_steps = steps_per_epoch if config.schedule == "step" else None
    clock = _Clock(config.epochs, steps_per_epoch, first_epoch)
    device = method.backbone.device
    method.train(True)
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            open_video_loader(method, checkpoints.folder if checkpoints else None) as loader,
        ):
            for epoch in range(first_epoch, config.epochs):
                seed = np.random.SeedSequence([config.seed, len(method.learned_tasks), epoch])
                torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
                rng = np.random.default_rng(seed)
                method.begin_epoch(epoch, pairs)
                total = trained = 0.0
                for batch in task.draw_batches(size, rng)[:steps_per_epoch]:
                    frames = loader.load([pair.clip for pair in batch])
                    factor = learning_rate_factor(
                        clock.step, clock.steps, warmup=config.warmup, first_epoch=first_epoch_steps
                    )
                    for parameter_group, rate in zip(optimizer.param_groups, rates, strict=True):
                        parameter_group["lr"] = rate * factor
                    references = memory.sample(config.batch_size, rng)
                    inputs = (
                        frames,
                        [pair.caption for pair in batch],
                        None if references is None else references.to(device),
                    )
                    if not is_planned:
                        planned = _plan(method, optimizer, inputs, task)
                        sizes = [planned, resumed.micro_batch if resumed else None]
                        method.micro_batch = min((part for part in sizes if part is not None), default=None)
                        is_planned = True
                        if method.micro_batch and device.type == "cpu":
                            return_freed_memory()
                    loss = _step(method, optimizer, inputs, clock.step)
                    total += loss * len(batch)
                    trained += len(batch)
                    report(clock.tick(epoch, loss, len(batch)))
                losses.append(total / trained)
                with micro_batches(method.micro_batch):
                    method.after_epoch(task.val)
                if checkpoints:
                    checkpoints.save(
                        Checkpoint(
                            epoch + 1,
                            losses,
                            method.state_dict(),
                            optimizer.state_dict(),
                            micro_batch=method.micro_batch,
                        )
                    )
    finally:
        method.train(False)
    return losses


def _observe_videos(method: Method, task: TaskData, report: Callable[[TrainingProgress], None]) -> None:
    """Show a closed-form method its captioned training videos, or a sample of them, once."""
    clips = task.observed(method.config.max_videos)
    size = method.config.batch_size
    clock = _Clock(1, math.ceil(len(clips) / size), 0)
    for chunk in batches(clips, size):
        method.observe(load_frames(chunk), [clip.captions for clip in chunk])
        report(clock.tick(0, None, len(chunk)))


def learning_rate_factor(
    step: int, steps: int, *, warmup: float = 0.0, first_epoch: int | None = None
) -> float:
    """Compute the factor on the base learning rate at a step.

    After a linear warm-up, the factor follows a half-cosine that would reach zero one step after the last; or, with
    ``first_epoch``, it is 1 in the first epoch and 0.1 afterwards (bmu-moco).

    Args:
        step: Number of the step, from 0.
        warmup: Share of steps with a rising rate, 0..1.
        first_epoch: Number of steps in the first epoch, for the step schedule.
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    if first_epoch is not None:
        return 1.0 if step < first_epoch else 0.1
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


_Inputs = tuple[Tensor, list[str], Tensor | None]  # videos, captions, references


def _step(method: Method, optimizer: torch.optim.Optimizer, inputs: _Inputs, step: int) -> float:
    """Take a step, and return its loss.

    Raises:
        TrainingDiverged: The loss or the gradient is not finite.
    """
    optimizer.zero_grad(set_to_none=True)
    with _precision(method), micro_batches(method.micro_batch):
        loss = method.loss(*inputs)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(_optimized(optimizer), CLIP_NORM)
    optimizer.step()
    method.after_step()
    for quantity, value in (("loss", loss.item()), ("gradient", norm.item())):
        if not math.isfinite(value):
            rates = sorted({group["lr"] for group in optimizer.param_groups}, reverse=True)
            raise TrainingDiverged(
                f"the {quantity} became {value} at step {step + 1} with learning rate "
                f"{' / '.join(f'{rate:.3g}' for rate in rates)}; retry with a smaller learning rate, or look for "
                "broken videos in the task"
            )
    return loss.item()


@contextmanager
def _precision(method: Method) -> Iterator[None]:
    config = method.config
    is_mixed = config.precision == "bfloat16"
    if config.precision == "auto":
        is_mixed = has_fast_bfloat16(method.backbone.device)
    with mixed_precision(enabled=is_mixed), gradient_checkpointing(enabled=config.checkpointing):
        yield


def _plan(method: Method, optimizer: torch.optim.Optimizer, inputs: _Inputs, task: TaskData) -> int | None:
    """Choose the micro-batch."""
    with _precision(method):
        plan = plan_memory(
            method.loss,
            *inputs,
            trained=_optimized(optimizer),
            has_moments=bool(optimizer.state),
            kept=method.bytes_after_epoch(task.val),
        )
    log.info("training_memory", method=method.name, **vars(plan))
    return plan.micro_batch


def _optimized(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class _Clock:
    """Counter of steps and videos."""

    def __init__(self, epochs: int, steps_per_epoch: int, first_epoch: int) -> None:
        self.epochs, self.steps = epochs, epochs * steps_per_epoch
        self.step = first_epoch * steps_per_epoch
        self._videos = 0
        self._start = time.monotonic()

    def tick(self, epoch: int, loss: float | None, videos: int) -> TrainingProgress:
        self.step += 1
        self._videos += videos
        elapsed = max(time.monotonic() - self._start, 1e-9)
        return TrainingProgress(
            epoch=epoch + 1,
            epochs=self.epochs,
            step=self.step,
            steps=self.steps,
            loss=loss,
            videos_per_second=self._videos / elapsed,
        )
