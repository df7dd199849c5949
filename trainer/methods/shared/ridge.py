"""Closed-form ridge regression, from sums whose size does not grow with the tasks.

A regression over all tasks so far needs only sums over videos: of features, targets and their products. A method that
keeps these sums solves the joint problem without reading an old video (Zhuang et al., "ACIL: Analytic Class-Incremental
Learning", NeurIPS 2022; McDonnell et al., "RanPAC", NeurIPS 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_STD_FLOOR = 0.02  # share of the features' root mean square that is added to each standard deviation


@dataclass(frozen=True)
class RegressionSums:
    """Sums over videos that determine a ridge regression, float64.

    Attributes:
        count: Number of videos n, ``[]``.
        features: Σ x, ``[F]``.
        products: Σ xᵀx, ``[F, F]``.
        targets: Σ y, ``[D]``.
        cross: Σ xᵀy, ``[F, D]``.
    """

    count: Tensor
    features: Tensor
    products: Tensor
    targets: Tensor
    cross: Tensor

    @classmethod
    def empty(cls, features: int, targets: int) -> RegressionSums:
        """Start with the sums over no videos."""
        sizes = ((), (features,), (features, features), (targets,), (features, targets))
        return cls(*(torch.zeros(size, dtype=torch.float64) for size in sizes))

    def add(self, features: Tensor, targets: Tensor) -> RegressionSums:
        """Return new sums that include n more videos.

        Args:
            features: x, ``[n, F]``.
            targets: y, ``[n, D]``.
        """
        x, y = features.double().cpu(), targets.double().cpu()
        return RegressionSums(
            self.count + len(x),
            self.features + x.sum(0),
            self.products + x.T @ x,
            self.targets + y.sum(0),
            self.cross + x.T @ y,
        )

    def solve(self, penalty: float) -> tuple[Tensor, Tensor]:
        """Solve the ridge regression xW + b on standardized features.

        Args:
            penalty: Penalty ρ on squared weights.

        Returns:
            W ``[F, D]`` and b ``[D]``, float64. Without videos, both are zero.
        """
        n = float(self.count)
        if not n:
            return torch.zeros_like(self.cross), torch.zeros_like(self.targets)
        mean, target_mean = self.features / n, self.targets / n
        covariance = self.products - n * torch.outer(mean, mean)
        cross = self.cross - torch.outer(self.features, target_mean)
        std = (covariance.diagonal() / n).clamp(min=0).sqrt()
        std = std + _STD_FLOOR * (self.products.diagonal() / n).mean().sqrt() + 1e-12
        system = covariance / std[:, None] / std
        system.diagonal().add_(penalty)
        weights = torch.linalg.solve(system, cross / std[:, None]) / std[:, None]
        return weights, target_mean - mean @ weights

    def tensors(self) -> dict[str, Tensor]:
        """Convert to what a release stores: float32, and one triangle of the symmetric matrix."""
        rows, columns = torch.triu_indices(*self.products.shape).unbind()
        stored = {name: getattr(self, name) for name in ("count", "features", "targets", "cross")}
        stored["products"] = self.products[rows, columns]
        return {name: tensor.float() for name, tensor in stored.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> RegressionSums:
        """Restore the sums from the result of :meth:`tensors`."""
        loaded = {name: tensor.double().cpu() for name, tensor in tensors.items()}
        size = len(loaded["features"])
        upper = torch.zeros(size, size, dtype=torch.float64)
        rows, columns = torch.triu_indices(size, size).unbind()
        upper[rows, columns] = loaded["products"]
        return cls(**{**loaded, "products": upper + upper.triu(1).T})


def fit_ridge(features: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Fit a ridge regression on standardized features, as :meth:`RegressionSums.solve` does.

    With fewer videos than features, solve the dual problem, whose size is the number of videos.

    Args:
        features: ``[n, F]``, n ≥ 1.
        targets: ``[n, D]``.
        penalty: Penalty on squared weights.

    Returns:
        W ``[F, D]`` and b ``[D]``, float64.
    """
    x, y = features.double().cpu(), targets.double().cpu()
    n, size = x.shape
    if n >= size:
        return RegressionSums.empty(size, y.shape[1]).add(x, y).solve(penalty)
    mean, target_mean = x.mean(0), y.mean(0)
    std = x.std(0, correction=0) + _STD_FLOOR * x.square().mean().sqrt() + 1e-12
    z = (x - mean) / std
    system = z @ z.T
    system.diagonal().add_(penalty)
    weights = z.T @ torch.linalg.solve(system, y - target_mean) / std[:, None]
    return weights, target_mean - mean @ weights
