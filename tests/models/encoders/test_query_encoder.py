"""Query encoders: latest, mapped and pinned queries, and the identities of their weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.adapters.tame import NO_EXPERT
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState
from tests.models.encoders.small_releases import small_release, tame_release

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


@pytest.fixture
def release(backbone: Backbone) -> ReleaseState:
    """Mapped release of three tasks; the map of the newest is the identity."""
    torch.manual_seed(1)
    tower = backbone.clone()
    with torch.no_grad():
        tower.text.text_projection += 0.1 * torch.randn_like(tower.text.text_projection)
    dim = backbone.dim
    maps, shifts = 0.2 * torch.randn(3, dim, dim), 0.2 * torch.randn(3, dim)
    maps[2], shifts[2] = torch.eye(dim), 0
    tensors = {**tower.tensors(), "maps": maps, "shifts": shifts, "teacher.clip.x": torch.zeros(1)}
    return small_release(backbone, "mapped", tensors, ("one", "two", "three"))


def test_mapped_query_is_the_map_of_the_newest_query(backbone: Backbone, release: ReleaseState) -> None:
    encoder = open_query_encoder(backbone, release, {})
    assert encoder.modes == ("latest", "mapped")
    order = ["two", "three", "one", "two"]
    latest = encoder.encode(TEXTS, order, "latest")
    mapped = encoder.encode(TEXTS, order, "mapped")
    assert np.ptp(latest, axis=1).max() == 0, "one vector for all tasks"
    assert not np.allclose(latest[:, 0], encoder.encode_with_backbone(TEXTS), atol=1e-2)
    for n in range(len(TEXTS)):
        for place, task in enumerate(order):
            position = ["one", "two", "three"].index(task)
            x, m, s = (
                latest[n, place],
                release.tensors["maps"][position],
                release.tensors["shifts"][position],
            )
            expected = np.array([sum(x[i] * m[i, j] for i in range(len(x))) + s[j] for j in range(len(s))])
            np.testing.assert_allclose(mapped[n, place], expected / np.linalg.norm(expected), atol=1e-5)
    np.testing.assert_allclose(mapped[:, 1], latest[:, 1], atol=1e-6)


def test_maps_of_wrong_shape_are_refused_by_name(backbone: Backbone, release: ReleaseState) -> None:
    dim = backbone.dim
    release.tensors["shifts"] = np.zeros((2, dim), np.float32)
    with pytest.raises(ReleaseError, match=rf"shifts have shape \(2, {dim}\), not \(3, {dim}\)"):
        open_query_encoder(backbone, release, {})
    del release.tensors["maps"]
    with pytest.raises(ReleaseError, match=r"maps have shape None"):
        open_query_encoder(backbone, release, {})


def test_texts_of_different_lengths_encode_as_alone(backbone: Backbone, release: ReleaseState) -> None:
    """Texts are sorted into batches by length; vectors keep the order of the texts."""
    nouns = ("star", "square", "circle")
    texts = [f"{n} {nouns[n % 3]}" + n * 7 % 11 * " spins" for n in range(70)]
    encoder = open_query_encoder(backbone, release, {})
    batch = encoder.encode(texts, ["one", "three"], "mapped")
    alone = [encoder.encode([text], ["one", "three"], "mapped")[0] for text in texts]
    np.testing.assert_allclose(batch, alone, atol=1e-5)
    distances = np.linalg.norm(batch[:, None] - batch[None], axis=-1).min(axis=-1)
    assert distances[~np.eye(70, dtype=bool)].min() > 1e-4, "all texts have different vectors"


# -- pinned queries ----------------------------------------------------------------------------------------------


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


def test_task_independent_modes_give_one_vector_for_all_tasks(
    backbone: Backbone, release: ReleaseState
) -> None:
    torch.manual_seed(3)
    mapped = open_query_encoder(backbone, release, {})
    tower = open_query_encoder(backbone, replace(release, kind="tower"), {})
    frozen = open_query_encoder(backbone, small_release(backbone, "frozen", {}), {})
    two = tame_release(backbone)
    tame = open_query_encoder(backbone, two, {task.task_id: two for task in two.tasks})
    for encoder in (mapped, tower, frozen, tame):
        for mode in encoder.modes:
            vectors = encoder.encode(TEXTS, encoder.tasks, mode)
            assert encoder.is_task_independent(mode) == bool(np.ptp(vectors, axis=1).max() == 0), (
                encoder,
                mode,
            )
    assert {
        encoder.encoding_identity("one", mode) for encoder in (mapped, tower) for mode in encoder.modes
    } == {None}
