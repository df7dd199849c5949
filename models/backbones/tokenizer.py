"""Text to token ids, for backbones of every vocabulary size."""

from __future__ import annotations

import functools
import gzip
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import open_clip
from open_clip.tokenizer import SimpleTokenizer, default_bpe, get_clean_fn

__all__ = ["clip_tokenizer", "small_tokenizer"]

# 256 bytes, once inside a word and once at its end, plus start and end of text.
_BYTES_AND_SPECIALS = 2 * 256 + 2
_WORDS = 100_000  # whose tokens are remembered; some 20 MB
_clean: Callable[[str], str] = get_clean_fn("lower")


def clip_tokenizer(model: str, context_length: int) -> Any:
    """The tokenizer that open_clip pairs with a named architecture."""
    tokenizer = open_clip.get_tokenizer(model, context_length=context_length)
    return _for_a_service(tokenizer) if type(tokenizer) is SimpleTokenizer else tokenizer


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
    return _for_a_service(tokenizer)


def _for_a_service(tokenizer: SimpleTokenizer) -> SimpleTokenizer:
    """With the same tokens for every text, and a memory of words that does not grow with whatever is asked."""
    if tokenizer.clean_fn is _clean:
        tokenizer.clean_fn = _cleaned
    tokenizer.cache = _Words(tokenizer.cache)
    return tokenizer


def _cleaned(text: str) -> str:
    """As open_clip cleans a text. What is plain ASCII has no encoding to be mended, which would take half the time."""
    if text.isascii() and text.isprintable() and "&" not in text:
        return " ".join(text.split()).lower()
    return _clean(text)


class _Words(dict[str, str]):
    """Tokens of words by word. When there are too many, all are forgotten but those it began with."""

    def __init__(self, first: Mapping[str, str]) -> None:
        super().__init__(first)
        self._first = dict(first)

    def __setitem__(self, word: str, tokens: str) -> None:
        if len(self) >= _WORDS:
            self.clear()
            self.update(self._first)
        super().__setitem__(word, tokens)
