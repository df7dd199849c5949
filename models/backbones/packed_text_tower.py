"""Packed text towers for queries: the same function as a tower's own blocks, two to four times as fast on a CPU.

For a query's few tokens, torch packs a frozen matrix again for every product. oneDNN, which torch includes, multiplies
by a matrix that is packed once, also in bfloat16. It generates code for each number of rows, and never frees it: about
half a MiB per matrix shape. Rows (texts × tokens) are therefore padded to a few sizes, eight per power of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones import Precision
from models.backbones.backbone import Backbone
from models.backbones.bert_text_tower import BertBackbone

_TYPICAL_TOKENS = 16  # in a query; the packed layout is optimized for this batch size
MIN_MULTIPLICATIONS = 10**6  # below this, calling oneDNN takes longer than multiplying
_MAX_ROWS = 1024  # in one product; more rows are split
_MIN_ROW_STEP, _ROW_SIZE_BITS = 4, 3  # 48 sizes up to 1024 rows; padding adds at most an eighth above 32 rows
_packed_backbones: WeakKeyDictionary[Backbone, dict[Precision, Backbone]] = WeakKeyDictionary()


def pack_text_tower(backbone: Backbone) -> Backbone:
    """Pack a backbone's text tower in its ``query_precision``, once per backbone.

    The weights of the text tower must not change afterwards. The result shares everything else with the backbone.

    Returns:
        A packed backbone, or the backbone itself if it is not on a CPU with oneDNN kernels for the precision, or if its
        blocks cannot be packed.
    """
    precision = backbone.query_precision
    if isinstance(backbone, BertBackbone):
        backbone.freeze_text_tower()
        return backbone
    if not (backbone.device.type == "cpu" and _has_kernels(precision)):
        return backbone
    packed = _packed_backbones.setdefault(backbone, {})
    if precision not in packed:
        blocks = [PackedBlock(block, precision) for block in backbone.text_blocks]
        packed[precision] = backbone.with_text_blocks(blocks)
    return packed[precision]


class PackedLinear(nn.Module):
    """Linear layer x ↦ Wx + b with a packed matrix, for inference only. Input and output are single precision.

    Args:
        weight: ``[out, in]``; copied.
        bias: ``[out]``.
    """

    def __init__(self, weight: Tensor, bias: Tensor, precision: Precision) -> None:
        super().__init__()
        self._dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().to(self._dtype), _TYPICAL_TOKENS
        )
        self._bias = bias.detach().to(self._dtype)
        self._unpacked = weight.detach(), bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._unpacked
        if x.numel() * len(bias) < MIN_MULTIPLICATIONS:
            return F.linear(x, weight, bias)
        return _apply_to_padded_rows(self._multiply, x)

    def _multiply(self, rows: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows.to(self._dtype), self._weight, self._bias, "none", [], ""
        )
        return product.float()


class PackedAttention(nn.Module):
    """The four projections of an ``nn.MultiheadAttention`` with packed matrices."""

    def __init__(self, attention: nn.MultiheadAttention, precision: Precision) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.in_proj = PackedLinear(attention.in_proj_weight, attention.in_proj_bias, precision)
        self.out_proj = PackedLinear(attention.out_proj.weight, attention.out_proj.bias, precision)


class PackedBlock(nn.Module):
    """A ``ResidualAttentionBlock`` with packed matrices and the same members."""

    def __init__(self, block: Any, precision: Precision) -> None:
        super().__init__()
        self.ln_1, self.ls_1, self.ln_2, self.ls_2 = block.ln_1, block.ls_1, block.ln_2, block.ls_2
        self.attn = PackedAttention(block.attn, precision)
        self.mlp = nn.Sequential(
            *(
                PackedLinear(layer.weight, layer.bias, precision) if isinstance(layer, nn.Linear) else layer
                for layer in block.mlp
            )
        )


def _apply_to_padded_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a row-wise function to ``x [..., d]``, calling it with rows padded to ``[size, d]``."""
    count = x.numel() // x.shape[-1]
    size = _padded_count(min(count, _MAX_ROWS))
    if size == count:
        return function(x)
    rows = x.flatten(0, -2)
    if count < _MAX_ROWS:
        applied = function(_pad_rows(rows, size))[:count]
    else:
        applied = torch.cat([_apply_to_padded_rows(function, part) for part in torch.split(rows, _MAX_ROWS)])
    return applied.view(*x.shape[:-1], applied.shape[-1])


def _pad_rows(rows: Tensor, count: int) -> Tensor:
    padded = rows.new_empty(count, rows.shape[1])  # F.pad fills all rows first
    padded[: len(rows)] = rows
    padded[len(rows) :] = 0
    return padded


def _padded_count(count: int) -> int:
    """Round up to the next size."""
    step = max(_MIN_ROW_STEP, 1 << max((count - 1).bit_length() - 1 - _ROW_SIZE_BITS, 0))
    return -(-count // step) * step


def _has_kernels(precision: Precision) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return precision == "float32" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
