"""Processes that train one method together: data parallelism with the loss and the steps of one process.

Every process draws the same batches and holds the same weights. The towers encode a part of each batch per process
(:mod:`models.encoders.tower_forward`), and each process computes the whole loss from the gathered vectors. The
gradient of a gathered vector is kept for its own process alone, times the number of processes, so the mean of the
processes' gradients equals the gradient of one process. This includes terms of the loss that every process computes
completely, for example a penalty on weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

_TIMEOUT = timedelta(minutes=10)  # of a collective operation; a process that ends is noticed at once

Value = TypeVar("Value")


class ProcessGroup:
    """The processes of a training, as one of them sees it.

    Args:
        rank: Number of this process, from 0.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @property
    def distribution(self) -> ProcessGroup | None:
        """Argument of :func:`models.encoders.tower_forward.distributed_batches`."""
        return self if self.size > 1 else None

    def share(self, value: Value) -> Value:
        """Return the value of process 0."""
        if self.size == 1:
            return value
        values: list[Any] = [value if self.rank == 0 else None]
        distributed.broadcast_object_list(values)
        shared: Value = values[0]
        return shared

    def parallel_loss(
        self, loss: Callable[..., Tensor], parameters: Iterable[Parameter]
    ) -> Callable[..., Tensor]:
        """Return the loss, whose backward pass gives the parameters the mean gradients of all processes."""
        if self.size == 1:
            return loss
        # A loss need not depend on every parameter, for example on the towers of another variant.
        return DistributedDataParallel(
            _Loss(loss, parameters), broadcast_buffers=False, find_unused_parameters=True
        )

    def slice(self, batch: Tensor) -> Tensor:
        """Return the rows of this process; the last rows are repeated where the batch is not divisible."""
        size = -(-len(batch) // self.size)
        rows = torch.arange(self.rank * size, (self.rank + 1) * size, device=batch.device)
        return batch[rows.clamp(max=len(batch) - 1)]

    def gather(self, part: Tensor, count: int) -> Tensor:
        """Return the ``count`` rows of the batch, from the parts of all processes."""
        whole: Tensor = _Gather.apply(part, self.rank, self.size)
        return whole[:count]


ALONE = ProcessGroup()


class _Loss(nn.Module):
    """A loss as a module with the parameters that are trained."""

    def __init__(self, loss: Callable[..., Tensor], parameters: Iterable[Parameter]) -> None:
        super().__init__()
        self.trained = nn.ParameterList(parameter for parameter in parameters if parameter.requires_grad)
        self._loss = loss

    def forward(self, *arguments: Any) -> Tensor:
        return self._loss(*arguments)


class _Gather(torch.autograd.Function):
    """Concatenation of the parts of all processes; the backward pass needs no communication."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, rank: int, size: int) -> Tensor:
        ctx.rank, ctx.size, ctx.rows = rank, size, len(part)
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(size)]
        distributed.all_gather(parts, part)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        own = gradient[ctx.rank * ctx.rows : (ctx.rank + 1) * ctx.rows]
        return ctx.size * own, None, None


@contextmanager
def joined_group(rank: int, size: int, folder: Path, device: torch.device) -> Iterator[ProcessGroup]:
    """Join the processes of a training during the ``with`` statement, which begins when all have joined.

    Args:
        rank: Number of this process, from 0.
        folder: Folder of the training, which all processes share.
        device: Device of the method's tensors.
    """
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
