"""Encoder families: discovery, unknown kinds, and that no other module repeats a kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import (
    encoder_family,
    encoder_kinds,
    open_query_encoder,
    read_query_release,
    read_video_release,
    select_query_tensors,
    select_video_tensors,
)
from models.errors import ReleaseError
from models.releases.release_files import write_release
from tests.models.encoders.small_releases import small_release

ROOT = Path(__file__).parents[3]
PACKAGES = ("models", "media", "index", "service", "trainer", "api", "cli", "benchmarks")


def test_families_have_the_kinds_of_stored_releases() -> None:
    """The kinds are part of the file format: libraries on disk name them."""
    rivals = {"mapped", "proxies", "moe", "progressive"}
    assert set(encoder_kinds()) == {"analytic", "frozen", "tower", "tame", "low_rank"} | rivals
    for kind in encoder_kinds():
        family = encoder_family(kind)
        assert encoder_family(kind) is family
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
        with pytest.raises(
            ReleaseError, match=r"kind 'hologram' is unknown .* frozen, low_rank, mapped, moe"
        ):
            use()
    write_release(tmp_path, release)
    for read in (read_query_release, read_video_release):
        with pytest.raises(
            ReleaseError, match=f"release {tmp_path.name}: release kind 'hologram' is unknown"
        ):
            read(tmp_path)


def test_only_family_modules_contain_kind_literals() -> None:
    """No other module compares a kind with a literal, or passes one."""
    kind = rf"[\"'](?:{'|'.join(encoder_kinds())})[\"']"
    literal = re.compile(rf"\bkind\b[^\n]{{0,9}}(?:==|!=|=| in)\s*[(\[{{]?\s*{kind}|encoder_family\({kind}")
    assert literal.search('release.kind not in ("tame", x)')
    families = {ROOT / "models" / "encoders" / "families", ROOT / "benchmarks" / "rivals" / "encoders"}
    found = {
        str(path.relative_to(ROOT)): match[0]
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if families.isdisjoint(path.parents) and (match := literal.search(path.read_text()))
    }
    assert found == {}
