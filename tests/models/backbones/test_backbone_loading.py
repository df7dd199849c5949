"""Loading of backbones by name, and the tokenizers of CLIP models."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from torch.nn import functional as F

from models.backbones import open_clip_backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import frame_spec, load_backbone, tiny_backbone
from models.backbones.open_clip_backbone import clip_tokenizer, small_tokenizer
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import BackboneUnavailable, BackboneUnsupported
from tests.random_frames import random_frames

SMALL_MODELS: dict[str, dict[str, Any]] = {
    "small-vit": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16},
        "text_cfg": {"width": 64, "heads": 2, "layers": 2},
    },
    "small-resnet": {
        "embed_dim": 24,
        "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8},
        "text_cfg": {"width": 64, "heads": 2, "layers": 2},
    },
}
TEXTS = ["a red circle moves left", "Schnee fällt", "😀 שלום עולם", "word " * 300]


def test_tiny_loads_its_shipped_weights() -> None:
    backbone = load_backbone("tiny")
    assert backbone.spec == FrameSpec(8, 56)
    assert backbone.dim == 128
    assert not any(p.requires_grad for p in backbone.parameters())
    weights = Path("models/backbones/tiny/weights.safetensors")
    assert weights.stat().st_size <= 20 * 2**20


def test_encodings_equal_open_clip() -> None:
    torch.manual_seed(0)
    backbone = tiny_backbone()
    full = small_tokenizer(8192, 64)(TEXTS)
    expected = backbone.clip.encode_text(full, normalize=True)
    torch.testing.assert_close(
        encode_texts(backbone, backbone.tokenize(TEXTS))[0], expected, atol=1e-5, rtol=1e-4
    )

    frames = torch.randint(0, 256, (2, 3, 56, 56, 3), dtype=torch.uint8)
    pixels = (frames.flatten(0, 1).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    features = backbone.clip.encode_image(pixels).view(2, 3, -1)
    videos, per_frame = encode_frames(backbone, frames)
    torch.testing.assert_close(videos, F.normalize(features.mean(1), dim=-1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(per_frame, F.normalize(features, dim=-1), atol=1e-5, rtol=1e-4)


def test_video_features_precede_the_projection() -> None:
    torch.manual_seed(0)
    backbone = tiny_backbone()
    frames = random_frames(0, 2, 3, size=56)
    features = backbone.video_features(frames)
    assert features.shape == (2, backbone.feature_dim)
    assert features.dtype == torch.float32
    projected = F.normalize(features @ backbone.clip.visual.proj, dim=-1)
    torch.testing.assert_close(projected, encode_frames(backbone, frames)[0], atol=1e-5, rtol=1e-4)
    assert backbone.text_background is None


@pytest.fixture(scope="module", autouse=True)
def _small_models(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make small architectures known to open_clip."""
    folder = tmp_path_factory.mktemp("models")
    for name, config in SMALL_MODELS.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)


def test_open_clip_model_loads_from_a_local_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = open_clip.create_model("small-vit", pretrained=None)
    save_file(original.state_dict(), tmp_path / "weights.safetensors")
    backbone = load_backbone(f"open_clip:small-vit/{tmp_path / 'weights.safetensors'}", frames=2)
    assert backbone.spec == FrameSpec(2, 32)
    assert backbone.dim == 24
    text = ["a dog runs"]
    tokens = open_clip.get_tokenizer("small-vit")(text)
    expected = original.encode_text(tokens, normalize=True)
    torch.testing.assert_close(
        encode_texts(backbone, backbone.tokenize(text))[0], expected, atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("huge", "use 'small', 'lite2', 'tiny', or 'open_clip:"),
        ("open_clip:ViT-B-32", "use 'small', 'tiny', or 'open_clip:"),
        ("open_clip:NoSuchModel/openai", "has no model 'NoSuchModel'"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(name: str, message: str) -> None:
    with pytest.raises(BackboneUnavailable, match=message):
        frame_spec(name)


def test_unavailable_weights_error_names_the_expected_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no connection to the hub")

    monkeypatch.setattr(open_clip, "create_model_and_transforms", offline)
    with pytest.raises(BackboneUnavailable, match=r"put a checkpoint of ViT-B-32 .*open_clip:ViT-B-32/<path"):
        load_backbone("open_clip:ViT-B-32/openai")


def test_other_weights_and_towers_without_transformer_blocks_are_refused(tmp_path: Path) -> None:
    save_file({"visual.proj": torch.zeros(2, 2)}, tmp_path / "wrong.safetensors")
    with pytest.raises(BackboneUnavailable, match="could not be loaded"):
        load_backbone(f"open_clip:small-vit/{tmp_path / 'wrong.safetensors'}")
    model = open_clip.create_model("small-resnet", pretrained=None)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(BackboneUnsupported, match="ViT image tower"):
        load_backbone(f"open_clip:small-resnet/{tmp_path / 'weights.safetensors'}")


def test_fingerprint_changes_with_the_weights() -> None:
    def fingerprint(seed: int) -> str:
        torch.manual_seed(seed)
        return tiny_backbone().fingerprint

    assert fingerprint(0) == fingerprint(0) != fingerprint(1)


def test_gradients_equal_open_clip() -> None:
    """The last block runs only for class tokens, which must not change the gradients."""
    torch.manual_seed(0)
    backbone = tiny_backbone().requires_grad_(True)
    frames = torch.randint(0, 256, (2, 3, 56, 56, 3), dtype=torch.uint8)
    pixels = (frames.flatten(0, 1).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    expected = F.normalize(backbone.clip.encode_image(pixels).view(2, 3, -1).mean(1), dim=-1)
    weights, parameters = torch.randn(expected.shape), list(backbone.clip.visual.parameters())
    expected_gradients = torch.autograd.grad((expected * weights).sum(), parameters)
    gradients = torch.autograd.grad((encode_frames(backbone, frames)[0] * weights).sum(), parameters)
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, reference, atol=1e-5 * float(reference.abs().max()), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tag", "quick"), [("openai", True), ("laion2b_s34b_b79k", False)], ids=["openai", "laion"]
)
def test_weights_get_the_activation_that_they_were_trained_with(
    tag: str, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """open_clip builds GELU for a model name without "-quickgelu" and only warns about the weights."""
    create = open_clip.create_model_and_transforms

    def create_without_weights(model: str, **options: Any) -> Any:
        return create(model, force_quick_gelu=options["force_quick_gelu"], pretrained=None)

    monkeypatch.setattr(open_clip, "create_model_and_transforms", create_without_weights)
    backbone = load_backbone(f"open_clip:ViT-B-32/{tag}", frames=2)
    activations = {type(block.mlp.gelu).__name__ for block in backbone.clip.visual.transformer.resblocks}
    assert activations == {"QuickGELU" if quick else "GELU"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["A  Red\tStar", "fish &amp; chips", "cafÃ©", "“quoted”", "<start_of_text> a", ""]
)
def test_tokens_equal_open_clip(text: str) -> None:
    ours, theirs = clip_tokenizer("ViT-B-32", 77), SimpleTokenizer(context_length=77)
    assert ours([text]).tolist() == theirs([text]).tolist()


def test_word_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_clip_backbone, "MAX_CACHED_WORDS", 20)
    bounded = small_tokenizer.__wrapped__(8192, 64)
    special_tokens = dict(bounded.cache)
    assert special_tokens, "the cache starts with the special tokens, which are not split"
    texts = [f"<start_of_text> {first}{second}" for first, second in product("abcdefg", repeat=2)]
    expected = small_tokenizer(8192, 64)(texts).tolist()
    assert [bounded([text])[0].tolist() for text in texts] == expected
    full = dict(bounded.cache)
    assert len(full) == 20
    assert special_tokens.items() <= full.items()
    bounded(["unseen words"])
    assert bounded.cache == full  # splitting a word looks it up twice, in threads that share the cache
