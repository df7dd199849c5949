"""Query encoders: latest and pinned queries, and the identities of their weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from models.adapters.tame import NO_EXPERT
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from tests.models.encoders.small_releases import small_release, tame_release

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


def test_pinned_queries_and_their_identities_do_not_change(backbone: Backbone) -> None:
    torch.manual_seed(2)
    frozen, one, two = (
        small_release(backbone, "frozen", {}, "0"),
        tame_release(backbone, "01"),
        tame_release(backbone),
    )
    two.tensors["tame.task_experts"][0] = one.tensors["tame.task_experts"][0] = NO_EXPERT
    pinned = {"0": frozen, "1": one, "2": two}
    earlier = open_query_encoder(backbone, one, {"0": frozen, "1": one})
    later = open_query_encoder(backbone, two, pinned)
    first = open_query_encoder(backbone, frozen, {"0": frozen})
    assert (
        first.encoding_identity("0", "latest")
        == first.encoding_identity("0", "pinned")
        == later.encoding_identity("0", "pinned")
    )
    assert (
        earlier.encoding_identity("1", "pinned")
        == later.encoding_identity("1", "pinned")
        != later.encoding_identity("2", "pinned")
    )
    assert earlier.encoding_identity("1", "latest") is None
    for task in ("0", "1"):  # equal identities
        before, after = (encoder.encode(TEXTS, [task], "pinned") for encoder in (earlier, later))
        np.testing.assert_allclose(before, after, atol=1e-6)
    assert not np.allclose(
        earlier.encode(TEXTS, ["1"], "latest"), later.encode(TEXTS, ["1"], "latest"), atol=1e-3
    )
    np.testing.assert_allclose(first.encode(TEXTS, ["0"]), later.encode(TEXTS, ["0"], "pinned"), atol=1e-6)

    other = replace(one, tensors={n: a.copy() for n, a in one.tensors.items()})
    other.tensors["tame.b"][0, 0, 0, 0, 0] += 1e-3
    for changed in (other, replace(one, config={"scale": 2.0, "top_k": 2})):
        encoder = open_query_encoder(backbone, two, {**pinned, "1": changed})
        assert encoder.encoding_identity("1", "pinned") not in (None, later.encoding_identity("1", "pinned"))


def test_task_independent_modes_give_one_vector_for_all_tasks(backbone: Backbone) -> None:
    torch.manual_seed(3)
    release = small_release(backbone, "tower", backbone.tensors(), ("one", "two"))
    tower = open_query_encoder(backbone, release, {})
    frozen = open_query_encoder(backbone, small_release(backbone, "frozen", {}), {})
    two = tame_release(backbone)
    tame = open_query_encoder(backbone, two, {task.task_id: two for task in two.tasks})
    for encoder in (tower, frozen, tame):
        for mode in encoder.modes:
            vectors = encoder.encode(TEXTS, encoder.tasks, mode)
            assert encoder.is_task_independent(mode) == bool(np.ptp(vectors, axis=1).max() == 0), (
                encoder,
                mode,
            )
    assert {tower.encoding_identity("one", mode) for mode in tower.modes} == {None}
