"""ER-ring: experience replay (Chaudhry et al. 2019, "On tiny episodic memories in continual learning").

Every step learns from the union of the current batch and a batch from the memory (algorithm 1 takes the gradient over
both); bmu-moco describes the past pairs as "simply used as training samples". With a contrastive loss, the union also
makes current and past pairs each other's negatives.

For differences from both papers see ``shared.replay``.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from benchmarks.rivals.shared.replay import ReplayConfig, ReplayMethod


class ErConfig(ReplayConfig):
    """Settings of experience replay."""


class Er(ReplayMethod):
    """Fine-tuning on the union of a current and a past batch."""

    name = "er"
    config_class = ErConfig
    config: ErConfig

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        ids = self.tokenize(texts)
        self.record_batch(frames, ids)
        return self.contrastive_loss(*self.encode(*self.append_past(frames, ids, self.config.replay_batch)))
