"""Features of the rival: mean and standard deviation over frames of frozen image features."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.clips.ridge_rival import DomainFeatures
from models.backbones.backbone import Backbone
from trainer.batching import chunks
from trainer.task_data import TaskData, load_frames

__all__ = ["FEATURE_BACKBONE", "extract_features"]

FEATURE_BACKBONE = "small"  # its image side is EfficientNet-Lite0, trained on ImageNet
_CLIPS = 4  # clips per forward


def extract_features(
    backbone: Backbone, tasks: Sequence[TaskData], report: Callable[[str], None] = lambda line: None
) -> list[DomainFeatures]:
    """Features of all clips with the frozen image side of a backbone.

    Args:
        backbone: Backbone whose frame features are used.
        tasks: Domains with their frames.
        report: Called with one line per domain.
    """
    domains = []
    for task in tasks:
        began = time.perf_counter()
        parts = [_frame_statistics(backbone, load_frames(chunk)) for chunk in chunks(task.clips, _CLIPS)]
        domains.append(
            DomainFeatures(
                name=task.task_id,
                features=np.concatenate(parts),
                captions=tuple(clip.captions for clip in task.clips),
                held_out=np.array([clip.split == "test" for clip in task.clips]),
                seconds=time.perf_counter() - began,
            )
        )
        report(f"features of {task.name} in {domains[-1].seconds:.0f} s")
    return domains


def _frame_statistics(backbone: Backbone, frames: torch.Tensor) -> npt.NDArray[np.float64]:
    """Mean and standard deviation over frames, ``[n, 2F]``, of clips ``uint8 [n, M, H, W, 3]``."""
    with torch.inference_mode():
        features = backbone.embed_frames(frames)[:, :, 0].double()  # the pooled features of each frame
    return torch.cat([features.mean(dim=1), features.std(dim=1, correction=0)], dim=1).cpu().numpy()
