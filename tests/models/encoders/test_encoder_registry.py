"""Encoder families: discovery, unknown kinds, and the text sides that are loaded for queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.backbones import SMALL_NAMES
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import load_backbone
from models.backbones.frozen_tower import EngineUnavailable
from models.backbones.small import text_side
from models.backbones.small.small_files import SmallModel
from models.backbones.small.text_side import SmallTextSide
from models.encoders.encoder_registry import (
    check_device,
    encoder_family,
    load_query_backbone,
    open_query_encoder,
    read_query_release,
    read_video_release,
    select_query_tensors,
    select_video_tensors,
)
from models.encoders.tower_query_backbone import TowerQueryBackbone
from models.errors import ModelError, ReleaseError
from models.releases.release_files import write_release
from tests.models.encoders.small_releases import small_release


def test_families_have_the_kinds_of_stored_releases() -> None:
    """The kinds are part of the file format: libraries on disk name them."""
    for kind in ("analytic", "frozen", "tower", "tame", "low_rank"):
        family = encoder_family(kind)
        assert family.kind == kind
        assert "latest" in family.query_encoder.modes


def test_unknown_kind_is_an_error_that_names_the_known_ones(backbone: Backbone, tmp_path: Path) -> None:
    release = small_release(backbone, "hologram", {})
    for use in (
        lambda: encoder_family("hologram"),
        lambda: open_query_encoder(backbone, release, {}),
        lambda: select_query_tensors(release),
        lambda: select_video_tensors(release),
    ):
        with pytest.raises(ReleaseError, match=r"kind 'hologram' is unknown .* analytic, frozen, low_rank"):
            use()
    write_release(tmp_path, release)
    for read in (read_query_release, read_video_release):
        with pytest.raises(ReleaseError, match=f"release {tmp_path.name}: release kind 'hologram' is"):
            read(tmp_path)


TEXTS = ["a dog", "", "two women play the violin on a stage", "ein Straßenfest 🎉", "x " * 200]


@pytest.mark.parametrize("name", SMALL_NAMES)
def test_text_side_equals_the_tower_in_torch(name: str) -> None:
    side = load_query_backbone(name, 2)
    tower = TowerQueryBackbone(load_backbone(name, frames=2).clone())  # a copy has no engine
    assert isinstance(side, SmallTextSide)
    facts = [(s.name, s.fingerprint, s.dim, s.vocabulary) for s in (side, tower)]
    assert facts[0] == facts[1]
    assert side.text_background is not None
    assert tower.text_background is not None
    for statistic, other in zip(side.text_background, tower.text_background, strict=True):
        assert np.array_equal(statistic, other)
    tokens = side.tokenize(TEXTS)
    assert [ids.tolist() for ids in tokens] == [ids.tolist() for ids in tower.tokenize(TEXTS)]
    expected = tower.encode(tokens, alone=True)
    np.testing.assert_allclose(side.encode(tokens, alone=True), expected, atol=1e-5)
    np.testing.assert_allclose(side.encode(tokens), expected, atol=1e-5)


@pytest.mark.parametrize(("name", "size"), [("small", 224), ("lite2", 260)])
def test_towers_are_those_of_the_backbone(name: str, size: int) -> None:
    towers = load_query_backbone(name, 3).towers()
    assert (towers.name, towers.spec) == (name, FrameSpec(3, size))


def test_torch_takes_the_place_of_an_engine_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: SmallModel) -> None:
        raise EngineUnavailable("results differ")

    monkeypatch.setattr(text_side, "read_identity", fail)
    assert isinstance(load_query_backbone("small", 2), TowerQueryBackbone)


def test_bfloat16_runs_in_torch() -> None:
    loaded = load_query_backbone("tiny", 2, precision="bfloat16")
    assert isinstance(loaded, TowerQueryBackbone)
    assert loaded.towers().query_precision == "bfloat16"


def test_unknown_device_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ModelError, match="device 'abacus' is unknown"):
        check_device("abacus")
