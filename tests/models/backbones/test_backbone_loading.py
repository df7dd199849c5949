"""Loading of backbones by name, and the tokenizers of CLIP models."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from torch.nn import functional as F

from models.backbones import has_open_blocks, open_clip_backbone, open_clip_loading
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import frame_spec, load_backbone, tiny_backbone
from models.backbones.open_clip_backbone import clip_tokenizer, small_tokenizer
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import BackboneUnavailable
from tests.models.backbones.encoder_contract import write_open_clip
from tests.random_frames import random_frames

PLAIN = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16},
    "text_cfg": {"width": 64, "heads": 2, "layers": 2},
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


def test_plain_clip_loads_from_a_local_folder(tmp_path: Path) -> None:
    name = write_open_clip(tmp_path, PLAIN, {})
    backbone = load_backbone(name, frames=2)
    assert (backbone.spec, backbone.dim) == (FrameSpec(2, 32), 24)
    assert has_open_blocks(name)
    assert backbone.has_open_blocks
    original = open_clip.create_model(f"local-dir:{tmp_path}")
    text = ["a dog runs"]
    expected = original.encode_text(open_clip.get_tokenizer("ViT-B-32")(text), normalize=True)
    vectors = encode_texts(backbone, backbone.tokenize(text))[0]
    torch.testing.assert_close(vectors, expected, atol=1e-4, rtol=1e-3)
    file = f"open_clip:cut/{tmp_path / 'model.safetensors'}"
    assert load_backbone(file, frames=2).fingerprint == backbone.fingerprint
    epoch = tmp_path / "epoch_5.pt"
    torch.save({key: tensor * 2 for key, tensor in original.state_dict().items()}, epoch)
    named = load_backbone(f"open_clip:cut/{epoch}", frames=2)
    assert named.fingerprint != backbone.fingerprint, "the file is loaded that is named"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("huge", "use 'small', 'lite2', 'tiny', or 'open_clip:"),
        ("open_clip:ViT-B-32", "use 'small', 'lite2', 'tiny', or 'open_clip:"),
        ("open_clip:NoSuchModel/openai", "has no model 'NoSuchModel'"),
        ("open_clip:vit-b16-siglip2/webli", r"did you mean ViT-B-16-SigLIP2,"),
        (f"open_clip:ViT-B-32/{'x' * 300}", "File name too long"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(name: str, message: str) -> None:
    with pytest.raises(BackboneUnavailable, match=message):
        frame_spec(name)


def test_unavailable_weights_error_names_the_expected_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: object, **kwargs: object) -> None:
        raise OSError("no connection to the hub")

    monkeypatch.setattr(open_clip_loading, "download_pretrained", offline)
    with pytest.raises(BackboneUnavailable, match=r"put a checkpoint of ViT-B-32 .*open_clip:ViT-B-32/<path"):
        load_backbone("open_clip:ViT-B-32/openai")


def test_other_weights_are_refused(tmp_path: Path) -> None:
    name = write_open_clip(tmp_path, PLAIN, {})
    save_file({"visual.proj": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(BackboneUnavailable, match=r"the weights are of another model: Missing key.*position"):
        load_backbone(name)


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
    monkeypatch.setattr(open_clip_loading, "download_pretrained", lambda settings: "weights")
    monkeypatch.setattr(open_clip_loading, "load_checkpoint", lambda model, weights: None)
    backbone = load_backbone(f"open_clip:ViT-B-32/{tag}", frames=2)
    activations = {type(block.mlp.gelu).__name__ for block in backbone.clip.visual.transformer.resblocks}
    assert activations == {"QuickGELU" if quick else "GELU"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["A  Red\tStar", "fish &amp; chips", "cafÃ©", "“quoted”", "<start_of_text> a", ""]
)
def test_tokens_equal_open_clip(text: str) -> None:
    ours, theirs = clip_tokenizer(77), SimpleTokenizer(context_length=77)
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
