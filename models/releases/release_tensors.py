"""Weights of releases, which are arrays, as tensors of torch, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def tensors_with_prefix(prefix: str, weights: Mapping[str, npt.NDArray[Any] | Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the weights whose names start with a prefix, by the rest of their names.

    Args:
        weights: Arrays of a release, whose memory the tensors share, or tensors.
    """
    return {
        name.removeprefix(prefix): torch.as_tensor(weight)
        for name, weight in weights.items()
        if name.startswith(prefix)
    }


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of tensors by name; they share the memory of tensors on a CPU."""
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
