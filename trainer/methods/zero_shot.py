"""Zero-shot: the pre-trained backbone as it is, a reference that neither learns nor forgets.

It is not a lower bound: in table 1 of ctvr-ffa-tame, as in ours, some trained methods have lower recall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from models.encoders.frozen_families import FROZEN_FAMILY
from models.encoders.tower_forward import encode_frames
from trainer.methods.base import Method, MethodConfig
from trainer.task_data import Pair


class ZeroShotConfig(MethodConfig):
    """Settings of the method."""

    last_epoch: Literal["train"] = "train"  # it learns no caption


class ZeroShot(Method):
    """The frozen backbone as a method."""

    name = "zero_shot"
    family = FROZEN_FAMILY
    is_trainable = False
    config_class = ZeroShotConfig

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Do nothing."""

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        raise AssertionError("zero_shot has no loss")

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Do nothing."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        return []

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing."""

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return encode_frames(self.backbone, frames)[0]

    def video_tensors(self) -> dict[str, Tensor]:
        return {}
