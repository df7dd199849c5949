"""Queues of keys for momentum contrast: more negatives than a batch holds (bmu-moco, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["KeyQueues"]


class KeyQueues(nn.Module):
    """Q^T and Q^V: the newest keys of texts and of videos, ``[length, dim]`` each.

    Until so many have come, random unit vectors stand in. A batch may be of any size.

    Args:
        length: N_Q.
        dim: of the joint space.
    """

    texts: Tensor
    videos: Tensor
    oldest: Tensor

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("texts", F.normalize(torch.randn(length, dim), dim=-1))
        self.register_buffer("videos", F.normalize(torch.randn(length, dim), dim=-1))
        self.register_buffer("oldest", torch.tensor(0))

    def push(self, texts: Tensor, videos: Tensor) -> None:
        """Enqueue ``[B, dim]`` keys of both kinds; as many of the oldest leave."""
        length = len(self.texts)
        places = (self.oldest + torch.arange(len(texts), device=texts.device)) % length
        self.texts[places[-length:]] = texts[-length:]
        self.videos[places[-length:]] = videos[-length:]
        self.oldest.copy_((places[-1] + 1) % length)
