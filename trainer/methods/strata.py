"""Strata: low-rank updates and word embeddings per task, searched with pinned queries.

FFA + TAME has one text encoder for all tasks and must learn slowly, so that queries do not drift away from videos that
are already embedded. Strata encodes the query for a shard with the text update of the release that made the shard
(pinned queries). A shard's queries and videos never change, so a new domain can be trained without protecting earlier
ones:

- The image tower has Frame Fusion Adapters, which add attention across frames, and low-rank updates of every matrix in
  its blocks. It is no longer needed once the domain's videos are embedded.
- The text tower learns the embeddings of the tokens in the domain's captions, at 2.5 to 10 times the learning rate of
  the other weights, and one low-rank update per attention projection. Both belong to one task and are small enough to
  be kept forever.
- The updates of both towers start from half of the previous domain's updates, which keeps what the domains share and
  fades what is specific to the previous one.
- The query's words select the shards (``models.routing.router``), since cosines of different tasks' encoders are not
  comparable.

``docs/strata.md`` compares both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from models.adapters.image_adapters import FrameFusion, FusionMix, FusionNeighbor, LowRankImageTower
from models.adapters.low_rank_text_update import TextUpdate
from models.backbones.backbone import Backbone
from models.encoders.adapted_families import LOW_RANK_FAMILY
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_tensors import tensors_with_prefix
from trainer.methods.base import Method, MethodConfig, in_task_loss
from trainer.task_data import Pair


class StrataConfig(MethodConfig):
    """Settings of Strata."""

    ffa_layers: int = Field(default=12, ge=0)  # number of deepest visual blocks with an FFA; 0: no FFA
    ffa_neighbor: FusionNeighbor = "alternate"
    ffa_mix: FusionMix = "convex"
    image_rank: int = Field(default=16, ge=1, le=1024)  # rank of the image tower's updates
    rank: int = Field(default=16, ge=1, le=1024)  # rank of the text tower's updates
    scale: float = Field(default=1.0, gt=0, le=100)  # λ, factor of all low-rank updates
    # share of the previous domain's updates that a domain starts from
    carry: float = Field(default=0.5, ge=0, le=1)
    # learning rate of FFA and the image tower's updates
    image_learning_rate: float = Field(default=1e-4, gt=0, le=1)
    # learning rate of the text tower's low-rank updates
    learning_rate: float = Field(default=1e-4, gt=0, le=1)
    # learning rate of the token embeddings; 0: frozen embeddings
    word_learning_rate: float = Field(default=1e-3, ge=0, le=1)
    gate_learning_rate: float = Field(default=1e-3, gt=0, le=1)  # learning rate of FFA's α


class Strata(Method):
    """Low-rank updates of both towers, FFA of the image tower and word embeddings, one set per task, searched with
    pinned queries.
    """

    name = "strata"
    family = LOW_RANK_FAMILY
    config_class = StrataConfig
    config: StrataConfig
    architecture_settings = ("ffa_layers", "ffa_neighbor", "ffa_mix", "image_rank", "rank", "scale")

    def __init__(self, backbone: Backbone, config: StrataConfig) -> None:
        super().__init__(backbone, config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.image = LowRankImageTower(backbone, rank=config.image_rank, scale=config.scale)
            self.fusion = FrameFusion.for_backbone(
                backbone, layers=config.ffa_layers, neighbor=config.ffa_neighbor, mix=config.ffa_mix
            )
            self.text = TextUpdate.for_backbone(backbone, rank=config.rank, scale=config.scale)
        self.fusion.to(backbone.device)
        self.text.to(backbone.device)
        self.end_task()

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Unfreeze all updates and shrink them by ``carry``; a task without training uses them unchanged.

        A network that continues from weights fitted to other data learns worse than a new one, unless its weights are
        shrunk first (Ash and Adams, "On warm-starting neural network training", NeurIPS 2020).
        """
        self._require_grad(trained)
        if trained:
            with torch.no_grad():
                for parameter in self._zero_initialized():
                    parameter.mul_(self.config.carry)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the contrastive loss within the batch.

        Earlier domains' stored videos are not negatives, since routing selects the shards.
        """
        videos, _ = encode_frames(self.image.backbone, frames, self.fusion)
        queries = encode_texts(self.backbone, self.backbone.tokenize(texts), self.text.as_update_set())[0]
        return in_task_loss(queries, videos, self.config.logit_scale)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Freeze all updates, and reset the embeddings of tokens that the task's captions lack."""
        self._require_grad(False)
        if pairs:
            self.text.reset_other_words(self.backbone.tokenize([pair.caption for pair in pairs]).unique())

    # -- training ---------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        config, decay = self.config, self.config.weight_decay
        gates = self.fusion.gates()
        fusion = [p for p in self.fusion.parameters() if all(p is not gate for gate in gates)]
        image = {"params": [*fusion, *self.image.update_parameters()], "lr": config.image_learning_rate}
        text = {"params": [self.text.a, self.text.b], "lr": config.learning_rate}
        gate_group = {"params": gates, "lr": config.gate_learning_rate}
        groups = [{**group, "weight_decay": decay} for group in (image, text, gate_group)]
        # Weight decay would shrink the embeddings of words that the batch lacks.
        groups.append({"params": [self.text.words], "lr": config.word_learning_rate, "weight_decay": 0.0})
        return [group for group in groups if group["params"]]

    def state_dict(self) -> dict[str, Tensor]:
        return self.video_tensors() | {f"text.{name}": t for name, t in self.text.tensors().items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.image.load_tensors(tensors_with_prefix("image.", tensors))
        self.fusion.load_state_dict(tensors_with_prefix("ffa.", tensors))
        self.text.load_tensors(tensors_with_prefix("text.", tensors))

    # -- encoding ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return encode_frames(self.image.backbone, frames, self.fusion)[0]

    def video_tensors(self) -> dict[str, Tensor]:
        image = {f"image.{name}": tensor for name, tensor in self.image.tensors().items()}
        return image | {f"ffa.{name}": t.detach() for name, t in self.fusion.state_dict().items()}

    # -- internal ---------------------------------------------------------------------------------------

    def _zero_initialized(self) -> list[nn.Parameter]:
        """Collect the zero-initialized factor of each update; scaling it scales the update."""
        return [*self.image.b_matrices(), *self.fusion.gates(), self.text.b, self.text.words]

    def _require_grad(self, trained: bool) -> None:
        for parameter in (
            *self.image.update_parameters(),
            *self.fusion.parameters(),
            *self.text.parameters(),
        ):
            parameter.requires_grad_(trained)
