"""Strata: adapters that may forget, because nothing asks them to remember.

FFA + TAME holds one text encoder for all tasks and must learn slowly, lest queries drift away from videos that were
embedded earlier. Here every shard is asked with the text adapters of the release that made it (pinned queries), so
its videos and its queries stand still together, and learning a new domain can take what steps it likes:

- The image tower learns freely: Frame Fusion Adapters bring in time, and low-rank updates reach every matrix of
  its blocks. It is never needed again once the domain's videos are embedded.
- The text tower learns one low-rank update per attention projection, without experts or router: the update is a
  task's own, and small enough to be kept for ever.
- Both start from what the previous domain left, so that what domains share is learned once.
- Which shard a query means is told by its words (``models.routing``), which cosines of differently learned
  encoders cannot tell.

What is known of its worth is in ``docs/method.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from models.backbone import Backbone
from models.ffa import FrameFusion, Mix, Neighbour
from models.low_rank import LowRankTower
from models.release import ReleaseState
from models.tame import BARE, Tame
from models.towers import encode_frames, encode_texts
from trainer.data import Pair
from trainer.losses import in_task_loss
from trainer.methods.base import Method, MethodConfig

__all__ = ["Strata", "StrataConfig"]

_OWN = 0  # the one expert that every task uses


class StrataConfig(MethodConfig):
    """Settings of Strata."""

    ffa_layers: int = Field(
        default=12, ge=0, description="deepest visual blocks that get an FFA; 0: without FFA"
    )
    ffa_neighbour: Neighbour = "alternate"
    ffa_mix: Mix = "convex"
    image_rank: int = Field(default=16, ge=1, le=1024, description="of the image tower's updates")
    rank: int = Field(default=16, ge=1, le=1024, description="of the text tower's updates")
    scale: float = Field(default=1.0, gt=0, le=100, description="λ, of all updates")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="on the input of the text tower's updates")
    image_learning_rate: float = Field(
        default=1e-4, gt=0, le=1, description="FFA and the image tower's updates"
    )
    learning_rate: float = Field(default=1e-4, gt=0, le=1, description="the text tower's updates")
    gate_learning_rate: float = Field(default=1e-3, gt=0, le=1, description="α of FFA")


class Strata(Method):
    """Low-rank updates of both towers and FFA, searched with pinned queries."""

    name = "strata"
    kind = "tame"
    config_class = StrataConfig
    config: StrataConfig
    architecture: ClassVar[tuple[str, ...]] = (
        "ffa_layers",
        "ffa_neighbour",
        "ffa_mix",
        "image_rank",
        "rank",
        "scale",
    )

    def __init__(self, backbone: Backbone, config: StrataConfig) -> None:
        super().__init__(backbone, config)
        blocks = backbone.visual_blocks
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.image = LowRankTower(backbone, rank=config.image_rank, scale=config.scale)
            self.fusion = FrameFusion(
                blocks[0].attn.embed_dim,
                blocks[0].attn.num_heads,
                len(blocks),
                layers=config.ffa_layers,
                neighbour=config.ffa_neighbour,
                mix=config.ffa_mix,
            )
            self.text = Tame(
                backbone.text_width,
                len(backbone.text_blocks),
                experts=1,
                rank=config.rank,
                top_k=1,
                scale=config.scale,
                dropout=config.dropout,
            )
        self.fusion.to(backbone.device)
        self.text.to(backbone.device)
        self.train(False)
        self.end_task()

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Open all updates; a task that is only indexed takes them as they are."""
        untouched = not trained and all(expert == BARE for expert in self.text.task_experts)
        # Without a router a prototype decides nothing.
        self.text.add_task(expert=BARE if untouched else _OWN).data.zero_()
        self._require_grad(trained)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Contrast within the batch; what earlier domains hold cannot be mistaken, since routing comes first."""
        videos, _ = encode_frames(self.image.backbone, frames, self.fusion)
        condition = self.text.condition([len(self.learned)])
        queries = encode_texts(self.backbone, self.backbone.tokenize(texts), condition)[0]
        return in_task_loss(queries, videos, self.config.logit_scale)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Close all updates."""
        self._require_grad(False)

    # -- training ---------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        config, decay = self.config, self.config.weight_decay
        gates = self.fusion.gates()
        fusion = [p for p in self.fusion.parameters() if all(p is not gate for gate in gates)]
        image = {"params": [*fusion, *self.image.updates()], "lr": config.image_learning_rate}
        text = {"params": [self.text.a, self.text.b], "lr": config.learning_rate}
        groups = [image, text, {"params": gates, "lr": config.gate_learning_rate}]
        return [{**group, "weight_decay": decay} for group in groups if group["params"]]

    def train(self, mode: bool = True) -> None:
        self.text.train(mode)

    def state_dict(self) -> dict[str, Tensor]:
        return self.video_tensors() | {f"tame.{name}": t for name, t in self.text.tensors().items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        def under(prefix: str) -> dict[str, Tensor]:
            return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}

        self.image.load_tensors(under("image."))
        self.fusion.load_state_dict(under("ffa."))
        self.text.load_tensors(under("tame."))

    # -- encoding ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return encode_frames(self.image.backbone, frames, self.fusion)[0]

    def video_tensors(self) -> dict[str, Tensor]:
        image = {f"image.{name}": tensor for name, tensor in self.image.tensors().items()}
        return image | {f"ffa.{name}": t.detach() for name, t in self.fusion.state_dict().items()}

    # -- inside -----------------------------------------------------------------------------------------

    def continue_from(self, previous: ReleaseState) -> None:
        """Go on from a release; shards that predate the adapters are asked with the bare text tower."""
        if previous.kind == "frozen":
            for _ in previous.tasks:
                self.text.add_task(expert=BARE).data.zero_()
            return
        self.load_state_dict(previous.tensors)
        self.end_task()

    def _require_grad(self, trained: bool) -> None:
        for parameter in (*self.image.updates(), *self.fusion.parameters(), self.text.a, self.text.b):
            parameter.requires_grad_(trained)
        # Nothing is routed.
        for parameter in (self.text.router, self.text.noise, *self.text.prototypes):
            parameter.requires_grad_(False)
