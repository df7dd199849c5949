"""Forward passes of frames through the image tower and of texts through the text tower, with their adapters.

Open blocks run with the backbone's own weights, and adapters change their attention. Without adapters, results equal
those of open_clip's ``encode_image`` and ``encode_text`` up to rounding. A backbone with closed blocks runs them
unchanged, or raises an error if adapters are given. After the attention of the last block of an open tower, only the
class tokens or the ends of the texts are computed, since the vectors depend on nothing else.

Within :func:`distributed_batches`, each process encodes a part of a batch, and all processes get the vectors of the
whole batch. Losses over these vectors, and all state that follows from them, are thus those of one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn import functional as F

from models.adapters.frame_fusion import FrameFusion, FrameFusionAdapter
from models.backbones.backbone import Backbone
from models.backbones.packed_text_tower import PackedBlock, project_query_key_value
from models.backbones.tower_computation import (
    forward_precision,
    merge_heads,
    run_checkpointed,
    scaled_dot_product_attention,
    split_heads,
)
from models.encoders.text_condition import TextCondition


class BatchDistribution(Protocol):
    """Part of a batch that this process encodes."""

    def slice(self, batch: Tensor) -> Tensor:
        """Rows of a batch that this process encodes; every process gets equally many."""
        ...

    def gather(self, part: Tensor, count: int) -> Tensor:
        """The ``count`` rows of a batch from the parts of all processes, with gradients for the own part."""
        ...


_current: ContextVar[BatchDistribution | None] = ContextVar("batch_distribution", default=None)


@contextmanager
def distributed_batches(distribution: BatchDistribution | None) -> Iterator[None]:
    """Context in which the towers encode batches in parts; None leaves them whole."""
    token = _current.set(distribution)
    try:
        yield
    finally:
        _current.reset(token)


def slice_batch(batch: Tensor) -> Tensor:
    """Rows that this process encodes: all rows outside of :func:`distributed_batches`."""
    distribution = _current.get()
    return batch if distribution is None else distribution.slice(batch)


def gather_batch(part: Tensor, count: int) -> Tensor:
    """Rows of the whole batch of ``count`` rows, given those that this process encoded."""
    distribution = _current.get()
    return part if distribution is None else distribution.gather(part, count)


def encode_frames(
    backbone: Backbone, frames: Tensor, fusion: FrameFusion | None = None, *, first_block: int = 0
) -> tuple[Tensor, Tensor]:
    """Unit vectors of videos and of their frames.

    Args:
        frames: RGB frames ``uint8 [n, M, H, W, 3]``, or their tokens from :func:`run_first_blocks`.
        fusion: Frame Fusion Adapters of the image tower.
        first_block: Index of the first block to run: the number of blocks that made the tokens, or 0 for frames.

    Returns:
        Video vectors ``[n, dim]`` and frame vectors ``[n, M, dim]``.

    Raises:
        BackboneUnsupported: Adapters are given and the backbone's blocks are closed.
    """
    count, frames = len(frames), slice_batch(frames)
    with forward_precision(backbone.device):
        tokens = frames if first_block else backbone.embed_frames(frames)
        tokens = _run_image_blocks(backbone, tokens, range(first_block, len(backbone.visual_blocks)), fusion)
    videos, of_frames = backbone.pool_frames(tokens.float())
    return gather_batch(videos, count), gather_batch(of_frames, count)


@torch.no_grad()
def run_first_blocks(backbone: Backbone, frames: Tensor, count: int) -> Tensor:
    """Tokens of frames after the first blocks of the image tower, in the precision of the context.

    Args:
        backbone: Backbone to encode with.
        frames: ``uint8 [n, M, H, W, 3]``.

    Returns:
        ``[n, M, P+1, width]``; if these are all blocks of an open tower, only class tokens, P = 0.
    """
    with forward_precision(backbone.device):
        return _run_image_blocks(backbone, backbone.embed_frames(frames), range(count), None)


def encode_texts(
    backbone: Backbone, ids: Tensor, condition: TextCondition | None = None, start: Tensor | None = None
) -> Tensor:
    """Unit vectors of texts.

    Args:
        ids: Token ids ``[n, L]``.
        condition: Adapters of C candidates; None encodes with the frozen tower, C = 1.
        start: States ``[layers, 2, C, n or 1, d]`` from :func:`start_token_states` with the same condition, which save
            the computation of every text's first token.

    Returns:
        ``[C, n, dim]``.

    Raises:
        BackboneUnsupported: A condition is given and the backbone's blocks are closed.
    """
    count, ids = len(ids), slice_batch(ids.to(backbone.device))
    if backbone.has_open_blocks or condition is not None:
        end = backbone.end_of_text(ids)
        with forward_precision(backbone.device):
            hidden = _run_text_blocks(backbone, ids, end, condition, start)
        vectors = backbone.pool_text(hidden.float(), torch.zeros_like(end))
    else:
        vectors = backbone.text_vectors(ids).unsqueeze(0)
    return gather_batch(vectors.transpose(0, 1), count).transpose(0, 1)


@torch.no_grad()
def start_token_states(backbone: Backbone, condition: TextCondition | None = None) -> Tensor:
    """Keys and values of the start-of-text token in each block of an open text tower.

    The condition's change of the token must not depend on the text, as in :mod:`models.adapters.low_rank_text_update`.

    Args:
        condition: Adapters of C candidates; None for the frozen tower, C = 1.

    Returns:
        ``[layers, 2, C, 1, d]``.
    """
    ids = backbone.tokenize([""])[:, :1].to(backbone.device)
    end = torch.zeros_like(ids[:, 0])
    states = []
    with forward_precision(backbone.device):
        hidden = _embed_text(backbone, ids, condition)
        for layer, block in enumerate(backbone.text_blocks):
            _, key, value = _project(block, layer, hidden, end, condition)
            states.append(torch.stack((key, value)))
            # The attention of a single token is its value.
            hidden = _after_attention(block, layer, hidden, value, end, condition)
    return torch.stack(states).squeeze(-2)


def _run_image_blocks(
    backbone: Backbone, tokens: Tensor, indices: Sequence[int], fusion: FrameFusion | None
) -> Tensor:
    """Tokens ``[n, M, P, width]`` after some blocks of the image tower."""
    blocks, device = backbone.visual_blocks, backbone.device
    for index in indices:
        if not backbone.has_open_blocks:
            tokens = run_checkpointed(_closed_block, blocks[index], tokens, device=device)
            continue
        adapter = fusion.at(index) if fusion is not None else None
        count = 1 if index == len(blocks) - 1 else None
        tokens = run_checkpointed(_image_block, blocks[index], adapter, tokens, count, device=device)
    return tokens


def _closed_block(block: nn.Module, tokens: Tensor) -> Tensor:
    """Run a closed block on each frame: tokens ``[n, M, P, width]`` to the same shape."""
    flat: Tensor = block(tokens.flatten(0, 1))
    return flat.view(tokens.shape)


def _image_block(
    block: ResidualAttentionBlock, adapter: FrameFusionAdapter | None, tokens: Tensor, count: int | None
) -> Tensor:
    """Run an open block: tokens ``[n, M, P, width]`` to the same shape, or to ``count`` tokens of each frame."""
    attention, normalized = block.attn, block.ln_1(tokens)
    projected = F.linear(normalized, attention.in_proj_weight, attention.in_proj_bias)
    query, key, value = (split_heads(t, attention.num_heads) for t in projected.chunk(3, dim=-1))
    attended = attention.out_proj(
        merge_heads(scaled_dot_product_attention(query[..., :count, :], key, value))
    )
    if adapter is not None:
        attended = adapter(normalized, attended)
    tokens = tokens[:, :, :count] + block.ls_1(attended)
    return torch.add(tokens, block.ls_2(block.mlp(block.ln_2(tokens))))


def _run_text_blocks(
    backbone: Backbone, ids: Tensor, end: Tensor, condition: TextCondition | None, start: Tensor | None
) -> Tensor:
    """States ``[C, n, 1, d]`` at the ends of the texts after the last block of the text tower."""
    hidden = _embed_text(backbone, ids, condition)
    if start is not None:
        hidden, end = hidden[..., 1:, :], end - 1
    blocks, device = backbone.text_blocks, backbone.device
    for layer, block in enumerate(blocks):
        is_last = layer == len(blocks) - 1
        first_token = None if start is None else start[layer]
        hidden = run_checkpointed(
            _text_block, block, layer, hidden, end, condition, is_last, first_token, device=device
        )
    return hidden


def _embed_text(backbone: Backbone, ids: Tensor, condition: TextCondition | None) -> Tensor:
    """Input of the first block of the text tower, ``[C, n, L, d]``."""
    hidden = backbone.embed_tokens(ids).unsqueeze(0)
    if condition is None:
        return hidden
    hidden = hidden.expand(condition.candidates, -1, -1, -1)
    delta = condition.embedding_delta(ids)
    return hidden if delta is None else hidden + delta


def _text_block(
    block: ResidualAttentionBlock | PackedBlock,
    layer: int,
    hidden: Tensor,
    end: Tensor,
    condition: TextCondition | None,
    is_last: bool,
    first_token: Tensor | None,
) -> Tensor:
    """Run an open block with causal self-attention: states ``[C, n, L, d]`` to the same shape.

    The condition changes each of the four projections (ctvr-ffa-tame, eq. 6).

    Args:
        first_token: Key and value of a token in front of the first one, ``[2, C, n or 1, d]``.
        is_last: Whether to return only the states at the ends of the texts, ``[C, n, 1, d]``.
    """
    query, key, value = _project(block, layer, hidden, end, condition)
    if first_token is not None:
        first = first_token.unsqueeze(-2).expand(-1, *key.shape[:2], -1, -1)
        key, value = (torch.cat(states, dim=-2) for states in zip(first, (key, value), strict=True))
    query, key, value = (split_heads(t, block.attn.num_heads) for t in (query, key, value))
    joined = merge_heads(scaled_dot_product_attention(query, key, value, causal=True))
    if is_last:
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
    normalized = block.ln_1(hidden)
    query, key, value = project_query_key_value(block.attn, normalized).chunk(3, dim=-1)
    if condition is None:
        return query, key, value
    query_delta, key_delta, value_delta = condition.input_deltas(layer, normalized, end)
    return query + query_delta, key + key_delta, value + value_delta


def _after_attention(
    block: ResidualAttentionBlock | PackedBlock,
    layer: int,
    hidden: Tensor,
    joined: Tensor,
    end: Tensor,
    condition: TextCondition | None,
) -> Tensor:
    """Output of a block for its input and the concatenated heads of its attention, both ``[C, n, L, d]``."""
    attended = block.attn.out_proj(joined)
    if condition is not None:
        attended = attended + condition.output_delta(layer, joined, end)
    hidden = hidden + block.ls_1(attended)
    return torch.add(hidden, block.ls_2(block.mlp(block.ln_2(hidden))))
