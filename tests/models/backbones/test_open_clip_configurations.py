"""The contract of frozen encoders on every configuration of open_clip, with random weights and cut depth.

A configuration with a tokenizer or a text tower from the hub gets small ones in a local folder of the same format. That
a configuration passes does not say that the model's own weights load. One model of each family is checked at full size.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import open_clip
import pytest
import timm
import torch
from torch import Tensor
from transformers import M2M100Config, MT5Config, RobertaConfig, XLMRobertaConfig

from models.backbones.open_clip_files import OpenClipFiles
from tests.models.backbones.encoder_contract import WORDS, check_contract, write_open_clip

LAYERS = 2
# How the constructors of timm's architectures name their depth.
DEPTHS: tuple[dict[str, Any], ...] = (
    {"depth": LAYERS},
    {"depths": (1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1, 1)},
    {"layers": (1, 1, 1, 1)},
)
SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "pad_token_id": 0, "eos_token_id": 2}
# Text towers that the hub would send, by a part of their name.
TEXT_TOWERS: dict[str, Callable[[int], Any]] = {
    "xlm-roberta": lambda layers: XLMRobertaConfig(num_hidden_layers=layers, **SIZES),
    "roberta": lambda layers: RobertaConfig(num_hidden_layers=layers, **SIZES),
    "mt5": lambda layers: MT5Config(num_layers=layers, **SIZES),
    "nllb": lambda layers: M2M100Config(encoder_layers=layers, decoder_layers=1, **SIZES),
}
# One of each family, up to a billion parameters.
FULL_SIZE = (
    *("RN50", "ViT-B-32", "convnext_base", "coca_ViT-B-32", "EVA02-B-16", "MobileCLIP2-B", "PE-Core-B-16"),
    *("ViT-B-16-SigLIP2", "ViTamin-B", "roberta-ViT-B-32", "xlm-roberta-base-ViT-B-32"),
)
# With towers of open_clip, of timm, and of the hub; all others are endurance tests.
SLOW = ("RN50", "ViT-B-16-SigLIP2", "xlm-roberta-base-ViT-B-32")
VALUES = torch.randn(2**20, generator=torch.Generator().manual_seed(0)) / 50


@pytest.fixture(autouse=True)
def _quick_random_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill weights in a tenth of the time, and treat plain CLIPs as frozen encoders, too."""

    def fill(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        repeated = VALUES.repeat(-(-tensor.numel() // len(VALUES)))
        return tensor.copy_(repeated[: tensor.numel()].view(tensor.shape))

    monkeypatch.setattr(OpenClipFiles, "has_open_blocks", property(lambda files: False))
    monkeypatch.setattr(Tensor, "normal_", fill)
    monkeypatch.setattr(Tensor, "uniform_", fill)
    monkeypatch.setattr(Tensor, "erfinv_", lambda tensor: tensor)


@pytest.fixture
def cut_trunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let timm build its architectures with fewer blocks."""
    create = timm.create_model

    def create_cut(name: str, **settings: Any) -> Any:
        for depth in DEPTHS:
            try:
                return create(name, **settings, **depth)
            except (TypeError, IndexError):
                continue
        raise AssertionError(f"timm's {name} cannot be cut")

    monkeypatch.setattr(timm, "create_model", create_cut)


@pytest.mark.usefixtures("cut_trunks")
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=pytest.mark.slow if model in SLOW else pytest.mark.endurance)
        for model in open_clip.list_models()
    ],
)
def test_configurations_keep_the_contract(model: str, tmp_path: Path) -> None:
    config = deepcopy(open_clip.get_model_config(model))
    images = config["vision_cfg"]
    if "timm_model_name" not in images:
        images["layers"] = [1, 1, 1, 1] if isinstance(images["layers"], list) else LAYERS
    for part in (config["text_cfg"], config.get("multimodal_cfg", {})):
        part["layers"] = LAYERS
    _check(model, config, tmp_path, LAYERS)


@pytest.mark.endurance
@pytest.mark.parametrize("model", FULL_SIZE)
def test_one_model_of_each_family_keeps_the_contract_at_full_size(model: str, tmp_path: Path) -> None:
    _check(model, deepcopy(open_clip.get_model_config(model)), tmp_path, 12)


def _check(model: str, config: dict[str, Any], folder: Path, text_layers: int) -> None:
    hub_name = config["text_cfg"].get("hf_model_name", "")
    tower = next((build(text_layers) for part, build in TEXT_TOWERS.items() if part in hub_name), None)
    first_tag = next(iter(open_clip.list_pretrained_tags_by_model(model)), "")
    name = write_open_clip(folder, config, open_clip.get_pretrained_cfg(model, first_tag), tower)
    check_contract(name, folder, frames=1)
