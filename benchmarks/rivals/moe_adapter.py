"""MoE-Adapters (Yu et al. 2024, "Boosting continual learning of vision-language models via mixture-of-experts
adapters"), the dynamic baseline of ctvr-ffa-tame.

The backbone is frozen. Every block in both towers has experts parallel to its MLP (``encoders.experts_family``). A task
trains its own router and all experts that are not frozen: after each task, the k experts in a block that were selected
most often are frozen (activate-freeze). For queries whose task is unknown, autoencoders select the router (DDAS).

Differences from the paper: it classifies images, whose task is unknown, and its texts are class names. In retrieval,
the query is the input with an unknown task, and videos are embedded when their task is learned. The autoencoders
therefore read the frozen backbone's text vectors, where the original reads AlexNet features of the image. They are
trained in the same steps as the experts, without sharing gradients, rather than in a separate stage. The threshold
above which an input goes to the frozen backbone is left out, since every shard belongs to a learned task. The loss is
the other baselines' contrastive loss rather than cross-entropy with label smoothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.encoders.experts_family import (
    EXPERTS_FAMILY,
    NO_ROUTER,
    ExpertTower,
    TaskSelector,
    encode_frames_with_experts,
    encode_texts_with_experts,
)
from models.backbones.backbone import Backbone
from models.backbones.open_clip_backbone import require_clip_blocks
from models.encoders.families.frozen_family import FROZEN_FAMILY
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix
from trainer.methods.base import Method, MethodConfig, in_task_loss
from trainer.task_data import Pair

_TEXT, _VISUAL, _SELECTOR, _TASKS = "moe.text.", "moe.visual.", "moe.selector.", "moe.tasks"


class MoeAdapterConfig(MethodConfig):
    """Settings of MoE-Adapters; the defaults are those of the published code."""

    weight_decay: float = Field(default=0.0, ge=0, le=10)
    learning_rate: float = Field(default=1e-3, gt=0, le=1, description="learning rate of experts and routers")
    experts: int = Field(
        default=22, ge=1, le=256, description="experts per block; the default plans two per task"
    )
    rank: int = Field(default=64, ge=1, le=1024)
    top_k: int = Field(default=2, ge=1, description="experts per input, and experts that are frozen per task")
    scale: float = Field(default=0.1, description="factor of the output of an expert")
    dropout: float = Field(default=0.1, ge=0, lt=1)
    selector: bool = Field(
        default=True,
        description="true: autoencoders select the router of a query; false: a query uses the router of each shard",
    )
    selector_width: int = Field(default=100, ge=1, le=4096, description="dimension of an autoencoder's code")
    selector_learning_rate: float = Field(default=1e-2, gt=0, le=1)


class MoeAdapter(Method):
    """Experts in a frozen backbone, with one router per task.

    Attributes:
        visual: Experts and routers of the image tower.
        text: Experts and routers of the text tower.
        selector: Autoencoders, one per trained task.
        routers: Each task's router number, or ``NO_ROUTER`` for the plain backbone.
    """

    name = "moe_adapter"
    family = EXPERTS_FAMILY
    draws_noise = True
    config_class = MoeAdapterConfig
    config: MoeAdapterConfig
    architecture_settings = ("experts", "rank", "top_k", "scale", "selector", "selector_width")

    def __init__(self, backbone: Backbone, config: MoeAdapterConfig) -> None:
        super().__init__(backbone, config)
        require_clip_blocks(backbone)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.visual, self.text = (
                ExpertTower(
                    width,
                    depth,
                    experts=config.experts,
                    rank=config.rank,
                    top_k=config.top_k,
                    scale=config.scale,
                    dropout=config.dropout,
                ).to(backbone.device)
                for width, depth in (
                    (backbone.visual_width, len(backbone.visual_blocks)),
                    (backbone.text_width, len(backbone.text_blocks)),
                )
            )
        self.selector = TaskSelector(backbone.dim, config.selector_width).to(backbone.device)
        self.routers: list[int] = []
        self._freeze()

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Add a router and an autoencoder; a task without training uses the newest router."""
        if trained:
            for tower in (self.visual, self.text):
                tower.add_router()
                tower.unfreeze_newest()
            if self.config.selector:
                with torch.random.fork_rng():
                    torch.manual_seed(self.config.seed + len(self.learned_tasks))
                    self.selector.add_task()
                self.selector.to(self.backbone.device)
        self.routers.append(self.text.tasks - 1)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Add the reconstruction error of the task's autoencoder to the contrastive loss."""
        task = self.routers[-1]
        ids = self.backbone.tokenize(texts)
        videos = encode_frames_with_experts(self.backbone, frames, self.visual, task)
        queries = encode_texts_with_experts(self.backbone, ids, self.text, [task] * len(ids))
        loss = in_task_loss(queries, videos, self.config.logit_scale)
        if not self.config.selector:
            return loss
        return loss + self.selector.reconstruction_error(encode_texts(self.backbone, ids)[0], task).mean()

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Freeze the experts that the task has selected most often."""
        self._freeze()

    # -- training ---------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        adapters = [p for tower in (self.visual, self.text) for p in tower.parameters() if p.requires_grad]
        selector = [p for p in self.selector.parameters() if p.requires_grad]
        rates = self.config.learning_rate, self.config.selector_learning_rate
        groups = [
            {"params": params, "lr": rate, "weight_decay": self.config.weight_decay}
            for params, rate in zip((adapters, selector), rates, strict=True)
        ]
        return [group for group in groups if group["params"]]

    def train(self, mode: bool = True) -> None:
        self.visual.train(mode)
        self.text.train(mode)

    def state_dict(self) -> dict[str, Tensor]:
        parts = {_VISUAL: self.visual, _TEXT: self.text, _SELECTOR: self.selector}
        tensors = {f"{prefix}{n}": t for prefix, part in parts.items() for n, t in part.state_dict().items()}
        return tensors | {_TASKS: torch.tensor(self.routers, dtype=torch.int64)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.visual.load_tensors(tensors_with_prefix(_VISUAL, tensors))
        self.text.load_tensors(tensors_with_prefix(_TEXT, tensors))
        self.selector.load_tensors(tensors_with_prefix(_SELECTOR, tensors))
        self.routers = tensors[_TASKS].tolist()

    # -- encoding ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        if not self.routers or self.routers[-1] == NO_ROUTER:
            return encode_frames(self.backbone, frames)[0]
        return encode_frames_with_experts(self.backbone, frames, self.visual, self.routers[-1])

    def video_tensors(self) -> dict[str, Tensor]:
        if not self.routers or self.routers[-1] == NO_ROUTER:
            return {}
        router = f".routers.{self.routers[-1]}"
        tensors = self.visual.state_dict().items()
        return {f"{_VISUAL}{n}": t for n, t in tensors if ".experts." in n or n.endswith(router)}

    # -- internal ---------------------------------------------------------------------------------------

    def load_release(self, previous: ReleaseState) -> None:
        """Load a release; queries for a zero-shot release's shards are encoded by the plain text tower."""
        if previous.kind == FROZEN_FAMILY.kind:
            self.routers = [NO_ROUTER] * len(previous.tasks)
            return
        self.load_state_dict(tensors_with_prefix("", previous.tensors))
        self._freeze()

    def _freeze(self) -> None:
        self.visual.finish_task()
        self.text.finish_task()
        self.selector.requires_grad_(False)
        self.train(False)
