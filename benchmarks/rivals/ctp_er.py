"""CTP + ER: CTP with experience replay (ctp, table 1).

The memory of ``er`` adds past pairs to every batch, and the union has all of CTP's losses (equation 10): the previous
and the momentum networks encode past pairs, too, and their keys enter the queues, as in the published code.

Difference from the paper: the published code fills the memory by a reservoir after every task and adds it to the next
task's training pairs. Here a ring is the default, and every batch has a fixed number of past pairs, as for ``er``.
Other differences are in ``trainer.methods.ctp`` and ``shared.replay``.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from benchmarks.rivals.shared.replay import ReplayConfig, ReplayMethod
from trainer.methods.ctp import Ctp, CtpConfig


class CtpErConfig(CtpConfig, ReplayConfig):
    """Settings of CTP with experience replay."""


class CtpEr(ReplayMethod, Ctp):
    """CTP on the union of a current and a past batch."""

    name = "ctp_er"
    config_class = CtpErConfig
    config: CtpErConfig
    architecture_settings = (*Ctp.architecture_settings, *ReplayMethod.architecture_settings)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute equation 10 of ctp over current and past pairs."""
        ids = self.tokenize(texts)
        self.record_batch(frames, ids)
        union, union_ids = self.append_past(frames, ids, self.config.replay_batch)
        return self.pair_loss(union, self.trim(union_ids))
