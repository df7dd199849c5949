"""DER and DER++: dark experience replay (Buzzega et al. 2020, "Dark experience for general continual learning").

The memory holds pairs as they passed, together with what the model answered to them at that time. DER holds
the answers to pairs of the memory to those, by the mean squared error with weight α; DER++ also learns the
pairs themselves again, from a draw of its own, with weight β.

The answer of a classifier is a row of logits. That of two towers are retrieval logits, the scaled similarities
of a batch of texts to a batch of videos, and this is what bmu-moco takes too. Logits against the batch of the
time could not be computed again; so both vectors of a pair are stored, and the logits of the drawn pairs among
each other are compared, now and as stored. bmu-moco keeps them in a ring (``fill: ring``), the original in a
reservoir, whose answers come from all along the way; ours is the original's unless told otherwise.

What else differs is settled in ``trainer.methods.shared.replay``: notably, pairs of the current task are not drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from trainer.methods.shared.replay import Fill, Replay, ReplayConfig

__all__ = ["Der", "DerConfig", "response_loss"]


class DerConfig(ReplayConfig):
    """Settings of DER and DER++."""

    fill: Fill = "reservoir"
    response: float = Field(
        default=0.3,
        ge=0,
        le=100,
        description="α, weight of the answers; of logits, which grow with logit_scale",
    )
    replay: float = Field(
        default=0.0, ge=0, le=100, description="β, weight of the pairs themselves; 0: DER, above: DER++"
    )


class Der(Replay):
    """Fine-tuning, with the answers of earlier times to past pairs as a target."""

    name = "der"
    config_class = DerConfig
    config: DerConfig
    keeps_vectors = True

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """The task's own loss + α · answers + β · loss of past pairs."""
        config = self.config
        ids = self.tokenize(texts)
        vectors = self.encode(frames, ids)
        self.notice(frames, ids, vectors)
        loss = self.contrast(*vectors)
        past = self.recall(config.replay_batch, frames.device)
        if past is not None and config.response > 0:
            now = self.encode(past["frames"], past["ids"])
            then = past["queries"], past["videos"]
            loss = loss + config.response * response_loss(now, then, config.logit_scale)
        again = self.recall(config.replay_batch, frames.device) if config.replay > 0 else None
        if again is not None:
            loss = loss + config.replay * self.contrast(*self.encode(again["frames"], again["ids"]))
        return loss


def response_loss(now: tuple[Tensor, Tensor], then: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """The mean squared difference of retrieval logits.

    Args:
        now, then: query and video vectors of the same pairs, both ``[B, D]``.
        scale: 1/τ, which makes logits of similarities.
    """
    return F.mse_loss(scale * now[0] @ now[1].T, scale * then[0] @ then[1].T)
