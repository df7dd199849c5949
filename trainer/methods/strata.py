"""Strata: adapters that may forget, because nothing asks them to remember.

FFA + TAME holds one text encoder for all tasks and must learn slowly, lest queries drift away from videos that were
embedded earlier. Here every shard is asked with the text update of the release that made it (pinned queries), so
its videos and its queries stand still together, and learning a new domain can take what steps it likes:

- The image tower learns freely: Frame Fusion Adapters bring in time, and low-rank updates reach every matrix of
  its blocks. It is never needed again once the domain's videos are embedded.
- The text tower learns what a domain's words mean (the embeddings of the tokens in its captions), with a step a
  hundred times as large as its weights could take, and how to read them (one low-rank update per attention
  projection). Both are a task's own, and small enough to be kept for ever.
- Both towers start from half of what the previous domain left: what domains share need not be learned again, and
  what they do not share must not be unlearned first.
- Which shard a query means is told by its words (``models.routing.router``), which cosines of differently learned
  encoders cannot tell.

What is known of its worth is in ``docs/method.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from models.adapters.frame_fusion import FrameFusion, FusionMix, FusionNeighbor
from models.adapters.low_rank_image_tower import LowRankImageTower
from models.adapters.low_rank_text_update import TextUpdate
from models.backbones.backbone import Backbone
from models.encoders.families.frozen_family import FROZEN_FAMILY
from models.encoders.families.low_rank_family import LOW_RANK_FAMILY
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from trainer.losses import in_task_loss
from trainer.methods.base import Method, MethodConfig
from trainer.task_data import Pair

__all__ = ["Strata", "StrataConfig"]


class StrataConfig(MethodConfig):
    """Settings of Strata."""

    ffa_layers: int = Field(
        default=12, ge=0, description="deepest visual blocks that get an FFA; 0: without FFA"
    )
    ffa_neighbour: FusionNeighbor = "alternate"
    ffa_mix: FusionMix = "convex"
    image_rank: int = Field(default=16, ge=1, le=1024, description="of the image tower's updates")
    rank: int = Field(default=16, ge=1, le=1024, description="of the text tower's updates")
    scale: float = Field(default=1.0, gt=0, le=100, description="λ, of all low-rank updates")
    carry: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the previous domain's updates that a domain begins with",
    )
    image_learning_rate: float = Field(
        default=1e-4, gt=0, le=1, description="FFA and the image tower's updates"
    )
    learning_rate: float = Field(default=1e-4, gt=0, le=1, description="the text tower's low-rank updates")
    word_learning_rate: float = Field(
        default=1e-3, ge=0, le=1, description="token embeddings; 0 leaves words as they are"
    )
    gate_learning_rate: float = Field(default=1e-3, gt=0, le=1, description="α of FFA")


class Strata(Method):
    """Low-rank updates of both towers, FFA and words, searched with pinned queries."""

    name = "strata"
    family = LOW_RANK_FAMILY
    config_class = StrataConfig
    config: StrataConfig
    architecture_settings: ClassVar[tuple[str, ...]] = (
        "ffa_layers",
        "ffa_neighbour",
        "ffa_mix",
        "image_rank",
        "rank",
        "scale",
    )

    def __init__(self, backbone: Backbone, config: StrataConfig) -> None:
        super().__init__(backbone, config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.image = LowRankImageTower(backbone, rank=config.image_rank, scale=config.scale)
            self.fusion = FrameFusion.for_backbone(
                backbone,
                layers=config.ffa_layers,
                neighbor=config.ffa_neighbour,
                mix=config.ffa_mix,
            )
            self.text = TextUpdate(
                backbone.text_width,
                len(backbone.text_blocks),
                backbone.vocabulary,
                rank=config.rank,
                scale=config.scale,
            )
        self.fusion.to(backbone.device)
        self.text.to(backbone.device)
        self.end_task()

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Open all updates, brought back towards nothing; a task that is only indexed takes them as they are.

        A network that goes on from weights that fit other data well learns worse than one that begins anew, unless
        its weights are shrunk first (Ash and Adams, "On warm-starting neural network training", NeurIPS 2020).
        """
        self._require_grad(trained)
        if trained:
            with torch.no_grad():
                for parameter in self._from_zero():
                    parameter.mul_(self.config.carry)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Contrast within the batch; what earlier domains hold cannot be mistaken, since routing comes first."""
        videos, _ = encode_frames(self.image.backbone, frames, self.fusion)
        queries = encode_texts(self.backbone, self.backbone.tokenize(texts), self.text.updates())[0]
        return in_task_loss(queries, videos, self.config.logit_scale)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Close all updates; of the words, keep those that the task's captions hold."""
        self._require_grad(False)
        if pairs:
            self.text.forget_words(self.backbone.tokenize([pair.caption for pair in pairs]).unique())

    # -- training ---------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        config, decay = self.config, self.config.weight_decay
        gates = self.fusion.gates()
        fusion = [p for p in self.fusion.parameters() if all(p is not gate for gate in gates)]
        image = {"params": [*fusion, *self.image.updates()], "lr": config.image_learning_rate}
        text = {"params": [self.text.a, self.text.b], "lr": config.learning_rate}
        gates_of_time = {"params": gates, "lr": config.gate_learning_rate}
        groups = [{**group, "weight_decay": decay} for group in (image, text, gates_of_time)]
        # Decay would wear off the words of earlier domains, and those that a step does not hold.
        groups.append({"params": [self.text.words], "lr": config.word_learning_rate, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]

    def state_dict(self) -> dict[str, Tensor]:
        return self.video_tensors() | {f"text.{name}": t for name, t in self.text.tensors().items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        def under(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        self.image.load_tensors(under("image."))
        self.fusion.load_state_dict(under("ffa."))
        self.text.load_tensors(under("text."))

    # -- encoding ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return encode_frames(self.image.backbone, frames, self.fusion)[0]

    def video_tensors(self) -> dict[str, Tensor]:
        image = {f"image.{name}": tensor for name, tensor in self.image.tensors().items()}
        return image | {f"ffa.{name}": t.detach() for name, t in self.fusion.state_dict().items()}

    # -- inside -----------------------------------------------------------------------------------------

    def load_release(self, previous: ReleaseState) -> None:
        """Go on from a release; one that learned nothing leaves nothing to go on from."""
        if previous.kind != FROZEN_FAMILY.kind:
            self.load_state_dict(previous.tensors)
            self.end_task()

    def _from_zero(self) -> list[nn.Parameter]:
        """The factor of every update that is 0 in the beginning: what it is multiplied with, the update is."""
        return [*self.image.gains(), *self.fusion.gates(), self.text.b, self.text.words]

    def _require_grad(self, trained: bool) -> None:
        for parameter in (*self.image.updates(), *self.fusion.parameters(), *self.text.parameters()):
            parameter.requires_grad_(trained)
