"""CLIP-ViP: sequential fine-tuning of a CLIP whose image tower attends across frames (Xue et al. 2023, "CLIP-ViP:
Adapting pre-trained image-text model to video-language alignment"; a baseline of ctvr-ffa-tame).

Video proxies exchange information between frames (``encoders.proxy_family``). Both towers and the proxies are trained
on every task with CLIP's contrastive loss, and earlier tasks are not protected. A video's vector does not depend on the
query, so it is stored like any other.

Difference from the paper: its post-pre-training on 100 million video clips with captions for their frames (section 3.4)
is left out; ctvr-ffa-tame starts every method from CLIP, too. The proxies therefore start from random values and have
their own learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.encoders.proxy_family import PROXY_FAMILY, VideoProxies, encode_with_proxies
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_texts
from models.releases.release_tensors import tensors_with_prefix
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair

_PREFIX = "proxies."


class ClipVipConfig(FinetuneConfig):
    """Settings of CLIP-ViP."""

    proxies: int = Field(
        default=4,
        ge=1,
        le=64,
        description="M, video proxies including the class token; ctvr-ffa-tame, section 4.4",
    )
    proxy_learning_rate: float = Field(
        default=1e-5, gt=0, le=1, description="learning rate of proxies and temporal embedding"
    )


class ClipVip(Finetune):
    """Fine-tuning of both towers and of proxies between frames."""

    name = "clip_vip"
    family = PROXY_FAMILY
    config_class = ClipVipConfig
    config: ClipVipConfig
    architecture_settings: ClassVar[tuple[str, ...]] = ("proxies",)

    def __init__(self, backbone: Backbone, config: ClipVipConfig) -> None:
        super().__init__(backbone, config)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.proxies = VideoProxies(backbone, config.proxies)
        self.proxies.to(backbone.device).requires_grad_(False)

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self.proxies.requires_grad_(trained)

    def embed(
        self, frames: Tensor, texts: Sequence[str], model: Backbone | None = None
    ) -> tuple[Tensor, Tensor]:
        model = model or self.model
        return encode_texts(model, model.tokenize(texts))[0], encode_with_proxies(model, frames, self.proxies)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.proxies.requires_grad_(False)

    def parameter_groups(self) -> list[dict[str, Any]]:
        proxies = {
            "params": list(self.proxies.parameters()),
            "lr": self.config.proxy_learning_rate,
            "weight_decay": self.config.weight_decay,
        }
        return [*super().parameter_groups(), proxies]

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), **self._proxy_tensors()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict({name: t for name, t in tensors.items() if not name.startswith(_PREFIX)})
        self.proxies.load_state_dict(tensors_with_prefix(_PREFIX, tensors))

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return encode_with_proxies(self.model, frames, self.proxies)

    def video_tensors(self) -> dict[str, Tensor]:
        return {**super().video_tensors(), **self._proxy_tensors()}

    def _proxy_tensors(self) -> dict[str, Tensor]:
        return {_PREFIX + name: tensor for name, tensor in self.proxies.state_dict().items()}
