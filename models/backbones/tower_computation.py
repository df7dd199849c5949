"""How towers compute: device, precision, attention, open blocks and gradient checkpointing.

With mixed precision, the towers' matrix products run in bfloat16. Weights, gradients, losses, and all vectors that are
stored or searched stay float32. With gradient checkpointing, the backward pass recomputes everything but a block's
input (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).

Within :func:`micro_batches`, towers encode a batch in parts, yet the loss is that of the whole batch: the backward pass
computes each part again (Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021).
Memory grows with the part instead of the batch; gradients are equal up to rounding.

Open blocks run step by step, so that adapters can change the attention in between. A pre-norm block, as in CLIP,
normalizes the inputs of its attention and its perceptron. A post-norm block, as in BERT, adds each one's output to its
input and normalizes the sum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from traceback import clear_frames
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.random import fork_rng
from torch.utils.checkpoint import checkpoint

from models.errors import ModelError

Value = TypeVar("Value")

_is_mixed: ContextVar[bool] = ContextVar("mixed_precision", default=False)


def compute_device(name: str) -> torch.device:
    """Choose the device that runs the towers: ``cpu``, ``cuda``, or ``auto`` for a GPU if there is one; raise
    ModelError if the name is unknown, or torch finds no usable GPU.
    """
    if name not in ("cpu", "cuda", "auto"):
        raise ModelError(f"device {name!r} is unknown: use cpu, cuda or auto")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise ModelError("device 'cuda' needs a GPU, but torch finds no usable one: use cpu or auto")
    return torch.device("cuda" if has_gpu and name != "cpu" else "cpu")


def has_fast_bfloat16(device: torch.device) -> bool:
    """Check whether the hardware multiplies bfloat16 faster than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@contextmanager
def variable_set(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Set a context variable within this context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def mixed_precision(*, enabled: bool = True) -> AbstractContextManager[None]:
    """Run the towers' forward passes in bfloat16 within this context."""
    return variable_set(_is_mixed, enabled)


def is_mixed_precision() -> bool:
    """Check whether the current context is one of :func:`mixed_precision`."""
    return _is_mixed.get()


@contextmanager
def forward_precision(device: torch.device) -> Iterator[None]:
    """Run a tower's forward pass under autocast to bfloat16 if :func:`mixed_precision` applies, else unchanged."""
    if not _is_mixed.get():
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        if device.type == "cpu":
            # For blocks with their own attention; scaled_dot_product_attention says what is wrong with fused kernels.
            with sdpa_kernel(SDPBackend.MATH):
                yield
        else:
            yield


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, mask: Tensor | None = None
) -> Tensor:
    """Compute softmax(Q Kᵀ / √d) V.

    For bfloat16 on a CPU, torch has two kernels: a fused one with a slow backward pass, and one that computes in
    float32 throughout. Here the products stay in bfloat16 and only the softmax between them is float32, which is as
    exact as rounded queries and keys allow.

    Args:
        query: ``[..., heads, Q, d]``; without ``causal``, there may be fewer queries than keys.
        key: ``[..., heads, K, d]``.
        value: ``[..., heads, K, d]``.
        causal: Whether a query attends only to keys at or before its own position.
        mask: Whether a query attends to a key, ``[n, 1, 1, K]`` for queries ``[..., n, heads, Q, d]``; not with
            ``causal``.

    Returns:
        ``[..., heads, Q, d]``.
    """
    keys, is_cpu = key.shape[-2], query.device.type == "cpu"
    if is_cpu and query.dtype == torch.bfloat16:
        if causal:
            mask = torch.ones(keys, keys, dtype=torch.bool).tril()
        scores = (query @ key.transpose(-1, -2)).float() * query.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return torch.matmul(scores.softmax(dim=-1).to(value.dtype), value)
    if mask is not None:
        mask = mask.expand(*query.shape[:-3], 1, 1, keys)
    if query.dim() > 4 and not (is_cpu and torch.is_grad_enabled()):
        # torch fuses attention over four dimensions only. That halves the time of inference, and a GPU then trains
        # without the scores of all heads in its memory. On a CPU, the fused kernel has a slow backward pass.
        q, k, v = (tokens.flatten(0, -4) for tokens in (query, key, value))
        mask = None if mask is None else mask.flatten(0, -4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return attended.view(*query.shape[:-1], value.shape[-1])
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Reshape ``[..., L, heads · d]`` to ``[..., heads, L, d]``."""
    return tokens.view(*tokens.shape[:-1], heads, -1).transpose(-2, -3)


def merge_heads(tokens: Tensor) -> Tensor:
    """Reshape ``[..., heads, L, d]`` to ``[..., L, heads · d]``."""
    return tokens.transpose(-2, -3).flatten(-2)


_is_enabled: ContextVar[bool] = ContextVar("gradient_checkpointing", default=False)


def gradient_checkpointing(*, enabled: bool = True) -> AbstractContextManager[None]:
    """Let blocks that :func:`run_checkpointed` runs within this context store only their input."""
    return variable_set(_is_enabled, enabled)


def run_checkpointed(block: Callable[..., Tensor], *inputs: Any, device: torch.device) -> Tensor:
    """Run ``block(*inputs)``. Gradients are the same with and without checkpointing, even with dropout."""
    if not (_is_enabled.get() and torch.is_grad_enabled()):
        return block(*inputs)
    is_mixed = is_mixed_precision()

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _recomputation_precision(device, is_mixed=is_mixed)

    result: Tensor = recomputed(block, *inputs, context_fn=contexts)
    return result


def recomputed(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Call ``function(*inputs)``, and keep for the backward pass only what it needs to call the function again;
    ``options`` are those of :func:`torch.utils.checkpoint.checkpoint`.
    """
    try:
        return checkpoint(function, *inputs, use_reentrant=False, **options)
    except BaseException as error:
        # torch keeps its hooks open in a generator. While an error such as a lack of memory refers to it, they would
        # enter the next graph of this thread, whose backward pass then fails.
        clear_frames(error.__traceback__)
        raise


@contextmanager
def _recomputation_precision(device: torch.device, *, is_mixed: bool) -> Iterator[None]:
    """Restore the first pass's precision, whose own context has ended by the time of the backward pass."""
    with mixed_precision(enabled=is_mixed), forward_precision(device):
        yield


_size: ContextVar[int | None] = ContextVar("micro_batch", default=None)


def micro_batches(size: int | None) -> AbstractContextManager[None]:
    """Let towers encode at most ``size`` rows at once within this context; None means all."""
    return variable_set(_size, size)


_rows: ContextVar[tuple[Tensor, int] | None] = ContextVar("batch_rows", default=None)


def batch_rows(rows: Tensor, count: int) -> AbstractContextManager[None]:
    """Say within this context which rows ``[n]`` of a batch of ``count`` are encoded."""
    return variable_set(_rows, (rows, count))


def batch_noise(draw: Callable[[Tensor], Tensor], like: Tensor, dim: int) -> Tensor:
    """Draw noise for a whole batch, and select the rows that are encoded now.

    A row therefore has the same noise with every micro-batch and in every process, if all start with the same
    generator state.

    Args:
        draw: Function from ones of the batch's shape to noise.
        like: Tensor with the shape of the result.
        dim: Dimension of its rows.
    """
    shape = list(like.shape)
    if (part := _rows.get()) is None:
        return draw(like.new_ones(shape))
    rows, shape[dim] = part
    return draw(like.new_ones(shape)).index_select(dim, rows)


def encode_in_parts(encode: Callable[..., tuple[Tensor, ...]], *batch: Tensor) -> tuple[Tensor, ...]:
    """Call a function that encodes rows ``[n, …]`` independently, on all or by parts within :func:`micro_batches`."""
    size, first = _size.get(), batch[0]
    if size is None or size >= len(first):
        return encode(*batch)
    numbers, count = _rows.get() or (torch.arange(len(first), device=first.device), len(first))

    def encode_rows(rows: Tensor, *part: Tensor) -> tuple[Tensor, ...]:
        with batch_rows(rows, count):
            return encode(*part)

    # Both passes run in this context: precision and gradient checkpointing are context variables, but the backward pass
    # runs after their contexts have ended and, on a GPU, in another thread.
    context = copy_context()

    def run(*part: Tensor) -> Any:
        return context.run(encode_rows, *part)

    parts, starts = [], range(0, len(first), size)
    for start in starts:
        part = [tensor[start : start + size] for tensor in (numbers, *batch)]
        is_last = start == starts[-1]
        # Each part draws the noise of the whole batch.
        with nullcontext() if is_last else fork_rng([first.device] if first.device.type == "cuda" else []):
            parts.append(recomputed(run, *part) if torch.is_grad_enabled() else encode_rows(*part))
    return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))


class OpenBlock(ABC):
    """A block that runs step by step.

    States are ``[..., L, width]``.
    """

    heads: int

    @abstractmethod
    def normalize(self, states: Tensor) -> Tensor:
        """Prepare the block's input for the projections."""

    @abstractmethod
    def project(self, normalized: Tensor) -> Tensor:
        """Compute query, key and value, concatenated, ``[..., L, 3 · width]``."""

    @abstractmethod
    def output(self, joined: Tensor) -> Tensor:
        """Apply the out-projection to concatenated heads."""

    @abstractmethod
    def complete(self, states: Tensor, attended: Tensor) -> Tensor:
        """Compute the block's output from its input and its attention."""

    def attend(self, normalized: Tensor, count: int | None = None) -> Tensor:
        """Compute self-attention for all tokens, or only for the first ``count`` tokens."""
        query, key, value = (split_heads(t, self.heads) for t in self.project(normalized).chunk(3, dim=-1))
        return self.output(merge_heads(scaled_dot_product_attention(query[..., :count, :], key, value)))


class PreNormBlock(OpenBlock):
    """Steps of a ``ResidualAttentionBlock`` from open_clip, or of a block with the same members."""

    def __init__(self, block: Any) -> None:
        self._block = block
        self.heads = block.attn.num_heads

    def normalize(self, states: Tensor) -> Tensor:
        return cast(Tensor, self._block.ln_1(states))

    def project(self, normalized: Tensor) -> Tensor:
        attention = self._block.attn
        if isinstance(attention, nn.MultiheadAttention):
            return F.linear(normalized, attention.in_proj_weight, attention.in_proj_bias)
        return cast(Tensor, attention.in_proj(normalized))

    def output(self, joined: Tensor) -> Tensor:
        return cast(Tensor, self._block.attn.out_proj(joined))

    def complete(self, states: Tensor, attended: Tensor) -> Tensor:
        block = self._block
        states = states + block.ls_1(attended)
        return torch.add(states, block.ls_2(block.mlp(block.ln_2(states))))


class BertBlock(OpenBlock):
    """Steps of a ``BertLayer`` from transformers."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.heads = layer.attention.self.num_attention_heads

    def normalize(self, states: Tensor) -> Tensor:
        return states

    def project(self, normalized: Tensor) -> Tensor:
        attention = self._layer.attention.self
        projections = attention.query, attention.key, attention.value
        return torch.cat([projection(normalized) for projection in projections], dim=-1)

    def output(self, joined: Tensor) -> Tensor:
        return cast(Tensor, self._layer.attention.output.dense(joined))

    def complete(self, states: Tensor, attended: Tensor) -> Tensor:
        layer = self._layer
        states = layer.attention.output.LayerNorm(states + attended)
        return cast(Tensor, layer.output.LayerNorm(states + layer.output.dense(layer.intermediate(states))))


def open_block(block: Any) -> OpenBlock:
    """Open a block from :attr:`~models.backbones.backbone.Backbone.visual_blocks` or ``text_blocks``; raise
    BackboneUnsupported if it is closed.
    """
    return block if isinstance(block, OpenBlock) else PreNormBlock(block)
