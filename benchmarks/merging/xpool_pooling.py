"""X-Pool with its learned projections, trained on the frozen vectors of one shard.

Gorti et al., "X-Pool: Cross-Modal Language-Video Attention for Text-Video Retrieval", CVPR 2022, section 4. With the
text c, the frames C of a video, the layer normalization LN and a linear layer FC:

    Q = LN(c) W_Q,   K = LN(C) W_K,   V = LN(C) W_V
    r = LN(softmax(Q Kᵀ / √D) V W_O)
    z = LN(FC(r) + r),   s(c, C) = cos(c, z)

Linear layers start as the identity, and the loss is the symmetric cross entropy of a batch. The difference to the
paper: both towers stay frozen, because the vectors of a shard and its query encoder never change, so only the pooling
is trained, with the captions of the training videos of the shard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["XPool", "train_xpool"]

_LOGIT_SCALE = 100.0  # of CLIP
_DROPOUT = 0.3  # as in the paper for MSR-VTT
_BATCH = 32  # as in the paper
_WEIGHT_DECAY = 0.2  # as in the paper


class XPool(nn.Module):
    """Text-conditioned pooling of frame vectors.

    Args:
        dim: Dimension D of texts and frames.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output, self.linear = (nn.Linear(dim, dim) for _ in range(5))
        for layer in (self.query, self.key, self.value, self.output, self.linear):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.input_norm, self.pooled_norm, self.final_norm = (nn.LayerNorm(dim) for _ in range(3))
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, texts: Tensor, frames: Tensor) -> Tensor:
        """Scores ``[Q, G]`` of texts ``[Q, D]`` with the frames ``[G, M, D]`` of videos."""
        normalized = self.input_norm(frames)
        keys, values = self.key(normalized), self.value(normalized)
        logits = torch.einsum("qd,gmd->qgm", self.query(self.input_norm(texts)), keys) / math.sqrt(
            texts.shape[1]
        )
        attended = torch.einsum("qgm,gmd->qgd", logits.softmax(dim=-1), values)
        pooled = self.pooled_norm(self.output(attended))
        video = self.final_norm(pooled + self.dropout(self.linear(pooled)))
        return torch.einsum("qd,qgd->qg", F.normalize(texts, dim=-1), F.normalize(video, dim=-1))


def train_xpool(
    texts: Tensor,
    frames: Tensor,
    videos: Sequence[int],
    *,
    epochs: int,
    learning_rate: float,
    seed: int = 0,
) -> XPool:
    """Train the pooling of one shard.

    Args:
        texts: Query vectors of the training captions ``[N, D]``.
        frames: Frame vectors of the training videos ``[G, M, D]``.
        videos: Position of each caption's video.
        epochs: Passes over the captions.
        learning_rate: Learning rate of AdamW, with cosine decay to 0 as in the paper.
        seed: Seed of the order and of dropout.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = XPool(texts.shape[1]).train()
        rows = torch.tensor(videos)
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=_WEIGHT_DECAY)
        steps = epochs * math.ceil(len(texts) / _BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
        for _ in range(epochs):
            for part in torch.randperm(len(texts)).split(_BATCH):
                scores = _LOGIT_SCALE * model(texts[part], frames[rows[part]])
                # Captions of the same video are no negatives of one another.
                same = rows[part][:, None] == rows[part]
                scores = scores.masked_fill(same & ~torch.eye(len(part), dtype=torch.bool), -torch.inf)
                target = torch.arange(len(part))
                loss = F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return model.eval()
