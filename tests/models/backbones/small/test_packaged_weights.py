"""Packages with the weights of ``small`` that are missing or altered, and the cache of the converted weights."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch

from models.backbones.backbone_loading import load_backbone
from models.backbones.small.image_tower import folded_weights, tensor_digest
from models.backbones.small.small_files import (
    IMAGE_PACKAGE,
    TEXT_PACKAGE,
    WeightPackage,
    verified_folder,
)
from models.errors import BackboneUnavailable

CACHED = Path("cinestrata") / "small-image-tower.safetensors"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of both packages, found before the installed ones."""
    for package in (IMAGE_PACKAGE, TEXT_PACKAGE):
        source, target = verified_folder(package), tmp_path / "packages" / package.module
        target.mkdir(parents=True)
        (target / "__init__.py").write_text("raise ImportError('this package must not be imported')\n")
        shutil.copytree(source, target / package.folder)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    return tmp_path / "packages"


@pytest.mark.parametrize("package", [IMAGE_PACKAGE, TEXT_PACKAGE], ids=["image", "text"])
def test_missing_package_error_names_package_and_command(
    package: WeightPackage, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package.module else find_spec(name)
    )
    file = "efficientnet-lite0-57934424.pth" if package is IMAGE_PACKAGE else "model.safetensors"
    with pytest.raises(
        BackboneUnavailable, match=rf"{file}.* not installed: run `pip install {package.name}`"
    ):
        load_backbone("small")


@pytest.mark.slow
@pytest.mark.parametrize("package", [IMAGE_PACKAGE, TEXT_PACKAGE], ids=["image", "text"])
def test_altered_or_missing_files_are_refused_by_name(
    package: WeightPackage, copied: Path, cache: Path
) -> None:
    for file in package.digests:
        path = copied / package.module / package.folder / file
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(BackboneUnavailable, match=rf"{file} of .* {package.name} has the SHA-256 digest"):
            verified_folder(package)
        path.unlink()
        with pytest.raises(
            BackboneUnavailable, match=rf"{file} of .*cannot be read.*`pip install .*{package.name}`"
        ):
            load_backbone("small")
        path.write_bytes(content)
    assert verified_folder(package) == copied / package.module / package.folder


def test_packages_are_not_imported(copied: Path, cache: Path) -> None:
    assert load_backbone("small").feature_dim == 1280


def test_converted_weights_are_cached_and_the_pickle_is_read_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = tensor_digest(folded_weights())
    assert [path.name for path in (cache / CACHED.parent).iterdir()] == [CACHED.name]

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the pickle is read again")

    monkeypatch.setattr(torch, "load", refuse)
    assert tensor_digest(folded_weights()) == digest


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "altered", "folder"])
def test_damaged_cache_is_converted_again(cache: Path, damage: str) -> None:
    digest = tensor_digest(folded_weights())
    path = cache / CACHED
    content = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(content[:1000] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    assert tensor_digest(folded_weights()) == digest
    if damage != "folder":
        assert path.read_bytes() == content


def test_unusable_cache_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    digest = tensor_digest(folded_weights())
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "home", _no_home)
    assert tensor_digest(folded_weights()) == digest


def _no_home() -> Path:
    raise RuntimeError("no home folder")
