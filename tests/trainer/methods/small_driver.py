"""A random backbone with the structure of ``small``: frozen convolutions, blocks without weights, and a BERT."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from models.backbones.backbone_description import FrameSpec, TextBackground
from models.backbones.bert_text_tower import BertTextTower, Towers
from models.backbones.small.small_backbone import FrameBlock, SmallBackbone
from models.backbones.small.small_files import RESERVED, load_tokenizer
from tests.trainer.methods.method_driver import FRAMES, SIDE

_FEATURES, _WIDTH, _SEMANTIC = 128, 32, 24
_DIM = _SEMANTIC + RESERVED


class _ImageTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cnn: Any = nn.Sequential(nn.Conv2d(3, _FEATURES, 4, stride=4), nn.ReLU())
        self.blocks = nn.ModuleList(FrameBlock(_FEATURES) for _ in range(2))
        self.ln_post = nn.Identity()
        projection = torch.randn(_FEATURES, _DIM)
        projection[:, -RESERVED:] = 0
        self.proj = nn.Parameter(projection)

    def forward(self, pixels: Tensor) -> Tensor:
        maps: Tensor = self.cnn(pixels)
        return maps


def random_small_backbone() -> SmallBackbone:
    """Return an untrained backbone with two layers per tower and the tokenizer of ``small``."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=80,
    )
    text = BertTextTower(BertModel(config, add_pooling_layer=False), torch.eye(_WIDTH, _DIM))
    with torch.no_grad():
        text.text_projection[:, -RESERVED:] = 0
    background = TextBackground(
        np.full(_SEMANTIC, 0.05, np.float32), 10 * np.eye(_SEMANTIC, dtype=np.float32)
    )
    return SmallBackbone(
        "small", Towers(_ImageTower(), text), load_tokenizer(), FrameSpec(FRAMES, SIDE), background
    )
