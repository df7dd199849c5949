"""Text to token ids, for backbones of every vocabulary size."""

from __future__ import annotations

import functools
import gzip
import tempfile
from pathlib import Path

import open_clip
from open_clip.tokenizer import SimpleTokenizer, default_bpe

__all__ = ["clip_tokenizer", "small_tokenizer"]

# 256 bytes, once inside a word and once at its end, plus start and end of text.
_BYTES_AND_SPECIALS = 2 * 256 + 2


def clip_tokenizer(model: str, context_length: int) -> SimpleTokenizer:
    """The tokenizer that open_clip pairs with a named architecture."""
    return open_clip.get_tokenizer(model, context_length=context_length)


@functools.lru_cache(maxsize=4)
def small_tokenizer(vocabulary: int, context_length: int) -> SimpleTokenizer:
    """CLIP's byte-pair encoding cut down to its most frequent merges.

    Merges are ordered by how early they were learned, so every prefix of the list is a byte-pair
    encoding of its own: any Unicode text still encodes, rare words merely take more tokens. A small
    vocabulary keeps the embedding table of a small model from outweighing its towers.
    """
    merges = vocabulary - _BYTES_AND_SPECIALS
    lines = gzip.decompress(Path(default_bpe()).read_bytes()).decode("utf-8").split("\n")[: merges + 1]
    with tempfile.NamedTemporaryFile(suffix=".txt.gz") as file:
        file.write(gzip.compress("\n".join(lines).encode("utf-8")))
        file.flush()
        tokenizer = SimpleTokenizer(bpe_path=file.name, context_length=context_length)
    if tokenizer.vocab_size != vocabulary:
        raise AssertionError(f"built {tokenizer.vocab_size} tokens, wanted {vocabulary}")
    return tokenizer
