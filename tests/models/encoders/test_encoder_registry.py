"""Encoder families: discovery, and unknown kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import (
    encoder_family,
    open_query_encoder,
    read_query_release,
    read_video_release,
    select_query_tensors,
    select_video_tensors,
)
from models.errors import ReleaseError
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
        with pytest.raises(
            ReleaseError, match=f"release {tmp_path.name}: release kind 'hologram' is unknown"
        ):
            read(tmp_path)
