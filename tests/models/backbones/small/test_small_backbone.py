"""The backbones ``small`` and ``lite2``: forward passes of their towers, their use by methods, and their packages."""

from __future__ import annotations

import importlib.util
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.data import ImageNetInfo
from torch import Tensor
from torch.nn import functional as F
from transformers import BertModel

from models.adapters.image_adapters import LowRankImageTower
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone, tiny_backbone
from models.backbones.small.small_files import (
    SMALL_MODELS,
    TEXT_PACKAGE,
    SmallModel,
    WeightPackage,
    verified_folder,
)
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import BackboneUnavailable, ReleaseError
from tests.random_frames import random_frames

torch.set_num_threads(1)

TEXTS = ["a man cooks pasta in a kitchen", "dogs", "", "a red car " * 60]


@pytest.fixture(scope="module", params=list(SMALL_MODELS))
def model(request: pytest.FixtureRequest) -> SmallModel:
    return SMALL_MODELS[request.param]


@pytest.fixture(scope="module")
def backbone(model: SmallModel) -> Backbone:
    return load_backbone(model.name, frames=2)


@pytest.fixture(scope="module")
def published_cnn(model: SmallModel) -> Any:
    """The network with the published weights, batch normalization and classifier."""
    folder = verified_folder(model.image_package)
    (file,) = model.image_package.digests
    weights = torch.load(folder / file, weights_only=True)
    cnn = timm.create_model(model.architecture, pretrained=False)
    cnn.load_state_dict(dict(zip(cnn.state_dict(), weights.values(), strict=True)))
    return cnn.eval()


def _pixels(frames: Tensor) -> Tensor:
    return (frames.flatten(0, 1).permute(0, 3, 1, 2).float() - 127) / 128


# -- images ----------------------------------------------------------------------------------------------


@torch.no_grad()
def test_tokens_and_features_equal_the_published_network(backbone: Backbone, published_cnn: Any) -> None:
    frames = random_frames(0, 2, 5, size=backbone.spec.size)
    maps = published_cnn.forward_features(_pixels(frames)).unflatten(0, (2, 5))
    pooled = maps.mean(dim=(-2, -1))
    tokens = backbone.embed_frames(frames)
    assert tokens.shape == (2, 5, 5, 1280)
    torch.testing.assert_close(tokens[:, :, 0], pooled, atol=1e-4, rtol=0)
    half = (maps.shape[-1] + 1) // 2
    upper_right = maps[..., :half, -half:].mean(dim=(-2, -1))
    torch.testing.assert_close(tokens[:, :, 2], upper_right, atol=1e-4, rtol=0)
    features = backbone.video_features(frames)
    assert features.shape == (2, backbone.feature_dim) == (2, 1280)
    torch.testing.assert_close(features.square(), pooled.mean(dim=1), atol=1e-4, rtol=0)


@pytest.mark.slow
@torch.no_grad()
def test_video_vectors_are_class_names_weighted_by_the_classifier(
    backbone: Backbone, published_cnn: Any
) -> None:
    frames = random_frames(1, 1, 2, size=backbone.spec.size)
    info = ImageNetInfo("imagenet-1k")
    texts = [info.index_to_description(index) for index in range(info.num_classes())]
    in_torch = backbone.clone()  # a copy has no engine, which rounds weights
    names = torch.cat(
        [encode_texts(in_torch, backbone.tokenize(texts[i : i + 100]))[0] for i in range(0, 1000, 100)]
    )
    weights = published_cnn.classifier.weight
    logits = published_cnn.forward_features(_pixels(frames)).mean(dim=(2, 3)) @ weights.T
    centered = logits - logits.mean(dim=1, keepdim=True)
    expected = F.normalize(centered.mean(dim=0) @ (names - names.mean(dim=0)), dim=0)
    videos, per_frame = encode_frames(backbone, frames)
    torch.testing.assert_close(videos[0], expected, atol=1e-3, rtol=0)
    assert per_frame.shape == (1, 2, 512)


@torch.no_grad()
def test_video_vectors_follow_from_the_features_and_leave_the_reserved_coordinates_free(
    backbone: Backbone,
) -> None:
    frames = random_frames(4, 2, 3, size=backbone.spec.size)
    videos = encode_frames(backbone, frames)[0]
    projected = backbone.project_features(backbone.video_features(frames))
    torch.testing.assert_close(projected, videos, atol=1e-4, rtol=0)
    assert backbone.semantic_dim == 384
    assert not projected[:, -128:].any()


# -- texts -----------------------------------------------------------------------------------------------


@torch.no_grad()
def test_text_vectors_are_centered_unit_means(model: SmallModel, backbone: Backbone) -> None:
    bert = BertModel.from_pretrained(verified_folder(TEXT_PACKAGE), add_pooling_layer=False).eval()
    ids = backbone.tokenize(TEXTS)
    assert ids.shape == (4, 77)
    vectors = encode_texts(backbone.clone(), ids)[0]  # a copy has no engine, which rounds weights
    center = torch.from_numpy(model.load_constants().text_center)
    for row, last, vector in zip(ids, backbone.end_of_text(ids), vectors, strict=True):
        mean = bert(input_ids=row[None, : int(last) + 1]).last_hidden_state[0].mean(dim=0)
        expected = F.normalize(F.normalize(mean, dim=0) - center, dim=0)
        torch.testing.assert_close(vector[:384], expected, atol=1e-5, rtol=0)
        assert not vector[384:].any()


def test_background_describes_generic_texts(backbone: Backbone) -> None:
    background = backbone.text_background
    assert background is not None
    assert background.mean.shape == (384,)
    assert background.precision.shape == (384, 384)
    np.testing.assert_allclose(background.precision, background.precision.T, atol=1e-2, rtol=1e-4)
    assert np.linalg.eigvalsh(background.precision).min() > 0


# -- the interface of backbones --------------------------------------------------------------------------


@pytest.mark.slow
def test_clones_have_own_weights(backbone: Backbone) -> None:
    clone, images = backbone.clone(), backbone.clone_image_tower()
    with torch.no_grad():
        clone.text.text_projection.add_(1)
        images.clip.visual.proj.add_(1)
    assert backbone.compute_fingerprint() == backbone.fingerprint
    assert len({b.compute_fingerprint() for b in (backbone, clone, images)}) == 3
    assert images.text.text_projection is backbone.text.text_projection
    clone.load_tensors(backbone.clone().tensors())
    assert torch.equal(clone.text.text_projection, backbone.text.text_projection)
    with pytest.raises(ReleaseError, match=f"do not fit backbone '{backbone.name}'"):
        clone.load_tensors(tiny_backbone().tensors())


def test_loading_is_deterministic_and_needs_no_network(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert load_backbone(backbone.name).fingerprint == backbone.fingerprint
    assert torch.equal(torch.rand(1), expected)


@torch.no_grad()
def test_untrained_blocks_change_no_vector(backbone: Backbone) -> None:
    """Vectors of a library that was learned without blocks stay valid to the last bit."""
    frames = random_frames(3, 2, 3, size=backbone.spec.size)
    tokens = backbone.embed_frames(frames)
    expected = F.normalize((tokens[:, :, 0] @ backbone.clip.visual.proj).mean(dim=1), dim=-1)
    assert torch.equal(encode_frames(backbone, frames)[0], expected)
    assert torch.equal(encode_frames(backbone.clone(), frames)[0], expected)
    assert torch.equal(
        encode_frames(LowRankImageTower(backbone, rank=2, scale=1.0).backbone, frames)[0], expected
    )
    assert not [name for name, _ in backbone.clip.visual.blocks.named_parameters()]


def test_copies_share_the_frozen_network_and_never_train_it(backbone: Backbone) -> None:
    clone = backbone.clone()
    clone.unfreeze()
    network = dict(clone.clip.visual.cnn.named_parameters())
    assert not any(parameter.requires_grad for parameter in network.values())
    assert all(network[name] is weight for name, weight in backbone.clip.visual.cnn.named_parameters())
    assert clone.clip.visual.proj.requires_grad
    assert clone.visual_blocks[1].attention.in_proj_weight.requires_grad
    assert not any("cnn" in name for name in clone.tensors())


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
