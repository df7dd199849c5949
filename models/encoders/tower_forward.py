"""The two forward passes: frames through the image tower, texts through the text tower, with their adapters.

Open blocks are walked with the backbone's own weights; adapters join at their attention. Without adapters the results
equal open_clip's own ``encode_image`` and ``encode_text``, up to rounding. A backbone whose blocks are not open runs
them as they are, or says that it cannot have adapters. Of the last block of an open tower only the class tokens or the
ends of the texts are wanted, so what follows its attention is computed for them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn import functional as F

from models.adapters.frame_fusion import FrameFusion, FrameFusionAdapter
from models.backbones.attention import merge_heads, scaled_dot_product_attention, split_heads
from models.backbones.backbone import Backbone
from models.backbones.gradient_checkpointing import run_checkpointed
from models.backbones.packed_text_tower import PackedBlock, project_query_key_value
from models.backbones.precision import forward_precision

__all__ = [
    "PerTextCondition",
    "TextCondition",
    "encode_frames",
    "encode_texts",
    "run_first_blocks",
    "start_token_states",
]


class TextCondition(Protocol):
    """What texts are asked under: adapters of C candidates (:mod:`models.adapters.tame`, :mod:`models.adapters.low_rank_text_update`)."""

    @property
    def candidates(self) -> int:
        """C."""
        ...

    def embedding_delta(self, ids: Tensor) -> Tensor | None:
        """What is added to the token embeddings of ids ``[n, L]`` or ``[C, n, L]``, ``[C, n, L, d]``; None: nothing."""
        ...

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """What is added to query, key and value, each ``[C, n, L, d]``; ``hidden [C, n, L, d]`` is what they read, and
        ``end``, ``[n]`` or ``[C, n]``, where the texts end."""
        ...

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """What is added to the out-projection of the concatenated heads ``[C, n, L, d]``."""
        ...


class PerTextCondition:
    """n texts, each asked under one of n candidates: together one candidate, since no two share their weights.

    Args:
        each: the candidate of each text, C = n.
    """

    def __init__(self, each: TextCondition) -> None:
        self._each = each

    @property
    def candidates(self) -> int:
        return 1

    def embedding_delta(self, ids: Tensor) -> Tensor | None:
        """Of ids ``[n, L]``, ``[1, n, L, d]``."""
        delta = self._each.embedding_delta(ids.unsqueeze(1))
        return None if delta is None else delta.transpose(0, 1)

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """Each ``[1, n, L, d]`` of ``hidden [1, n, L, d]``."""
        deltas = self._each.input_deltas(layer, hidden.transpose(0, 1), end.unsqueeze(1))
        return [delta.transpose(0, 1) for delta in deltas]

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """``[1, n, L, d]`` of ``hidden [1, n, L, d]``."""
        return self._each.output_delta(layer, hidden.transpose(0, 1), end.unsqueeze(1)).transpose(0, 1)


def encode_frames(
    backbone: Backbone, frames: Tensor, fusion: FrameFusion | None = None, *, passed: int = 0
) -> tuple[Tensor, Tensor]:
    """Videos to vectors.

    Args:
        frames: ``uint8 [n, M, H, W, 3]``, RGB; or the tokens that :func:`run_first_blocks` has made of them.
        fusion: Frame Fusion Adapters of the tower, if any.
        passed: blocks that the tokens have been through; 0 for frames.

    Returns:
        Video vectors ``[n, dim]`` and frame vectors ``[n, M, dim]``, unit length.
    """
    with forward_precision(backbone.device):
        tokens = frames if passed else backbone.embed_frames(frames)
        tokens = _walk_frames(backbone, tokens, range(passed, len(backbone.visual_blocks)), fusion)
    return backbone.pool_frames(tokens.float())


@torch.no_grad()
def run_first_blocks(backbone: Backbone, frames: Tensor, count: int) -> Tensor:
    """Tokens ``[n, M, P+1, width]`` of ``uint8 [n, M, H, W, 3]`` frames after the first ``count`` blocks, in the
    precision of the moment. Where these blocks are all, they are class tokens alone, P = 0."""
    with forward_precision(backbone.device):
        return _walk_frames(backbone, backbone.embed_frames(frames), range(count), None)


def encode_texts(
    backbone: Backbone, ids: Tensor, condition: TextCondition | None = None, start: Tensor | None = None
) -> Tensor:
    """Texts to unit vectors.

    Args:
        ids: token ids ``[n, L]``.
        condition: adapters of C candidates; without it the frozen tower is used and C = 1.
        start: from :func:`start_token_states` with the same condition, ``[layers, 2, C, n or 1, d]``, to be spared the
            first token of every text.

    Returns:
        ``[C, n, dim]``.
    """
    ids = ids.to(backbone.device)
    end = backbone.end_of_text(ids)
    with forward_precision(backbone.device):
        if backbone.has_open_blocks or condition is not None:
            hidden, end = _walk_text(backbone, ids, end, condition, start), torch.zeros_like(end)
        else:
            hidden = backbone.text_states(ids).unsqueeze(0)
    return backbone.pool_text(hidden.float(), end)


@torch.no_grad()
def start_token_states(backbone: Backbone, condition: TextCondition | None = None) -> Tensor:
    """Keys and values of the mark that every text begins with, ``[layers, 2, C, 1, d]``, in each block of an open
    text tower. The condition must add the same to it whatever text follows, as :mod:`models.adapters.low_rank_text_update` does."""
    ids = backbone.tokenize([""])[:, :1].to(backbone.device)
    end = torch.zeros_like(ids[:, 0])
    seen = []
    with forward_precision(backbone.device):
        hidden = _embed_text(backbone, ids, condition)
        for layer, block in enumerate(backbone.text_blocks):
            _, key, value = _project(block, layer, hidden, end, condition)
            seen.append(torch.stack((key, value)))
            # Of a single token, attention is its value.
            hidden = _after_attention(block, layer, hidden, value, end, condition)
    return torch.stack(seen).squeeze(-2)


def _walk_frames(
    backbone: Backbone, tokens: Tensor, indices: Sequence[int], fusion: FrameFusion | None
) -> Tensor:
    """Tokens ``[n, M, P, width]`` after some blocks of the image tower."""
    blocks, device = backbone.visual_blocks, backbone.device
    for index in indices:
        if not backbone.has_open_blocks:
            tokens = run_checkpointed(_closed_block, blocks[index], tokens, device=device)
            continue
        adapter = fusion.at(index) if fusion is not None else None
        wanted = 1 if index == len(blocks) - 1 else None
        tokens = run_checkpointed(_image_block, blocks[index], adapter, tokens, wanted, device=device)
    return tokens


def _closed_block(block: nn.Module, tokens: Tensor) -> Tensor:
    """A block that brings its own attention, frame by frame: ``[n, M, P, width]`` to the same shape."""
    flat: Tensor = block(tokens.flatten(0, 1))
    return flat.view(tokens.shape)


def _image_block(
    block: ResidualAttentionBlock, adapter: FrameFusionAdapter | None, tokens: Tensor, wanted: int | None
) -> Tensor:
    """A block of the image tower, ``[n, M, P, width]`` to the same shape or its first ``wanted`` tokens a frame."""
    attention, normalised = block.attn, block.ln_1(tokens)
    projected = F.linear(normalised, attention.in_proj_weight, attention.in_proj_bias)
    query, key, value = (split_heads(t, attention.num_heads) for t in projected.chunk(3, dim=-1))
    attended = attention.out_proj(
        merge_heads(scaled_dot_product_attention(query[..., :wanted, :], key, value))
    )
    if adapter is not None:
        attended = adapter(normalised, attended)
    tokens = tokens[:, :, :wanted] + block.ls_1(attended)
    return torch.add(tokens, block.ls_2(block.mlp(block.ln_2(tokens))))


def _walk_text(
    backbone: Backbone, ids: Tensor, end: Tensor, condition: TextCondition | None, start: Tensor | None
) -> Tensor:
    """States ``[C, n, 1, d]`` at the ends of the texts after the last block of the text tower."""
    hidden = _embed_text(backbone, ids, condition)
    if start is not None:
        hidden, end = hidden[..., 1:, :], end - 1
    blocks, device = backbone.text_blocks, backbone.device
    for layer, block in enumerate(blocks):
        last = layer == len(blocks) - 1
        before = None if start is None else start[layer]
        hidden = run_checkpointed(
            _text_block, block, layer, hidden, end, condition, last, before, device=device
        )
    return hidden


def _embed_text(backbone: Backbone, ids: Tensor, condition: TextCondition | None) -> Tensor:
    """What the first block of the text tower reads, ``[C, n, L, d]``."""
    hidden = backbone.embed_tokens(ids).unsqueeze(0)
    if condition is None:
        return hidden
    hidden = hidden.expand(condition.candidates, -1, -1, -1)
    learned = condition.embedding_delta(ids)
    return hidden if learned is None else hidden + learned


def _text_block(
    block: ResidualAttentionBlock | PackedBlock,
    layer: int,
    hidden: Tensor,
    end: Tensor,
    condition: TextCondition | None,
    last: bool,
    before: Tensor | None,
) -> Tensor:
    """A block of the text tower, ``[C, n, L, d]`` to the same shape; the last one to ``[C, n, 1, d]``, the ends.

    Its self-attention is causal, and eq. 6 reaches each of its four projections. ``before``, ``[2, C, n or 1, d]``, are
    key and value of a token before the first one.
    """
    query, key, value = _project(block, layer, hidden, end, condition)
    if before is not None:
        first = before.unsqueeze(-2).expand(-1, *key.shape[:2], -1, -1)
        key, value = (torch.cat(states, dim=-2) for states in zip(first, (key, value), strict=True))
    query, key, value = (split_heads(t, block.attn.num_heads) for t in (query, key, value))
    joined = merge_heads(scaled_dot_product_attention(query, key, value, causal=True))
    if last:
        rows = torch.arange(end.shape[0], device=end.device)
        joined, hidden = (states[:, rows, end].unsqueeze(2) for states in (joined, hidden))
        end = torch.zeros_like(end)
    return _after_attention(block, layer, hidden, joined, end, condition)


def _project(
    block: ResidualAttentionBlock | PackedBlock,
    layer: int,
    hidden: Tensor,
    end: Tensor,
    condition: TextCondition | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value ``[C, n, L, d]`` of a block's input."""
    normalised = block.ln_1(hidden)
    query, key, value = project_query_key_value(block.attn, normalised).chunk(3, dim=-1)
    if condition is None:
        return query, key, value
    of_query, of_key, of_value = condition.input_deltas(layer, normalised, end)
    return query + of_query, key + of_key, value + of_value


def _after_attention(
    block: ResidualAttentionBlock | PackedBlock,
    layer: int,
    hidden: Tensor,
    joined: Tensor,
    end: Tensor,
    condition: TextCondition | None,
) -> Tensor:
    """What a block gives for its input and the joined heads of its attention, both ``[C, n, L, d]``."""
    attended = block.attn.out_proj(joined)
    if condition is not None:
        attended = attended + condition.output_delta(layer, joined, end)
    hidden = hidden + block.ls_1(attended)
    return torch.add(hidden, block.ls_2(block.mlp(block.ln_2(hidden))))
