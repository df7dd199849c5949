"""CLIP-ViP + VR-LwF: video proxies with vocabulary replay (ctvr-ffa-tame, section 4.3 and table 1).

The trained model and the teacher are both CLIP-ViP; the distillation loss is that of VR-LwF. The teacher is the model
from before the task with its proxies; on the first task, these are the random proxies that training starts from.

Differences from the papers: ctvr-ffa-tame names the combination without details. See also ``clip_vip`` and ``vr_lwf``.
"""

from __future__ import annotations

import copy

from torch import Tensor

from benchmarks.rivals.clip_vip import ClipVip, ClipVipConfig
from benchmarks.rivals.encoders.proxy_family import VideoProxies, encode_with_proxies
from benchmarks.rivals.vr_lwf import VrLwf, VrLwfConfig
from models.backbones.backbone import Backbone


class ClipVipVrLwfConfig(VrLwfConfig, ClipVipConfig):
    """Settings of CLIP-ViP with VR-LwF."""


class ClipVipVrLwf(VrLwf, ClipVip):
    """Fine-tuning of towers and proxies, with the distribution of videos over random sentences as soft targets.

    Attributes:
        teacher_proxies: The teacher's frozen proxies.
    """

    name = "clip_vip_vr_lwf"
    config_class = ClipVipVrLwfConfig
    config: ClipVipVrLwfConfig
    teacher_proxies: VideoProxies

    def create_teacher(self) -> Backbone:
        """Copy the model and its proxies from before the task."""
        self.teacher_proxies = copy.deepcopy(self.proxies).requires_grad_(False)
        return super().create_teacher()

    def encode_teacher_videos(self, teacher: Backbone, frames: Tensor) -> Tensor:
        return encode_with_proxies(teacher, frames, self.teacher_proxies)
