"""What every frozen encoder must do, and files of a model with random weights to check it with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from models.backbones.backbone_loading import load_backbone
from models.backbones.open_clip_files import CONFIG_FILE, OPEN_CLIP_PREFIX
from models.backbones.open_clip_loading import build_model
from models.encoders.encoder_registry import load_query_backbone
from models.encoders.tower_forward import encode_frames
from models.encoders.tower_query_backbone import TowerQueryBackbone
from models.errors import BackboneUnavailable

WORDS = [
    "<pad>",
    "<unk>",
    "</s>",
    "a",
    "red",
    "circle",
    "moves",
    "left",
    "blue",
    "square",
    "and",
    "the",
    "dog",
    "snow",
]
TEXTS = ["a red circle moves left", "the dog", "A blue square, and snow", "", "snow " * 300]
_TOLERANCE = 2e-5  # rounding in batches of another size


def write_tokenizer(folder: Path) -> None:
    """Write the files of a small tokenizer: lower case, an end of text (ID 2), no start, padding with ID 0."""
    tokenizer = Tokenizer(WordLevel({word: row for row, word in enumerate(WORDS)}, unk_token=WORDS[1]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>", "sep_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_open_clip(
    folder: Path, config: dict[str, Any], preprocessing: dict[str, Any], text_tower: Any = None
) -> str:
    """Write the folder of an open_clip model with random weights, and name it as a backbone.

    Args:
        text_tower: Configuration of a text tower from transformers, which replaces the one on the hub.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images, texts = config["vision_cfg"], dict(config["text_cfg"])
    if texts.get("hf_tokenizer_name"):
        write_tokenizer(folder)
        texts["vocab_size"] = len(WORDS)
    config = {**config, "text_cfg": texts}
    if text_tower is not None:
        text_tower.save_pretrained(folder)
        texts |= {"hf_model_name": str(folder), "hf_model_pretrained": False}
    torch.manual_seed(0)
    model = build_model({**config, "vision_cfg": {**images, "timm_model_pretrained": False}})
    save_file(
        {key: tensor.contiguous() for key, tensor in model.state_dict().items()}, folder / "model.safetensors"
    )
    described = {"model_cfg": config, "preprocess_cfg": preprocessing}
    (folder / CONFIG_FILE).write_text(json.dumps(described))
    return f"{OPEN_CLIP_PREFIX}cut/{folder}"


def check_contract(name: str, folder: Path, frames: int = 2) -> None:
    """Check a frozen encoder, whose folder's weights are damaged at the end."""
    both, texts = load_backbone(name, frames), load_query_backbone(name, frames)
    assert both.fingerprint == texts.fingerprint, "the text tower alone has another fingerprint"
    rng = np.random.default_rng(0)
    clips = torch.from_numpy(rng.integers(0, 256, (2, frames, *both.spec.shape, 3), dtype=np.uint8))
    features = both.video_features(clips)
    assert (features.shape, features.dtype) == ((2, both.feature_dim), torch.float32)
    videos = both.project_features(features)
    assert videos.shape == (2, both.dim)
    torch.testing.assert_close(videos.norm(dim=-1), torch.ones(2), atol=1e-5, rtol=0)
    assert torch.equal(encode_frames(both, clips)[0], videos), "another pass gives other vectors"

    ids = texts.tokenize(TEXTS)
    assert max(int(row.max()) for row in ids) < texts.vocabulary, "the vocabulary lacks tokens"
    alone, together = texts.encode(ids, alone=True), texts.encode(ids)
    assert alone.shape == (len(TEXTS), both.dim)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(alone, together, atol=_TOLERANCE, err_msg="vectors depend on the other texts")
    whole = both.text_vectors(both.tokenize(TEXTS))
    np.testing.assert_allclose(alone, whole, atol=_TOLERANCE, err_msg="shortened texts have other vectors")
    side = TowerQueryBackbone(both)
    other = side.encode(side.tokenize(TEXTS), alone=True)
    np.testing.assert_allclose(alone, other, atol=_TOLERANCE, err_msg="the text towers differ")
    assert texts.towers().fingerprint == both.fingerprint, "both towers do not load after the text tower"
    save_file({"wrong": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(BackboneUnavailable, match="are of another model"):
        load_backbone(name, 2)
