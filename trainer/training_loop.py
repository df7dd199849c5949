"""Training loop of all methods: optimizer, schedule, gradient clipping, checkpoints and progress.

Two runs with the same seed and data, one of them interrupted after any epoch and resumed, end with the same bits on
the same machine: every epoch draws its batches and seeds torch from (seed, number of learned tasks, epoch) alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from models.backbones.tower_computation import gradient_checkpointing, has_fast_bfloat16, mixed_precision
from models.encoders.tower_forward import distributed_batches
from trainer.errors import TrainingDiverged
from trainer.frozen_prefix_cache import open_video_loader
from trainer.methods.base import Method
from trainer.process_group import ALONE, ProcessGroup
from trainer.task_data import Clip, Pair, StoredVectors, TaskData, chunks, load_frames
from trainer.training_checkpoint import Checkpoint, CheckpointStore

CLIP_NORM = 1.0
BETAS, EPSILON = (0.9, 0.999), 1e-6  # ctvr-ffa-tame, published code


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of training after a step.

    Attributes:
        epoch: Current epoch, from 1.
        step: Number of completed steps, over all epochs.
        loss: Loss of this step; None for a method in closed form.
        videos_per_second: Mean since this process started to train.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None
    videos_per_second: float


def _ignore(progress: TrainingProgress) -> None:
    """Default progress callback."""


def learn_task(
    method: Method,
    task: TaskData,
    memory: StoredVectors | None = None,
    *,
    report: Callable[[TrainingProgress], None] = _ignore,
    checkpoints: CheckpointStore | None = None,
    group: ProcessGroup = ALONE,
) -> list[float]:
    """Learn one task: all hooks of the method from ``begin_task`` to ``record_task``.

    A task without training captions is not trained: the method adds the task and keeps its weights.

    Args:
        method: Method to train.
        memory: Stored vectors of earlier tasks.
        report: Called after every step; an exception that it raises ends the training.
        checkpoints: Store to save a checkpoint to after every epoch, and to resume from.
        group: Processes that train together, of which this one is process 0.

    Returns:
        The mean loss of each epoch; empty without training.

    Raises:
        TrainingDiverged, FramesMissing: See :func:`fit`.
    """
    captions = task.training_captions
    trained = method.is_trainable and bool(captions)
    method.begin_task(task.task_id, task.name, trained=trained)
    losses = []
    if trained:
        losses = fit(method, task, memory, report=report, checkpoints=checkpoints, group=group)
    method.end_task(task.pairs if trained else ())
    method.record_task(task.task_id, task.name, captions)
    return losses


def fit(
    method: Method,
    task: TaskData,
    memory: StoredVectors | None = None,
    *,
    report: Callable[[TrainingProgress], None] = _ignore,
    checkpoints: CheckpointStore | None = None,
    group: ProcessGroup = ALONE,
) -> list[float]:
    """Train the parameters that :meth:`~trainer.methods.base.Method.begin_task` has opened, for all epochs.

    AdamW with the configured schedule, after an optional linear warm-up; gradients are clipped to norm 1 over the
    optimized parameters. The state after the last epoch is kept, unless the method itself restores a better one.

    Args:
        method: Method whose ``begin_task`` was called.
        task: Task to learn.
        memory: Stored vectors of earlier tasks; as many as the batch size are drawn for every step.
        report: Called after every step; an exception that it raises ends the training.
        checkpoints: Store to save a checkpoint to after every epoch, and to resume from.
        group: Processes that train together. Stored vectors and checkpoints are those of process 0.

    Returns:
        The mean loss of each epoch.

    Raises:
        TrainingDiverged: Loss or gradient is not finite; the message names the step and the learning rate.
        FramesMissing: The decoded frames of a video are gone.
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
    resumed = group.share(checkpoints.load() if checkpoints else None)
    if resumed:
        method.load_state_dict(resumed.method)
    optimizer = torch.optim.AdamW(method.parameter_groups(), betas=BETAS, eps=EPSILON)
    compute_loss = group.parallel_loss(method.loss, _optimized(optimizer))
    rates = [parameters["lr"] for parameters in optimizer.param_groups]
    if resumed:
        optimizer.load_state_dict(resumed.optimizer)
    losses = list(resumed.losses) if resumed else []
    first_epoch = resumed.epoch if resumed else 0
    first_epoch_steps = steps_per_epoch if config.schedule == "step" else None
    clock = _Clock(config.epochs, steps_per_epoch, first_epoch)
    device = method.backbone.device
    method.train(True)
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            open_video_loader(method, checkpoints.folder if checkpoints else None) as load,
        ):
            for epoch in range(first_epoch, config.epochs):
                seed = np.random.SeedSequence([config.seed, len(method.learned_tasks), epoch])
                torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
                rng = np.random.default_rng(seed)
                total, trained = 0.0, 0
                method.begin_epoch(epoch, pairs)
                for batch in task.draw_batches(size, rng)[:steps_per_epoch]:
                    factor = learning_rate_factor(
                        clock.step, clock.steps, warmup=config.warmup, first_epoch=first_epoch_steps
                    )
                    for parameter_group, rate in zip(optimizer.param_groups, rates, strict=True):
                        parameter_group["lr"] = rate * factor
                    references = group.share(memory.sample(config.batch_size, rng))
                    loss = _step(method, compute_loss, optimizer, load, batch, references, clock.step, group)
                    total += loss * len(batch)
                    trained += len(batch)
                    report(clock.tick(epoch, loss, len(batch)))
                losses.append(total / trained)
                method.after_epoch(task.val)
                if checkpoints:
                    checkpoints.save(
                        Checkpoint(epoch + 1, losses, method.state_dict(), optimizer.state_dict())
                    )
    finally:
        method.train(False)
    return losses


def _observe_videos(method: Method, task: TaskData, report: Callable[[TrainingProgress], None]) -> None:
    """Show the captioned training videos, or a sample of bounded size, to a method in closed form, once."""
    clips = task.observed(method.config.max_videos)
    size = method.config.batch_size
    clock = _Clock(1, math.ceil(len(clips) / size), 0)
    for chunk in chunks(clips, size):
        method.observe(load_frames(chunk), [clip.captions for clip in chunk])
        report(clock.tick(0, None, len(chunk)))


def learning_rate_factor(
    step: int, steps: int, *, warmup: float = 0.0, first_epoch: int | None = None
) -> float:
    """Factor of the base learning rate at a step.

    A linear warm-up, then a half-cosine that would reach zero one step after the last; or, if ``first_epoch`` is given,
    factor 1 in the first epoch and 0.1 in the others (bmu-moco).

    Args:
        step: Number of the step, from 0.
        steps: Number of steps of the task.
        warmup: Share of the steps with rising rate, 0..1.
        first_epoch: Number of steps of the first epoch, for the step schedule.
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    if first_epoch is not None:
        return 1.0 if step < first_epoch else 0.1
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def _step(
    method: Method,
    compute_loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    load: Callable[[Sequence[Clip]], Tensor],
    batch: list[Pair],
    references: Tensor | None,
    step: int,
    group: ProcessGroup,
) -> float:
    device = method.backbone.device
    if references is not None:
        references = references.to(device)
    optimizer.zero_grad(set_to_none=True)
    precision = method.config.precision
    mixed = has_fast_bfloat16(device) if precision == "auto" else precision == "bfloat16"
    with (
        mixed_precision(enabled=mixed),
        gradient_checkpointing(enabled=method.config.checkpointing),
        distributed_batches(group.distribution),
    ):
        frames = load([pair.clip for pair in batch]).to(device)
        loss = compute_loss(frames, [pair.caption for pair in batch], references)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise _diverged("loss", value, step, optimizer)
    loss.backward()
    norm = float(nn.utils.clip_grad_norm_(_optimized(optimizer), CLIP_NORM))
    if not math.isfinite(norm):
        raise _diverged("gradient", norm, step, optimizer)
    optimizer.step()
    method.after_step()
    return value


def _optimized(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _diverged(quantity: str, value: float, step: int, optimizer: torch.optim.Optimizer) -> TrainingDiverged:
    rates = sorted({group["lr"] for group in optimizer.param_groups}, reverse=True)
    return TrainingDiverged(
        f"the {quantity} became {value} at step {step + 1} with learning rate "
        f"{' / '.join(f'{rate:.3g}' for rate in rates)}; retry with a smaller learning rate, or look for "
        "broken videos in the task"
    )


class _Clock:
    """Counts steps and videos."""

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
