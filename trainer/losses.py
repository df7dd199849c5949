"""Losses over unit vectors; every one gives a scalar. Temperatures are passed as their inverse, a scale."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["cross_task_loss", "in_task_loss"]


def in_task_loss(texts: Tensor, videos: Tensor, scale: float) -> Tensor:
    """½ (L_v2t + L_t2v) of ctvr-ffa-tame, equations 7 and 9: contrast within the batch, both ways.

    Args:
        texts: ``[B, D]`` query vectors; row i belongs to video i.
        videos: ``[B, D]``.
        scale: 1/τ.
    """
    similarity = scale * texts @ videos.T
    truth = torch.arange(len(similarity), device=similarity.device)
    return (F.cross_entropy(similarity, truth) + F.cross_entropy(similarity.T, truth)) / 2


def cross_task_loss(texts: Tensor, videos: Tensor, references: Tensor, scale: float) -> Tensor:
    """L_CT of ctvr-ffa-tame, equation 8: text to video, with stored videos of earlier tasks as negatives.

    Args:
        texts, videos: ``[B, D]``, as in :func:`in_task_loss`.
        references: ``[R, D]`` stored vectors; no gradient reaches them.
        scale: 1/τ.
    """
    similarity = scale * texts @ torch.cat([videos, references.detach()]).T
    return F.cross_entropy(similarity, torch.arange(len(texts), device=similarity.device))
