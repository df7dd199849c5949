"""The contract of frozen encoders on every configuration of open_clip, with random weights and cut depth.

A configuration with a tokenizer or a text tower from the hub gets small ones in a local folder of the same format. That
a configuration passes does not say that the model's own weights load.
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
TEXT_TOWERS: dict[str, Callable[[], Any]] = {
    "xlm-roberta": lambda: XLMRobertaConfig(num_hidden_layers=LAYERS, **SIZES),
    "roberta": lambda: RobertaConfig(num_hidden_layers=LAYERS, **SIZES),
    "mt5": lambda: MT5Config(num_layers=LAYERS, **SIZES),
    "nllb": lambda: M2M100Config(encoder_layers=LAYERS, decoder_layers=1, **SIZES),
}
VALUES = torch.randn(2**20, generator=torch.Generator().manual_seed(0)) / 50


@pytest.fixture(autouse=True)
def _cut_trunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let timm build its architectures with fewer blocks, and treat plain CLIPs as frozen encoders, too."""
    create = timm.create_model

    def create_cut(name: str, **settings: Any) -> Any:
        for depth in DEPTHS:
            try:
                return create(name, **settings, **depth)
            except (TypeError, IndexError):
                continue
        raise AssertionError(f"timm's {name} cannot be cut")

    def fill(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        """Fill a tensor with repeated random values, which takes a tenth of the time of new ones."""
        repeated = VALUES.repeat(-(-tensor.numel() // len(VALUES)))
        return tensor.copy_(repeated[: tensor.numel()].view(tensor.shape))

    monkeypatch.setattr(timm, "create_model", create_cut)
    monkeypatch.setattr(OpenClipFiles, "has_open_blocks", property(lambda files: False))
    monkeypatch.setattr(Tensor, "normal_", fill)
    monkeypatch.setattr(Tensor, "uniform_", fill)
    monkeypatch.setattr(Tensor, "erfinv_", lambda tensor: tensor)


@pytest.mark.endurance
@pytest.mark.parametrize("model", open_clip.list_models())
def test_configurations_keep_the_contract(model: str, tmp_path: Path) -> None:
    config = deepcopy(open_clip.get_model_config(model))
    images, texts = config["vision_cfg"], config["text_cfg"]
    if "timm_model_name" not in images:
        images["layers"] = [1, 1, 1, 1] if isinstance(images["layers"], list) else LAYERS
    for part in (texts, config.get("multimodal_cfg", {})):
        part["layers"] = LAYERS
    hub_name = texts.get("hf_model_name", "")
    tower = next((build() for part, build in TEXT_TOWERS.items() if part in hub_name), None)
    first_tag = next(iter(open_clip.list_pretrained_tags_by_model(model)), "")
    name = write_open_clip(tmp_path, config, open_clip.get_pretrained_cfg(model, first_tag), tower)
    check_contract(name, tmp_path, frames=1)
