"""Data parallelism with the same loss and steps as in one process.

All processes draw the same batches and noise, and hold the same weights. Each loads and encodes its part of a batch
(:mod:`models.encoders.tower_forward`), and computes the whole loss from the gathered vectors. Only the process that
encoded a vector keeps its gradient, times the number of processes, so the mean of the processes' gradients equals the
gradient in one process. This includes loss terms that every process computes completely, such as a weight penalty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from models.backbones.tower_computation import batch_rows, encode_in_parts, variable_set
from models.encoders.tower_forward import Encode, batch_encoder

_TIMEOUT = timedelta(minutes=10)  # per collective operation; the end of a process is noticed at once

Value = TypeVar("Value")


class ProcessGroup:
    """The processes that train together, as the one with number ``rank``, from 0, sees them."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def share(self, value: Value) -> Value:
        """Send process 0's value to all processes."""
        if self.size == 1:
            return value
        values: list[Any] = [value if self.rank == 0 else None]
        distributed.broadcast_object_list(values)
        shared: Value = values[0]
        return shared

    def parallel_loss(
        self, loss: Callable[..., Tensor], parameters: Iterable[Parameter]
    ) -> Callable[..., Tensor]:
        """Wrap a loss so that its backward pass gives the parameters the mean gradient over all processes."""
        if self.size == 1:
            return loss
        # A loss need not depend on every parameter.
        return DistributedDataParallel(
            _Loss(loss, parameters), broadcast_buffers=False, find_unused_parameters=True
        )

    def rows(self, count: int, device: torch.device | None = None) -> Tensor:
        """Select this process's rows of a batch of ``count``; the last row is repeated to make parts equal."""
        size = -(-count // self.size)
        return torch.arange(self.rank * size, (self.rank + 1) * size, device=device).clamp(max=count - 1)

    def gather(self, part: Tensor, count: int) -> Tensor:
        """Collect the ``count`` rows of a batch from the parts of all processes."""
        if self.size == 1:
            return part
        gathered: Tensor = _Gather.apply(part, self.rank, self.size)[:count]
        return gathered

    def distributed_batches(self, videos: Tensor, count: int) -> AbstractContextManager[None]:
        """Divide the towers' batches among the processes within this context; this process's ``videos``, rows of a
        batch of ``count``, are encoded as they are.
        """
        encode = partial(self._encode, videos, count) if self.size > 1 else encode_in_parts
        return variable_set(batch_encoder, encode)

    def _encode(self, videos: Tensor, count: int, encode: Encode, batch: Tensor) -> tuple[Tensor, ...]:
        """Encode this process's rows, and collect those of all."""
        count = count if batch is videos else len(batch)
        rows = self.rows(count, batch.device)
        with batch_rows(rows, count):
            parts = encode_in_parts(encode, batch if batch is videos else batch[rows])
        return tuple(self.gather(part, count) for part in parts)


ALONE = ProcessGroup()


class _Loss(nn.Module):
    """A loss as a module with the trained parameters."""

    def __init__(self, loss: Callable[..., Tensor], parameters: Iterable[Parameter]) -> None:
        super().__init__()
        self.trained = nn.ParameterList(parameter for parameter in parameters if parameter.requires_grad)
        self._loss = loss

    def forward(self, *arguments: Any) -> Tensor:
        return self._loss(*arguments)


class _Gather(torch.autograd.Function):
    """Concatenation of all processes' parts; its backward pass needs no communication."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, rank: int, size: int) -> Tensor:
        ctx.rank, ctx.size, ctx.rows = rank, size, len(part)
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(size)]
        distributed.all_gather(parts, part)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return ctx.size * gradient[ctx.rank * ctx.rows : (ctx.rank + 1) * ctx.rows], None, None


@contextmanager
def joined_group(rank: int, size: int, folder: Path, device: torch.device) -> Iterator[ProcessGroup]:
    """Wait until all processes have joined in a shared folder, and leave the group at the end of the context."""
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=size,
        timeout=_TIMEOUT,
    )
    try:
        yield ProcessGroup(rank, size)
    finally:
        distributed.destroy_process_group()
