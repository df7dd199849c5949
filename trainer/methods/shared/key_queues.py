"""Queues of keys for momentum contrast: more negatives than one batch holds (bmu-moco, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class KeyQueues(nn.Module):
    """Q^T and Q^V: ring buffers with the newest keys of texts and of videos.

    The buffers start with random unit vectors. Batches may have any size.

    Args:
        length: N_Q, keys per queue.
        dim: Dimension of the joint space.

    Attributes:
        texts: ``[length, dim]`` text keys.
        videos: ``[length, dim]`` video keys.
        oldest: Position of the oldest key.
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
        """Replace the B oldest keys of both queues.

        Args:
            texts: ``[B, dim]`` text keys.
            videos: ``[B, dim]`` video keys.
        """
        length = len(self.texts)
        places = (self.oldest + torch.arange(len(texts), device=texts.device)) % length
        self.texts[places[-length:]] = texts[-length:]
        self.videos[places[-length:]] = videos[-length:]
        self.oldest.copy_((places[-1] + 1) % length)
