"""Packed text towers compute the same function as the blocks of the original tower."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from models.adapters.low_rank_text_update import TextUpdate
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders import tower_query_backbone
from models.encoders.tower_forward import encode_texts
from models.encoders.tower_query_backbone import PackedBlock, PackedLinear, pack_text_tower

TEXTS = ["a red star spins", "left", "a small blue square and a large green ring move from left to right"]


class ProductRecorder(TorchDispatchMode):
    """Records how many rows each packed product has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: set[int] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if operator is torch.ops.mkldnn._linear_pointwise.default:
            x: Tensor = args[0]
            self.rows.add(x.numel() // x.shape[-1])
        return operator(*args, **kwargs or {})


needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU has no products in bfloat16"
)


@pytest.fixture(autouse=True)
def inference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inference mode for all tests, as packed layers have no backward pass, and layers of any size are packed."""
    monkeypatch.setattr(tower_query_backbone, "MIN_MULTIPLICATIONS", 0)
    with torch.inference_mode():
        yield


def _layer_and_input(rows: int) -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(rows)
    return nn.Linear(48, 80), torch.randn(2, rows, 48)


@pytest.mark.parametrize("rows", [1, 7, 16, 300, 1025])
def test_packed_linear_equals_linear(rows: int) -> None:
    layer, x = _layer_and_input(rows)
    torch.testing.assert_close(
        PackedLinear(layer.weight, layer.bias, "float32")(x), F.linear(x, layer.weight, layer.bias)
    )


@needs_bfloat16
@pytest.mark.parametrize("rows", [1, 7, 16, 300, 1025])
def test_packed_linear_in_bfloat16_rounds_once(rows: int) -> None:
    layer, x = _layer_and_input(rows)
    rounded = PackedLinear(layer.weight, layer.bias, "bfloat16")(x)
    assert rounded.dtype == torch.float32
    expected = F.linear(
        x.bfloat16().double(), layer.weight.bfloat16().double(), layer.bias.bfloat16().double()
    )
    torch.testing.assert_close(rounded.double(), expected, rtol=2**-8, atol=1e-6)


def test_number_of_products_with_different_rows_is_bounded() -> None:
    layer = nn.Linear(3, 5)
    packed = PackedLinear(layer.weight, layer.bias, "float32")
    counts = [*range(1, 1100), 4928, 10**5]
    with ProductRecorder() as recorder:
        for rows in counts:
            assert packed(torch.ones(rows, 3)).shape == (rows, 5)
    sizes = sorted(recorder.rows)
    assert len(sizes) <= 48
    assert sizes[-1] <= 1024
    for rows in range(32, 1025):  # padding adds at most an eighth
        assert next(size for size in sizes if size >= rows) <= rows * 9 / 8


def test_packed_tower_encodes_like_its_original(backbone: Backbone) -> None:
    ids = backbone.tokenize(TEXTS)
    tower = pack_text_tower(backbone)
    assert all(isinstance(block, PackedBlock) for block in tower.text_blocks)
    assert not any(isinstance(block, PackedBlock) for block in backbone.text_blocks)
    torch.testing.assert_close(encode_texts(tower, ids), encode_texts(backbone, ids), atol=1e-6, rtol=0)
    update = TextUpdate.for_backbone(backbone, rank=4, scale=1.0)
    nn.init.normal_(update.b, std=0.05)
    with_update, expected = (encode_texts(each, ids, update.as_update_set()) for each in (tower, backbone))
    torch.testing.assert_close(with_update, expected, atol=1e-6, rtol=0)
    assert (with_update - encode_texts(tower, ids)).norm(dim=-1).min() > 1e-3


def test_packed_towers_are_cached_per_backbone(backbone: Backbone) -> None:
    tower = pack_text_tower(backbone)
    assert pack_text_tower(backbone) is tower
    copied = backbone.clone()
    copied.load_tensors({name: 1.5 * tensor for name, tensor in backbone.tensors().items()})
    ids = backbone.tokenize(TEXTS)
    vectors = encode_texts(pack_text_tower(copied), ids)
    torch.testing.assert_close(vectors, encode_texts(copied, ids), atol=1e-6, rtol=0)
    assert (vectors - encode_texts(tower, ids)).norm(dim=-1).min() > 1e-2


def test_unsupported_towers_are_not_packed(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    meta_backbone = tiny_backbone(frames=2).to("meta")
    assert pack_text_tower(meta_backbone) is meta_backbone
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert pack_text_tower(backbone) is backbone
