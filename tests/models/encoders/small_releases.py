"""Small releases for tests of query encoders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from models.adapters.tame import Tame
from models.backbones.backbone import Backbone
from models.releases.release_lineage import ReleaseTask
from models.releases.release_state import ReleaseState
from models.routing.routing_profiles import RoutingProfiles


def small_release(
    backbone: Backbone, kind: str, tensors: dict[str, torch.Tensor], tasks: Sequence[str] = "012"
) -> ReleaseState:
    """A release with the given tasks."""
    return ReleaseState(
        method="x",
        kind=kind,
        backbone=backbone.name,
        backbone_fingerprint=backbone.fingerprint,
        fingerprint="f" * 64,
        frames=2,
        tasks=[ReleaseTask(name, name, "f" * 64) for name in tasks],
        config={"scale": 1.0, "top_k": 2},
        profiles=RoutingProfiles.from_dense(np.zeros((len(tasks), backbone.vocabulary))),
        tensors=tensors,
    )


def tame_release(backbone: Backbone, tasks: Sequence[str] = "012") -> ReleaseState:
    """A TAME release with random weights."""
    adapters = Tame(backbone.text_width, len(backbone.text_blocks), experts=3, rank=2, top_k=2, scale=1.0)
    torch.nn.init.normal_(adapters.b, std=0.3)
    for _ in tasks:
        adapters.add_task()
    tensors = {f"tame.{name}": tensor.clone() for name, tensor in adapters.tensors().items()}
    return small_release(backbone, "tame", tensors, tasks)
