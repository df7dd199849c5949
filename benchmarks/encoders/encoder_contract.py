"""What every frozen encoder must do, and the files of a model with random weights to check it with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from models.backbones.backbone_loading import load_backbone
from models.backbones.open_clip_files import CONFIG_FILE, OPEN_CLIP_PREFIX
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
    from models.backbones.frozen_open_clip import build_model

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
    """Check a frozen encoder, whose folder's weights are damaged at the end.

    Raises:
        AssertionError: The encoder breaks the contract.
    """
    both, texts = load_backbone(name, frames), load_query_backbone(name, frames)
    _require(both.fingerprint == texts.fingerprint, "the text tower alone has another fingerprint")
    rng = np.random.default_rng(0)
    clips = torch.from_numpy(rng.integers(0, 256, (2, frames, *both.spec.shape, 3), dtype=np.uint8))
    features = both.video_features(clips)
    shape = (2, both.feature_dim)
    _require(features.shape == shape and features.dtype == torch.float32, f"features are {features.shape}")
    videos = both.project_features(features)
    _require(videos.shape == (2, both.dim), f"vectors of videos are {videos.shape}")
    lengths = videos.norm(dim=-1)
    _require(
        torch.allclose(lengths, torch.ones(2), atol=1e-5), f"vectors of videos have the lengths {lengths}"
    )
    _require(torch.equal(encode_frames(both, clips)[0], videos), "another pass gives other vectors")

    ids = texts.tokenize(TEXTS)
    _require(max(int(row.max()) for row in ids) < texts.vocabulary, "the vocabulary lacks tokens")
    alone, together = texts.encode(ids, alone=True), texts.encode(ids)
    _require(alone.shape == (len(TEXTS), both.dim), f"vectors of texts are {alone.shape}")
    _require(
        np.allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-5), "vectors of texts have other lengths than 1"
    )
    _require(np.allclose(alone, together, atol=_TOLERANCE), "vectors depend on the other texts in the batch")
    side = TowerQueryBackbone(both)
    _require(
        np.allclose(alone, side.encode(side.tokenize(TEXTS), alone=True), atol=_TOLERANCE),
        "the text towers differ",
    )
    _require(texts.towers().fingerprint == both.fingerprint, "both towers do not load after the text tower")
    save_file({"wrong": torch.zeros(1)}, folder / "model.safetensors")
    try:
        load_backbone(name, 2)
    except BackboneUnavailable as error:
        _require("are of another model" in str(error), f"wrong weights are reported as: {error}")
    else:
        raise AssertionError("wrong weights are accepted")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)
