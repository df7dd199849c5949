"""Packages with the weights of ``small`` and ``lite2`` that are missing or altered."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from models.backbones.backbone_loading import load_backbone
from models.backbones.small.small_files import SMALL_MODELS, TEXT_PACKAGE, WeightPackage, verified_folder
from models.errors import BackboneUnavailable

IMAGE_PACKAGE = SMALL_MODELS["small"].image_package
LITE2_PACKAGE = SMALL_MODELS["lite2"].image_package


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


@pytest.mark.parametrize(
    ("backbone", "package", "file"),
    [
        ("small", IMAGE_PACKAGE, "efficientnet-lite0-57934424.pth"),
        ("lite2", LITE2_PACKAGE, "efficientnet-lite2-9656183e.pth"),
        ("lite2", TEXT_PACKAGE, "model.safetensors"),
    ],
)
def test_missing_package_error_names_package_and_command(
    backbone: str, package: WeightPackage, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package.module else find_spec(name)
    )
    hint = rf"tower of .*'{backbone}' needs .*{file}.* not installed: run `pip install {package.name}`"
    with pytest.raises(BackboneUnavailable, match=hint):
        load_backbone(backbone)


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
