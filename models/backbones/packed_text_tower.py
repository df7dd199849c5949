"""Text towers laid out for queries: the same function as a tower's own blocks, two to four times as fast on a CPU.

A query is a few words, and its cost is that of a dozen small products with frozen matrices. Two things make them slow
in torch: matrices are laid out anew for every product, and single precision goes through a library that leaves half of
the vector unit idle on processors of other makers than its own. oneDNN, which torch brings along as well, does neither
where a matrix is laid out once. It computes from bfloat16 too, without a conversion of all weights for every query.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.compute_options import Precision

__all__ = ["PackedAttention", "PackedBlock", "PackedLinear", "pack_text_tower", "project_query_key_value"]

_ROWS = 16  # about as many tokens as a query has: what the layout is chosen for
_WORTH = 10**6  # products; for fewer it takes longer to call oneDNN than to multiply
_towers: WeakKeyDictionary[Backbone, dict[Precision, Backbone]] = WeakKeyDictionary()


def pack_text_tower(backbone: Backbone) -> Backbone:
    """The backbone with a packed text tower in its ``query_precision``; the same one whenever it is asked for.

    Its weights must not change afterwards. All but the matrices of the text blocks are shared with it. A backbone whose
    blocks are closed, or one that is not on a CPU that oneDNN has kernels for, is given back as it is.
    """
    precision = backbone.query_precision
    if not (backbone.has_open_blocks and backbone.device.type == "cpu" and _has_kernels(precision)):
        return backbone
    made = _towers.setdefault(backbone, {})
    if precision not in made:
        blocks = [PackedBlock(block, precision) for block in backbone.text_blocks]
        made[precision] = backbone.with_text_blocks(blocks)
    return made[precision]


class PackedLinear(nn.Module):
    """x ↦ Wx + b, for inference alone. What comes in and goes out is single precision.

    Args:
        weight: ``[out, in]``; copied.
        bias: ``[out]``.
        precision: of the product.
    """

    def __init__(self, weight: Tensor, bias: Tensor, precision: Precision) -> None:
        super().__init__()
        self._dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(self._dtype), _ROWS)
        self._bias = bias.detach().to(self._dtype)
        self._plain = weight.detach(), bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._plain
        if x.numel() * len(bias) < _WORTH:
            return F.linear(x, weight, bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), self._weight, self._bias, "none", [], ""
        )
        return product.float()


class PackedAttention(nn.Module):
    """The four projections of an ``nn.MultiheadAttention``."""

    def __init__(self, attention: nn.MultiheadAttention, precision: Precision) -> None:
        super().__init__()
        self.num_heads = attention.num_heads
        self.in_proj = PackedLinear(attention.in_proj_weight, attention.in_proj_bias, precision)
        self.out_proj = PackedLinear(attention.out_proj.weight, attention.out_proj.bias, precision)


class PackedBlock(nn.Module):
    """A ``ResidualAttentionBlock`` with packed matrices, to be walked like one."""

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


def project_query_key_value(attention: nn.MultiheadAttention | PackedAttention, x: Tensor) -> Tensor:
    """Query, key and value side by side, ``[..., 3 · width]`` of ``[..., width]``."""
    if isinstance(attention, PackedAttention):
        projected: Tensor = attention.in_proj(x)
        return projected
    return F.linear(x, attention.in_proj_weight, attention.in_proj_bias)


def _has_kernels(precision: Precision) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return precision == "float32" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
