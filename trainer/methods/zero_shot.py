"""Zero-shot: the pre-trained backbone as it is, a reference that neither learns nor forgets.

It is not a lower bound: in table 1 of ctvr-ffa-tame, as in ours, some trained methods have lower recall.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from models.encoders.frozen_families import FROZEN_FAMILY
from models.encoders.tower_forward import encode_frames
from trainer.methods.base import Method, MethodConfig


class ZeroShotConfig(MethodConfig):
    """Settings of the method."""

    last_epoch: Literal["train"] = "train"  # it learns no caption


class ZeroShot(Method):
    """The frozen backbone as a method."""

    name = "zero_shot"
    family = FROZEN_FAMILY
    is_trainable = False
    config_class = ZeroShotConfig

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return encode_frames(self.backbone, frames)[0]

    def video_tensors(self) -> dict[str, Tensor]:
        return {}
