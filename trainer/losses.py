"""Contrastive losses over unit vectors. Temperatures are given as their inverse, a scale; each loss is a scalar."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["cross_task_loss", "in_task_loss"]


def in_task_loss(texts: Tensor, videos: Tensor, scale: float) -> Tensor:
    """½ (L_v2t + L_t2v) of ctvr-ffa-tame, equations 7 and 9: contrast within the batch in both directions.

    Args:
        texts: Query vectors ``[B, D]``; row i belongs to video i.
        videos: Video vectors ``[B, D]``.
        scale: Inverse temperature 1/τ.
    """
    similarity = scale * texts @ videos.T
    truth = torch.arange(len(similarity), device=similarity.device)
    return (F.cross_entropy(similarity, truth) + F.cross_entropy(similarity.T, truth)) / 2


def cross_task_loss(texts: Tensor, videos: Tensor, references: Tensor, scale: float) -> Tensor:
    """L_CT of ctvr-ffa-tame, equation 8: text to video, with stored videos of earlier tasks as negatives.

    Args:
        texts: Query vectors ``[B, D]``; row i belongs to video i.
        videos: Video vectors ``[B, D]``.
        references: Stored vectors ``[R, D]`` of earlier tasks; no gradient reaches them.
        scale: Inverse temperature 1/τ.
    """
    similarity = scale * texts @ torch.cat([videos, references.detach()]).T
    return F.cross_entropy(similarity, torch.arange(len(texts), device=similarity.device))
