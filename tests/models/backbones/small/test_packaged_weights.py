"""Packages with the weights of ``small`` that are missing or altered."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from models.backbones.backbone_loading import load_backbone
from models.backbones.small.small_files import IMAGE_PACKAGE, TEXT_PACKAGE, WeightPackage, verified_folder
from models.errors import BackboneUnavailable


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
    package: WeightPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package.module else find_spec(name)
    )
    file = "efficientnet-lite0-57934424.pth" if package is IMAGE_PACKAGE else "model.safetensors"
    hint = rf"{file}.* not installed: run `pip install {package.name}`"
    with pytest.raises(BackboneUnavailable, match=hint):
        load_backbone("small")


@pytest.mark.slow
@pytest.mark.parametrize("package", [IMAGE_PACKAGE, TEXT_PACKAGE], ids=["image", "text"])
def test_altered_or_missing_files_are_refused_by_name(package: WeightPackage, copied: Path) -> None:
    for file in package.digests:
        path = copied / package.module / package.folder / file
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(BackboneUnavailable, match=rf"{file} of .* {package.name} has the SHA-256 digest"):
            verified_folder(package)
        path.unlink()
        hint = rf"{file} of .*cannot be read.*`pip install .*{package.name}`"
        with pytest.raises(BackboneUnavailable, match=hint):
            load_backbone("small")
        path.write_bytes(content)
    assert verified_folder(package) == copied / package.module / package.folder


def test_packages_are_not_imported(copied: Path) -> None:
    assert load_backbone("small").feature_dim == 1280
