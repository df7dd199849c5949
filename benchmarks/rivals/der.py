"""DER and DER++: dark experience replay (Buzzega et al. 2020, "Dark experience for general continual learning").

The memory stores training pairs together with the model's responses to them at that time. DER penalizes the mean
squared difference between current and stored responses with weight α. DER++ also learns the pairs themselves again,
from a second draw, with weight β.

A classifier's response is a row of logits. The response of two towers is a matrix of retrieval logits, the scaled
similarities between a batch of texts and a batch of videos, as in bmu-moco. Logits against the original batch could not
be recomputed, so the memory stores both vectors of a pair, and compares the logits among the drawn pairs, current
against stored. bmu-moco keeps them in a ring (``fill: ring``), the original in a reservoir, whose responses come from
the whole training path; the default is the reservoir.

Other differences, notably that pairs from the current task are not drawn, are in ``shared.replay``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from benchmarks.rivals.shared.replay import FillRule, ReplayConfig, ReplayMethod


class DerConfig(ReplayConfig):
    """Settings of DER and DER++."""

    fill: FillRule = "reservoir"
    response: float = Field(
        default=0.3,
        ge=0,
        le=100,
        description="α, weight of the responses; these are logits, which grow with logit_scale",
    )
    replay: float = Field(
        default=0.0, ge=0, le=100, description="β, weight of the pairs themselves; 0: DER, above: DER++"
    )


class Der(ReplayMethod):
    """Fine-tuning with stored responses to past pairs as targets."""

    name = "der"
    config_class = DerConfig
    config: DerConfig
    stores_vectors = True

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the task's own loss + α · response loss + β · loss of past pairs."""
        config = self.config
        ids = self.tokenize(texts)
        vectors = self.encode(frames, ids)
        self.record_batch(frames, ids, vectors)
        loss = self.contrastive_loss(*vectors)
        past = self.sample_past(config.replay_batch, frames.device)
        if past is not None and config.response > 0:
            current = self.encode(past["frames"], past["ids"])
            stored = past["queries"], past["videos"]
            loss = loss + config.response * response_loss(current, stored, config.logit_scale)
        again = self.sample_past(config.replay_batch, frames.device) if config.replay > 0 else None
        if again is not None:
            vectors = self.encode(again["frames"], again["ids"])
            loss = loss + config.replay * self.contrastive_loss(*vectors)
        return loss


def response_loss(current: tuple[Tensor, Tensor], stored: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """Compute the mean squared difference between retrieval logits.

    Args:
        current: The trained model's query and video vectors for the drawn pairs, ``[B, D]`` each.
        stored: The memory's query and video vectors for the same pairs, ``[B, D]`` each.
        scale: 1/τ, which turns similarities into logits.
    """
    return F.mse_loss(scale * current[0] @ current[1].T, scale * stored[0] @ stored[1].T)
