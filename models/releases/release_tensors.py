"""Convert the weights of releases, which are arrays, to torch tensors and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def tensors_with_prefix(prefix: str, weights: Mapping[str, npt.NDArray[Any] | Tensor]) -> dict[str, Tensor]:
    """Select the weights whose names start with a prefix, and strip it; the results share the memory of arrays."""
    return {
        name.removeprefix(prefix): torch.as_tensor(weight)
        for name, weight in weights.items()
        if name.startswith(prefix)
    }


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Convert tensors to arrays, which share the memory of tensors on a CPU."""
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
