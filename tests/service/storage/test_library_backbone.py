"""Backbone and default method: settings, the library, and the defaults of a new library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from index.files.manifest_format import Manifest
from index.files.store_folder import StoreFolder
from service.storage.library_backbone import default_method, library_backbone


@pytest.fixture(autouse=True)
def _configured(
    settings_factory: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CINESTRATA_BACKBONE", raising=False)
    settings_factory(tmp_path / "data", upgraded=False)


def _publish(monkeypatch: pytest.MonkeyPatch, description: str) -> None:
    """Pretend that the index has a release with a description."""
    from dataclasses import replace

    from service.core.settings import settings

    folder = StoreFolder(settings().index_dir).release_folder("r1")
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(description)
    monkeypatch.setattr(StoreFolder, "manifest", lambda self: replace(Manifest.empty(), release="r1"))


def test_new_library_begins_with_small_and_analytic() -> None:
    assert library_backbone() == "small"
    assert default_method() == "analytic"


def test_library_keeps_the_backbone_of_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(monkeypatch, json.dumps({"backbone": "tiny"}))
    assert library_backbone() == "tiny"
    assert default_method() == "strata"


def test_methods_on_whole_towers_fit_backbones_with_closed_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(monkeypatch, json.dumps({"backbone": "transformers:vit+bert"}))
    assert default_method() == "bmu_moco"


def test_settings_take_precedence(
    settings_factory: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _publish(monkeypatch, json.dumps({"backbone": "tiny"}))
    settings_factory(
        tmp_path / "data", upgraded=False, backbone="open_clip:ViT-B-32/openai", method="ffa_tame"
    )
    assert library_backbone() == "open_clip:ViT-B-32/openai"
    assert default_method() == "ffa_tame"


def test_empty_variables_are_unset(
    settings_factory: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_factory(tmp_path / "data", upgraded=False, backbone="", method="")
    assert library_backbone() == "small"


def test_damaged_release_gives_the_default_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(monkeypatch, "{")
    assert library_backbone() == "small"
