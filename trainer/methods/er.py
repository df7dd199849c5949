"""ER-ring: experience replay (Chaudhry et al. 2019, "On tiny episodic memories in continual learning").

Every step learns from the current batch and a batch from the memory together (algorithm 1: the gradient is
taken over the union of both), which bmu-moco puts as "simply used as training samples". With a contrastive
loss the union also means that current and past pairs are each other's negatives.

What differs from both papers is settled in ``trainer.methods.shared.replay``.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from trainer.methods.shared.replay import Replay, ReplayConfig

__all__ = ["Er", "ErConfig"]


class ErConfig(ReplayConfig):
    """Settings of experience replay."""


class Er(Replay):
    """Fine-tuning on the union of a current and a past batch."""

    name = "er"
    config_class = ErConfig
    config: ErConfig

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        ids = self.tokenize(texts)
        self.notice(frames, ids)
        return self.contrast(*self.encode(*self.with_past(frames, ids, self.config.replay_batch)))
