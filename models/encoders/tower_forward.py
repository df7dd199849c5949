"""Forward passes: frames through the image tower and texts through the text tower, with their adapters.

Open blocks run with the backbone's own weights, and adapters change their attention. Without adapters, results equal
open_clip's ``encode_image`` and ``encode_text`` up to rounding. A frozen encoder runs its towers as a whole, and raises
an error if adapters are given. After the attention in an open tower's last block, only class tokens or, in a
causal tower, the ends of the texts are computed, since the vectors depend on nothing else.

In a context that sets :data:`batch_encoder`, several processes encode a batch together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.image_adapters import FrameFusion, FrameFusionAdapter
from models.backbones.backbone import Backbone
from models.backbones.frozen_encoder import FrozenEncoder
from models.backbones.tower_computation import (
    OpenBlock,
    encode_in_parts,
    forward_precision,
    merge_heads,
    open_block,
    run_checkpointed,
    scaled_dot_product_attention,
    split_heads,
)

Encode = Callable[[Tensor], tuple[Tensor, ...]]  # encodes each row of a batch independently
batch_encoder: ContextVar[Callable[[Encode, Tensor], tuple[Tensor, ...]]] = ContextVar(
    "batch_encoder", default=encode_in_parts
)


class TextCondition(Protocol):
    """Adapters of C candidates under which texts are encoded.

    :mod:`models.adapters.tame` and :mod:`models.adapters.low_rank_text_update` implement it. Candidates are the first
    dimension of hidden states.
    """

    @property
    def candidates(self) -> int:
        """Number of candidates C."""
        ...

    def embedding_delta(self, ids: Tensor) -> Tensor | None:
        """Compute the change of token embeddings ``[C, n, L, d]``, None without any, for IDs ``[n, L]``, or
        ``[C, n, L]`` with other texts for each candidate.
        """
        ...

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """Compute the changes of query, key and value in a block, each ``[C, n, L, d]``, from the input of the
        projections ``[C, n, L, d]``; texts end at ``end [n]`` or ``[C, n]``.
        """
        ...

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """Compute the change of the out-projection in a block from concatenated heads, both ``[C, n, L, d]``."""
        ...


class PerTextCondition:
    """A separate candidate for each of n texts (C = n). It counts as one candidate, since texts share no weights."""

    candidates = 1

    def __init__(self, condition: TextCondition) -> None:
        self._condition = condition

    def embedding_delta(self, ids: Tensor) -> Tensor | None:
        """See :meth:`TextCondition.embedding_delta`; IDs are ``[n, L]``."""
        delta = self._condition.embedding_delta(ids.unsqueeze(1))
        return None if delta is None else delta.transpose(0, 1)

    def input_deltas(self, layer: int, hidden: Tensor, end: Tensor) -> Sequence[Tensor]:
        """See :meth:`TextCondition.input_deltas`."""
        deltas = self._condition.input_deltas(layer, hidden.transpose(0, 1), end.unsqueeze(1))
        return [delta.transpose(0, 1) for delta in deltas]

    def output_delta(self, layer: int, hidden: Tensor, end: Tensor) -> Tensor:
        """See :meth:`TextCondition.output_delta`."""
        return self._condition.output_delta(layer, hidden.transpose(0, 1), end.unsqueeze(1)).transpose(0, 1)


class WordCondition:
    """Adapters of one condition, with the changed token embeddings of another that has as many candidates."""

    def __init__(self, adapters: TextCondition, words: TextCondition) -> None:
        self.candidates = adapters.candidates
        self.input_deltas, self.output_delta = adapters.input_deltas, adapters.output_delta
        self.embedding_delta = words.embedding_delta


def encode_frames(
    backbone: Backbone, frames: Tensor, fusion: FrameFusion | None = None, *, first_block: int = 0
) -> tuple[Tensor, Tensor]:
    """Encode videos and their frames to unit vectors ``[n, dim]`` and ``[n, M, dim]``; raise BackboneUnsupported for
    adapters in closed blocks.

    The first block to run is 0 for RGB frames ``[n, M, H, W, 3]``, and the number of blocks that made them for tokens
    ``[n, M, P+1, width]`` from :func:`run_first_blocks`.
    """

    def encode(part: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(backbone, FrozenEncoder) and fusion is None:
            vectors = backbone.frame_vectors(part)
            return F.normalize(vectors.mean(dim=1), dim=-1), F.normalize(vectors, dim=-1)
        with forward_precision(backbone.device):
            tokens = frame_tokens(backbone, part)
            tokens = _run_image_blocks(
                backbone, tokens, range(first_block, len(backbone.visual_blocks)), fusion
            )
        return backbone.pool_frames(tokens.float())

    videos, of_frames = batch_encoder.get()(encode, frames)
    return videos, of_frames


def frame_tokens(backbone: Backbone, frames: Tensor) -> Tensor:
    """Compute tokens ``[n, M, P+1, width]`` from frames ``[n, M, H, W, 3]``; tokens pass through."""
    return frames if frames.dim() == 4 else backbone.embed_frames(frames)


@torch.no_grad()
def run_first_blocks(backbone: Backbone, frames: Tensor, count: int) -> Tensor:
    """Run frames ``uint8 [n, M, H, W, 3]`` through the first blocks of the image tower, in the context's precision, to
    tokens ``[n, M, P+1, width]``; only class tokens, P = 0, if these are all blocks.
    """
    with forward_precision(backbone.device):
        return _run_image_blocks(backbone, backbone.embed_frames(frames), range(count), None)


def encode_texts(backbone: Backbone, ids: Tensor, condition: TextCondition | None = None) -> Tensor:
    """Encode token IDs ``[n, L]`` of texts to unit vectors ``[C, n, dim]``, with adapters of C candidates or with the
    frozen tower, C = 1; raise BackboneUnsupported for adapters in closed blocks.
    """
    causal = backbone.has_causal_text

    def encode(part: Tensor) -> tuple[Tensor]:
        if condition is None and not causal:
            return (backbone.text_vectors(part).unsqueeze(1),)
        end = backbone.end_of_text(part)
        with forward_precision(backbone.device):
            embedded = _embed_text(backbone, part, condition)
            hidden = run_text_blocks(backbone, embedded, end, condition, only_ends=causal)
        vectors = backbone.pool_text(hidden.float(), torch.zeros_like(end) if causal else end)
        return (vectors.transpose(0, 1),)

    (vectors,) = batch_encoder.get()(encode, ids.to(backbone.device, non_blocking=True))
    return vectors.transpose(0, 1)


def run_text_blocks(
    backbone: Backbone,
    hidden: Tensor,
    end: Tensor,
    condition: TextCondition | None = None,
    *,
    only_ends: bool = False,
) -> Tensor:
    """Run the text tower's blocks on the input of the first one, ``[C, n, L, d]``, in the precision of the context.

    The result has the same shape; with ``only_ends``, it has only the states at the end of each text, ``[C, n, 1, d]``.
    """
    blocks, device = backbone.text_blocks, backbone.device
    mask, causal = backbone.text_mask(hidden.shape[-2], end), backbone.has_causal_text
    for layer, block in enumerate(blocks):
        is_cut = only_ends and layer == len(blocks) - 1
        step = _TextStep(open_block(block), layer, end, condition, mask=mask, causal=causal, is_cut=is_cut)
        hidden = run_checkpointed(step, hidden, device=device)
    return hidden


def _run_image_blocks(
    backbone: Backbone, tokens: Tensor, indices: Sequence[int], fusion: FrameFusion | None
) -> Tensor:
    """Run some blocks of the image tower on tokens ``[n, M, P, width]``."""
    blocks, device = backbone.visual_blocks, backbone.device
    for index in indices:
        adapter = fusion.at(index) if fusion is not None else None
        count = 1 if index == len(blocks) - 1 else None
        tokens = run_checkpointed(
            _image_block, open_block(blocks[index]), adapter, tokens, count, device=device
        )
    return tokens


def _image_block(
    block: OpenBlock, adapter: FrameFusionAdapter | None, tokens: Tensor, count: int | None
) -> Tensor:
    """Run an open block on each frame's tokens ``[n, M, P, width]``; the result may be cut to ``count`` tokens."""
    normalized = block.normalize(tokens)
    attended = block.attend(normalized, count)
    if adapter is not None:
        attended = adapter(normalized, attended)
    return block.complete(tokens[:, :, :count], attended)


def _embed_text(backbone: Backbone, ids: Tensor, condition: TextCondition | None) -> Tensor:
    """Compute the input of the text tower's first block, ``[C, n, L, d]``."""
    words = backbone.token_embedding(ids)
    change = None if condition is None else condition.embedding_delta(ids)
    if change is not None:
        return backbone.embed_words(words + change)
    candidates = 1 if condition is None else condition.candidates
    return backbone.embed_words(words).expand(candidates, -1, -1, -1)


@dataclass(frozen=True)
class _TextStep:
    """One open block, applied to states ``[C, n, L, d]``.

    The condition changes each of the four projections (ctvr-ffa-tame, eq. 6).
    """

    block: OpenBlock
    layer: int
    end: Tensor  # position where each text ends, [n]
    condition: TextCondition | None
    mask: Tensor | None = None  # tokens that all others attend to, [n, 1, 1, L]
    causal: bool = True
    is_cut: bool = False  # whether to return states only at the ends of the texts, [C, n, 1, d]

    def __call__(self, hidden: Tensor) -> Tensor:
        query, key, value = (split_heads(t, self.block.heads) for t in self._project(hidden))
        joined = merge_heads(
            scaled_dot_product_attention(query, key, value, causal=self.causal, mask=self.mask)
        )
        end = self.end
        if self.is_cut:
            rows = torch.arange(end.shape[0], device=end.device)
            joined, hidden = (states[:, rows, end].unsqueeze(2) for states in (joined, hidden))
            end = torch.zeros_like(end)
        attended = self.block.output(joined)
        if self.condition is not None:
            attended = attended + self.condition.output_delta(self.layer, joined, end)
        return self.block.complete(hidden, attended)

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute query, key and value ``[C, n, L, d]`` from the block's input."""
        normalized = self.block.normalize(hidden)
        query, key, value = self.block.project(normalized).chunk(3, dim=-1)
        if self.condition is None:
            return query, key, value
        query_delta, key_delta, value_delta = self.condition.input_deltas(self.layer, normalized, self.end)
        return query + query_delta, key + key_delta, value + value_delta
