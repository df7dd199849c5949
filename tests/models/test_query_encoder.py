"""Queries of the newest text tower, and the same queries mapped to where a shard was made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbone import Backbone, tiny_backbone
from models.errors import ReleaseError
from models.query_encoder import QueryEncoder
from models.release import ReleaseState, ReleaseTask, read_release, write_release

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=2)


@pytest.fixture
def release(backbone: Backbone) -> ReleaseState:
    """Three tasks; the newest has the identity."""
    torch.manual_seed(1)
    tower = backbone.clone()
    with torch.no_grad():
        tower.text.text_projection += 0.1 * torch.randn_like(tower.text.text_projection)
    dim = backbone.dim
    maps, shifts = 0.2 * torch.randn(3, dim, dim), 0.2 * torch.randn(3, dim)
    maps[2], shifts[2] = torch.eye(dim), 0
    return ReleaseState(
        method="drift_adapter",
        kind="mapped",
        backbone=backbone.name,
        backbone_fingerprint=backbone.fingerprint,
        fingerprint="f" * 64,
        frames=2,
        tasks=[ReleaseTask(name, name, "f" * 64) for name in ("one", "two", "three")],
        config={},
        profiles=torch.zeros(3, backbone.vocabulary),
        tensors={**tower.tensors(), "maps": maps, "shifts": shifts, "teacher.clip.x": torch.zeros(1)},
    )


def test_a_mapped_query_is_that_of_the_newest_tower_taken_to_the_shard(
    backbone: Backbone, release: ReleaseState
) -> None:
    encoder = QueryEncoder.open(backbone, release, {})
    assert encoder.modes == ("latest", "mapped")
    order = ["two", "three", "one", "two"]
    latest = encoder.encode(TEXTS, order, "latest")
    mapped = encoder.encode(TEXTS, order, "mapped")
    assert np.ptp(latest, axis=1).max() == 0, "one vector for all tasks"
    assert not np.allclose(latest[:, 0], encoder.frozen(TEXTS), atol=1e-2)
    for n in range(len(TEXTS)):
        for place, task in enumerate(order):
            position = ["one", "two", "three"].index(task)
            x, m, s = (
                latest[n, place],
                release.tensors["maps"][position].numpy(),
                release.tensors["shifts"][position].numpy(),
            )
            expected = np.array([sum(x[i] * m[i, j] for i in range(len(x))) + s[j] for j in range(len(s))])
            np.testing.assert_allclose(mapped[n, place], expected / np.linalg.norm(expected), atol=1e-5)
    np.testing.assert_allclose(mapped[:, 1], latest[:, 1], atol=1e-6)


def test_a_release_keeps_its_maps_for_queries(
    backbone: Backbone, release: ReleaseState, tmp_path: Path
) -> None:
    write_release(tmp_path, release)
    read = read_release(tmp_path, for_queries=True)
    assert set(read.tensors) == set(release.tensors) - {"teacher.clip.x"}
    for mode in ("latest", "mapped"):
        before = QueryEncoder.open(backbone, release, {}).encode(TEXTS, ["one", "three"], mode)
        after = QueryEncoder.open(backbone, read, {}).encode(TEXTS, ["one", "three"], mode)
        assert np.array_equal(before, after)


def test_maps_that_do_not_fit_are_refused_by_name(backbone: Backbone, release: ReleaseState) -> None:
    dim = backbone.dim
    release.tensors["shifts"] = torch.zeros(2, dim)
    with pytest.raises(ReleaseError, match=rf"shifts are of shape \(2, {dim}\), not \(3, {dim}\)"):
        QueryEncoder.open(backbone, release, {})
    del release.tensors["maps"]
    with pytest.raises(ReleaseError, match=r"maps are of shape None"):
        QueryEncoder.open(backbone, release, {})


def test_a_mapped_release_has_no_snapshots_to_pin(backbone: Backbone, release: ReleaseState) -> None:
    encoder = QueryEncoder.open(backbone, release, {})
    with pytest.raises(ReleaseError, match="mode 'pinned', only in latest, mapped"):
        encoder.encode(TEXTS, ["one"], "pinned")
