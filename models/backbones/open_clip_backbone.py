"""Plain CLIP models from open_clip, and their tokenizers.

The blocks of both towers are open, so adapters can work inside them.
"""

from __future__ import annotations

import copy
import functools
import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.tokenizer import SimpleTokenizer, default_bpe
from open_clip.transformer import ResidualAttentionBlock, TextTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.open_clip_files import OPEN_CLIP_PREFIX


class OpenClipBackbone(Backbone):
    """A CLIP dual encoder whose open blocks are plain pre-norm transformers
    (:attr:`~models.backbones.open_clip_files.OpenClipFiles.has_open_blocks`).
    """

    has_open_blocks = True

    def __init__(
        self,
        name: str,
        clip: CLIP | CustomTextCLIP,
        tokenizer: Any,
        spec: FrameSpec,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(name, clip, tokenizer, spec, mean, std)
        self.text: CLIP | TextTransformer = getattr(clip, "text", clip)
        self._text_blocks = list(self.text.transformer.resblocks)

    @property
    def dim(self) -> int:
        return int(self.clip.visual.output_dim)

    @property
    def visual_blocks(self) -> list[ResidualAttentionBlock]:
        return list(self.clip.visual.transformer.resblocks)

    @property
    def text_blocks(self) -> list[Any]:
        return list(self._text_blocks)

    def with_text_blocks(self, blocks: Sequence[nn.Module]) -> OpenClipBackbone:
        other = copy.copy(self)
        other._text_blocks = list(blocks)
        return other

    @property
    def token_embedding(self) -> nn.Embedding:
        table: nn.Embedding = self.text.token_embedding
        return table

    @property
    def vocabulary(self) -> int:
        return int(self.text.vocab_size)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Convert texts to token IDs ``[n, L]``, cut to the longest: causal attention never reads past a text's end."""
        ids: Tensor = self._tokenizer(list(texts))
        return ids[:, : int(self.end_of_text(ids).max()) + 1]

    def end_of_text(self, ids: Tensor) -> Tensor:
        """Find the end-of-text token, ``[n]``: it has the highest ID in CLIP's vocabulary."""
        return ids.argmax(dim=-1)

    def embed_frames(self, frames: Tensor) -> Tensor:
        tokens: Tensor = self.clip.visual._embeds(self.pixels(frames))
        return tokens.view(*frames.shape[:2], *tokens.shape[1:])

    def embed_words(self, words: Tensor) -> Tensor:
        return torch.add(words, self.text.positional_embedding[: words.shape[-2]])

    def pool_text(self, hidden: Tensor, end: Tensor) -> Tensor:
        """Project hidden states ``[..., n, L, width]`` at ``end [n]`` to unit vectors ``[..., n, dim]``."""
        rows = torch.arange(end.shape[0], device=hidden.device)
        pooled = self.text.ln_final(hidden[..., rows, end, :])
        projection = self.text.text_projection
        projected = projection(pooled) if isinstance(projection, nn.Linear) else pooled @ projection
        return F.normalize(projected, dim=-1)

    def _identity(self) -> list[Any]:
        model, _, source = self.name.removeprefix(OPEN_CLIP_PREFIX).partition("/")
        activation = ["quick_gelu"] if needs_quick_gelu(model, source) else []
        return [self.name.split("/")[0], self.spec.size, *activation]


def needs_quick_gelu(model: str, source: str) -> bool:
    """Check whether the weights were trained with QuickGELU: open_clip would only warn, and build them with GELU."""
    return bool((open_clip.get_pretrained_cfg(model, source) or {}).get("quick_gelu"))


# 256 bytes, each inside a word and at its end, plus the start-of-text and end-of-text tokens.
_BASE_TOKENS = 2 * 256 + 2
MAX_CACHED_WORDS = 100_000  # words whose tokens are cached; some 20 MB


def clip_tokenizer(context_length: int, **settings: Any) -> SimpleTokenizer:
    """Build CLIP's byte-pair encoding."""
    return _bound_cache(SimpleTokenizer(context_length=context_length, **settings))


@functools.lru_cache(maxsize=4)
def small_tokenizer(vocabulary: int, context_length: int) -> SimpleTokenizer:
    """Build CLIP's byte-pair encoding with its first merges only.

    Merges are listed in the order in which they were learned, so any prefix of the list is a byte-pair encoding: it
    encodes every Unicode text, and rare words take more tokens. A small vocabulary keeps a small model's embedding
    table from outweighing its towers.
    """
    merges = vocabulary - _BASE_TOKENS
    lines = gzip.decompress(Path(default_bpe()).read_bytes()).decode("utf-8").split("\n")[: merges + 1]
    with tempfile.NamedTemporaryFile(suffix=".txt.gz") as file:
        file.write(gzip.compress("\n".join(lines).encode("utf-8")))
        file.flush()
        tokenizer = SimpleTokenizer(bpe_path=file.name, context_length=context_length)
    if tokenizer.vocab_size != vocabulary:
        raise AssertionError(f"the tokenizer has {tokenizer.vocab_size} tokens, expected {vocabulary}")
    return _bound_cache(tokenizer)


def _bound_cache(tokenizer: SimpleTokenizer) -> SimpleTokenizer:
    """Bound the word cache, which grows with user input; the tokens stay the same."""
    tokenizer.cache = _WordCache(tokenizer.cache)
    return tokenizer


class _WordCache(dict[str, str]):
    """Tokens by word. A full cache takes no other words, since a thread may be about to read any that it has."""

    def __setitem__(self, word: str, tokens: str) -> None:
        if len(self) < MAX_CACHED_WORDS:
            super().__setitem__(word, tokens)
