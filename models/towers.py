"""The two forward passes: frames through the image tower, texts through the text tower, with their adapters.

The backbone's own blocks are used as they are; only the attention step of an adapted block differs.
Without adapters the results equal open_clip's own ``encode_image`` and ``encode_text``. A backbone whose blocks
are not open runs without adapters, or says that it cannot have them.
"""

from __future__ import annotations

import torch
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor
from torch.nn import functional as F

from models.backbone import Backbone
from models.ffa import FrameFusion
from models.precision import forward_precision
from models.tame import Condition

__all__ = ["encode_frames", "encode_texts"]


def encode_frames(
    backbone: Backbone, frames: Tensor, fusion: FrameFusion | None = None
) -> tuple[Tensor, Tensor]:
    """Videos to vectors.

    Args:
        frames: ``uint8 [n, M, H, W, 3]``, RGB.
        fusion: Frame Fusion Adapters of the tower, if any.

    Returns:
        Video vectors ``[n, dim]`` and frame vectors ``[n, M, dim]``, unit length.
    """
    with forward_precision(backbone.device):
        tokens = backbone.embed_frames(frames)
        shape = tokens.shape
        for index, block in enumerate(backbone.visual_blocks):
            adapter = fusion.at(index) if fusion is not None else None
            if adapter is None:
                tokens = block(tokens.flatten(0, 1)).view(shape)
                continue
            normalised = block.ln_1(tokens.flatten(0, 1))
            attended = adapter(normalised.view(shape), block.attention(normalised).view(shape)).flatten(0, 1)
            flat = tokens.flatten(0, 1) + block.ls_1(attended)
            tokens = (flat + block.ls_2(block.mlp(block.ln_2(flat)))).view(shape)
    return backbone.pool_frames(tokens.float())


def encode_texts(backbone: Backbone, ids: Tensor, condition: Condition | None = None) -> Tensor:
    """Texts to unit vectors.

    Args:
        ids: token ids ``[n, L]``.
        condition: TAME adapters and C candidates; without it the frozen tower is used and C = 1.

    Returns:
        ``[C, n, dim]``.
    """
    ids = ids.to(backbone.device)
    end = backbone.end_of_text(ids)
    with forward_precision(backbone.device):
        if backbone.open_blocks or condition is not None:
            hidden = _walk_text(backbone, ids, end, condition)
        else:
            hidden = backbone.text_states(ids).unsqueeze(0)
    return backbone.pool_text(hidden.float(), end)


def _walk_text(backbone: Backbone, ids: Tensor, end: Tensor, condition: Condition | None) -> Tensor:
    """States ``[C, n, L, d]`` after the last block of the text tower."""
    hidden = backbone.embed_tokens(ids).unsqueeze(0)
    if condition is not None:
        hidden = hidden.expand(condition.prototypes.shape[0], -1, -1, -1)
    for layer, block in enumerate(backbone.text_blocks):
        hidden = hidden + block.ls_1(_attention(block, layer, block.ln_1(hidden), end, condition))
        hidden = hidden + block.ls_2(block.mlp(block.ln_2(hidden)))
    return hidden


def _attention(
    block: ResidualAttentionBlock, layer: int, hidden: Tensor, end: Tensor, condition: Condition | None
) -> Tensor:
    """Causal self-attention of a text block, ``[C, n, L, d]``; eq. 6 on each of its four projections."""
    attention = block.attn
    projected = F.linear(hidden, attention.in_proj_weight, attention.in_proj_bias)
    query, key, value = projected.chunk(3, dim=-1)
    if condition is not None:
        deltas = condition.input_deltas(layer, hidden, end)
        query, key, value = query + deltas[0], key + deltas[1], value + deltas[2]
    heads = attention.num_heads
    split = (*hidden.shape[:-1], heads, -1)
    query, key, value = (t.reshape(split).transpose(-2, -3) for t in (query, key, value))
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    joined = attended.transpose(-2, -3).flatten(-2)
    out: Tensor = attention.out_proj(joined)
    if condition is not None:
        out = out + condition.output_delta(layer, joined, end)
    return torch.as_tensor(out)
