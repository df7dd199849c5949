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
from itertools import accumulate

import numpy as np
import structlog
import torch
from torch import Tensor, nn

from index.arrays import batches
from models.backbones.tower_computation import (
    gradient_checkpointing,
    has_fast_bfloat16,
    micro_batches,
    mixed_precision,
)
from trainer.errors import TrainingDiverged
from trainer.frozen_prefix_cache import open_video_loader
from trainer.methods.base import Method
from trainer.process_group import ALONE, ProcessGroup
from trainer.task_data import StoredVectors, TaskData, draw_batches, read_ahead
from trainer.training_checkpoint import Checkpoint, CheckpointStore
from trainer.training_memory import plan_memory, return_freed_memory

log = structlog.get_logger(__name__)

CLIP_NORM = 1.0
BETAS, EPSILON = (0.9, 0.999), 1e-6  # ctvr-ffa-tame, published code
_READ_SECONDS = 0.25  # between reads of losses on a GPU, since each read waits for the GPU


@dataclass(frozen=True)
class TrainingProgress:
    """Training progress after a step."""

    epoch: int  # current epoch, from 1
    epochs: int
    step: int  # number of completed steps, over all epochs
    steps: int
    loss: float | None  # loss of this step; None for a closed-form method
    videos_per_second: float  # mean since this process started training


def learn_task(
    method: Method,
    task: TaskData,
    memory: StoredVectors | None = None,
    *,
    report: Callable[[TrainingProgress], None] = lambda progress: None,
    checkpoints: CheckpointStore | None = None,
    group: ProcessGroup = ALONE,
) -> list[float]:
    """Learn a task: call all of the method's hooks from ``begin_task`` to ``record_task``.

    A task without training captions is only added, and the method keeps its weights. Arguments, result and errors are
    those of :func:`fit`; this process is process 0 of the group.
    """
    captions = task.training_captions
    trained = method.is_trainable and bool(captions)
    learned = task.observed(method.config.max_videos) if method.is_closed_form else task.train
    method.learned_videos = {clip.vector_id for clip in learned if trained}
    method.begin_task(task.task_id, task.name, trained=trained)
    losses = []
    method.before_last_epoch = None
    if trained:
        losses = fit(method, task, memory, report=report, checkpoints=checkpoints, group=group)
    with micro_batches(method.micro_batch):
        method.end_task(task.pairs if trained else ())
        if measured := method.before_last_epoch:
            measured.end_task(task.without_fold().pairs)
            measured.record_task(task.task_id, task.name, task.without_fold().training_captions)
    method.record_task(task.task_id, task.name, captions)
    return losses


def fit(
    method: Method,
    task: TaskData,
    memory: StoredVectors | None = None,
    *,
    report: Callable[[TrainingProgress], None] = lambda progress: None,
    checkpoints: CheckpointStore | None = None,
    group: ProcessGroup = ALONE,
) -> list[float]:
    """Train the parameters that :meth:`~trainer.methods.base.Method.begin_task` has unfrozen, for all epochs.

    The optimizer is AdamW with the configured schedule, after an optional linear warm-up; gradients are clipped to norm
    1 over the optimized parameters. The state after the last epoch is kept, unless the method restores a better one.
    Only the last epoch trains on a fold; a copy of the method before it stays in ``before_last_epoch``.

    Args:
        method: Method whose ``begin_task`` was called.
        memory: Stored vectors of earlier tasks; each step draws as many as the batch size.
        report: Called after every step; an exception that it raises ends the training.
        checkpoints: Store to save a checkpoint to after every epoch, and to resume from.
        group: Processes that train together; only process 0 uses stored vectors and checkpoints.

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
    size = min(config.batch_size, len(task.pairs))
    has_fold = any(clip.split == "fold" for clip in task.clips)
    epoch_tasks = [task.without_fold() if has_fold else task] * (config.epochs - 1) + [task]
    most_steps = math.inf if config.max_steps is None else math.ceil(config.max_steps / config.epochs)
    starts = [0, *accumulate(int(min(math.ceil(len(data.pairs) / size), most_steps)) for data in epoch_tasks)]
    resumed = group.share(checkpoints.load() if checkpoints else None)
    if resumed:
        method.load_state_dict(resumed.method)
    optimizer = torch.optim.AdamW(method.parameter_groups(), betas=BETAS, eps=EPSILON, fused=True)
    compute_loss = group.parallel_loss(method.loss, _optimized(optimizer))
    rates = [parameters["lr"] for parameters in optimizer.param_groups]
    losses, first_epoch = [], 0
    if resumed:
        optimizer.load_state_dict(resumed.optimizer)
        losses, first_epoch = list(resumed.losses), resumed.epoch
    is_planned = False
    first_epoch_steps = starts[1] if config.schedule == "step" else None
    results = _StepResults(
        config.epochs, starts[-1], report, step=starts[first_epoch], is_checked=group.rank == 0
    )
    device = method.backbone.device
    method.train(True)
    try:
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            open_video_loader(method, checkpoints.folder if checkpoints else None) as loader,
        ):
            for epoch in range(first_epoch, config.epochs):
                pairs = epoch_tasks[epoch].pairs
                if has_fold and epoch == config.epochs - 1:
                    method.before_last_epoch = method.copy()
                    method.before_last_epoch.train(False)
                seed = np.random.SeedSequence([config.seed, len(method.learned_tasks), epoch])
                torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
                rng = np.random.default_rng(seed)
                method.begin_epoch(epoch, pairs)
                results.begin_epoch(epoch)
                drawn = draw_batches(pairs, size, rng)[: starts[epoch + 1] - starts[epoch]]
                videos = loader.load(
                    [batch[row].clip for row in group.rows(len(batch)).tolist()] for batch in drawn
                )
                for step, (batch, frames) in enumerate(zip(drawn, videos, strict=True), starts[epoch]):
                    factor = learning_rate_factor(
                        step, starts[-1], warmup=config.warmup, first_epoch=first_epoch_steps
                    )
                    for parameters, rate in zip(optimizer.param_groups, rates, strict=True):
                        parameters["lr"] = rate * factor
                    references = group.share(memory.sample(config.batch_size, rng))
                    inputs = (
                        frames,
                        [pair.caption for pair in batch],
                        None if references is None else references.to(device, non_blocking=True),
                    )
                    if not is_planned:
                        planned = group.share(_plan(method, optimizer, inputs, task=task, group=group))
                        sizes = [planned, resumed.micro_batch if resumed else None]
                        method.micro_batch = min((rows for rows in sizes if rows is not None), default=None)
                        is_planned = True
                        if method.micro_batch and device.type == "cpu":
                            return_freed_memory()
                    result = _step(method, compute_loss, optimizer, inputs, group)
                    used_rates = [parameters["lr"] for parameters in optimizer.param_groups]
                    results.add(result, len(batch), used_rates)
                results.read()
                losses.append(results.total / results.trained)
                with micro_batches(method.micro_batch):
                    method.after_epoch(task.val)
                # Training that resumed after the last epoch would lack the state before it.
                if checkpoints and not method.before_last_epoch:
                    tensors, moments = method.state_dict(), optimizer.state_dict()
                    checkpoints.save(Checkpoint(epoch + 1, losses, tensors, moments, method.micro_batch))
    finally:
        method.train(False)
    return losses


def _observe_videos(method: Method, task: TaskData, report: Callable[[TrainingProgress], None]) -> None:
    """Show a closed-form method its captioned training videos, or a sample of them, once."""
    clips = task.observed(method.config.max_videos)
    size = method.config.batch_size
    results = _StepResults(1, math.ceil(len(clips) / size), report)
    for chunk, frames in read_ahead(batches(clips, size)):
        method.observe(frames, [clip.captions for clip in chunk], chunk)
        results.count_step(None, len(chunk))


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


_Inputs = tuple[Tensor, list[str], Tensor | None]  # this process's videos, all captions, references


def _step(
    method: Method,
    compute_loss: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: _Inputs,
    group: ProcessGroup,
) -> Tensor:
    """Take a step, and return its loss and gradient norm, ``[2]``, without waiting for the device."""
    optimizer.zero_grad(set_to_none=True)
    videos, texts, references = inputs
    batch = group.gather(videos, len(texts)) if method.needs_frames else videos
    distributed = group.distributed_batches(videos, len(texts))
    with _precision(method), micro_batches(method.micro_batch), distributed:
        loss = compute_loss(batch, texts, references)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(_optimized(optimizer), CLIP_NORM)
    optimizer.step()
    method.after_step()
    return torch.stack([loss.detach().float(), norm.float()])


@contextmanager
def _precision(method: Method) -> Iterator[None]:
    config = method.config
    is_mixed = config.precision == "bfloat16"
    if config.precision == "auto":
        is_mixed = has_fast_bfloat16(method.backbone.device)
    with mixed_precision(enabled=is_mixed), gradient_checkpointing(enabled=config.checkpointing):
        yield


def _plan(
    method: Method, optimizer: torch.optim.Optimizer, inputs: _Inputs, task: TaskData, group: ProcessGroup
) -> int | None:
    """Choose the micro-batch, in process 0 only."""
    if group.rank:
        return None
    with _precision(method):
        plan = plan_memory(
            method.loss,
            *inputs,
            trained=_optimized(optimizer),
            has_moments=bool(optimizer.state),
            later_bytes=method.bytes_after_epoch(task.val),
            processes=group.size,
        )
    log.info("training_memory", method=method.name, **vars(plan))
    return plan.micro_batch


def _optimized(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class _StepResults:
    """Losses and gradient norms of steps, and the progress that they report.

    Reading them waits for the device, so on a GPU they are read only when a report is due. On a CPU there is nothing to
    wait for, and each step is read and reported at once.

    Args:
        steps: Number of steps in all epochs.
        step: Number of steps that an earlier process has completed.
        is_checked: Whether values must be finite; process 0 checks for all, so that none waits for one that ended.
    """

    def __init__(
        self,
        epochs: int,
        steps: int,
        report: Callable[[TrainingProgress], None],
        *,
        step: int = 0,
        is_checked: bool = True,
    ) -> None:
        self._epochs, self._steps, self._report, self._is_checked = epochs, steps, report, is_checked
        self._step, self._videos, self._start = step, 0, time.monotonic()
        self._unread: list[tuple[Tensor, int, list[float]]] = []
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int) -> None:
        """Start the sums of an epoch, whose number is from 0."""
        self._epoch, self._due = epoch, 0.0
        self.total, self.trained = 0.0, 0  # losses and number of the trained pairs in the steps read so far

    def add(self, result: Tensor, videos: int, rates: list[float]) -> None:
        """Add a step's loss and gradient norm ``[2]``, and :meth:`read` all unread steps if a report is due."""
        self._unread.append((result, videos, rates))
        if result.device.type == "cpu" or time.monotonic() >= self._due:
            self.read()

    def read(self) -> None:
        """Read the unread steps and report each; raise TrainingDiverged if a loss or a gradient is not finite."""
        unread, self._unread = self._unread, []
        values = torch.stack([result for result, *_ in unread]).tolist() if unread else []
        for (loss, norm), (_, videos, rates) in zip(values, unread, strict=True):
            for quantity, value in (("loss", loss), ("gradient", norm)):
                if self._is_checked and not math.isfinite(value):
                    shown = " / ".join(f"{rate:.3g}" for rate in sorted(set(rates), reverse=True))
                    raise TrainingDiverged(
                        f"the {quantity} became {value} at step {self._step + 1} with learning rate {shown}; "
                        "retry with a smaller learning rate, or look for broken videos in the task"
                    )
            self.total += loss * videos
            self.trained += videos
            self.count_step(loss, videos)
        self._due = time.monotonic() + _READ_SECONDS

    def count_step(self, loss: float | None, videos: int) -> None:
        """Count a step with a number of videos, and report it."""
        self._step += 1
        self._videos += videos
        elapsed = max(time.monotonic() - self._start, 1e-9)
        self._report(
            TrainingProgress(
                epoch=self._epoch + 1,
                epochs=self._epochs,
                step=self._step,
                steps=self._steps,
                loss=loss,
                videos_per_second=self._videos / elapsed,
            )
        )
