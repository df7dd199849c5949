"""Small releases for tests of query encoders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from models.adapters.low_rank_text_update import TextUpdate
from models.adapters.tame import NO_EXPERT, ROUTED, Tame
from models.backbones.backbone import Backbone
from models.releases.release_state import ReleaseState, ReleaseTask
from models.releases.release_tensors import to_arrays
from models.routing.routing_profiles import VOCABULARY, RoutingProfiles


def small_release(
    backbone: Backbone, kind: str, tensors: dict[str, torch.Tensor], tasks: Sequence[str] = "012"
) -> ReleaseState:
    """Build a release with these tasks."""
    return ReleaseState(
        method="x",
        kind=kind,
        backbone=backbone.name,
        backbone_fingerprint=backbone.fingerprint,
        fingerprint="f" * 64,
        frames=2,
        tasks=[ReleaseTask(name, name, "f" * 64) for name in tasks],
        config={"scale": 1.0, "top_k": 2},
        profiles=RoutingProfiles.from_dense(np.zeros((len(tasks), VOCABULARY))),
        tensors=to_arrays(tensors),
    )


def tame_release(
    backbone: Backbone, tasks: Sequence[str] = "012", *, bare_first: bool = False
) -> ReleaseState:
    """Build a TAME release with random weights, whose first task may have no expert."""
    adapters = Tame(backbone.text_width, len(backbone.text_blocks), experts=3, rank=2, top_k=2, scale=1.0)
    torch.nn.init.normal_(adapters.b, std=0.3)
    for number in range(len(tasks)):
        adapters.add_task(expert=NO_EXPERT if bare_first and number == 0 else ROUTED)
    tensors = {f"tame.{name}": tensor.clone() for name, tensor in adapters.tensors().items()}
    return small_release(backbone, "tame", tensors, tasks)


def random_text_update(backbone: Backbone, words: int) -> TextUpdate:
    """Draw a low-rank update that changes the embeddings of some words."""
    update = TextUpdate.for_backbone(backbone, rank=2, scale=1.0)
    torch.nn.init.normal_(update.b, std=0.3)
    with torch.no_grad():
        update.words[torch.randperm(backbone.vocabulary)[:words]] += 0.1
    return update


def low_rank_release(backbone: Backbone, words: int, tasks: Sequence[str] = "012") -> ReleaseState:
    """Build a low-rank release with a random update."""
    tensors = random_text_update(backbone, words).tensors()
    return small_release(
        backbone, "low_rank", {f"text.{name}": tensor.clone() for name, tensor in tensors.items()}, tasks
    )


def tower_release(backbone: Backbone, tasks: Sequence[str] = "012") -> ReleaseState:
    """Build a release whose text tower differs at random from the backbone's."""
    tensors = {
        name: tensor + 0.1 * torch.randn_like(tensor) if "token_embedding" in name else tensor
        for name, tensor in backbone.tensors().items()
    }
    return small_release(backbone, "tower", tensors, tasks)
