"""Byte-pair tokenizers of CLIP, for vocabularies of every size."""

from __future__ import annotations

import functools
import gzip
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import open_clip
from open_clip.tokenizer import SimpleTokenizer, default_bpe, get_clean_fn

# 256 bytes, once inside a word and once at its end, and the start-of-text and end-of-text tokens.
_BASE_TOKENS = 2 * 256 + 2
MAX_CACHED_WORDS = 100_000  # words whose tokens are cached; some 20 MB
_clean: Callable[[str], str] = get_clean_fn("lower")


def clip_tokenizer(model: str, context_length: int) -> Any:
    """Return the tokenizer that open_clip uses with a model.

    Args:
        context_length: Maximum number of tokens per text.
    """
    tokenizer = open_clip.get_tokenizer(model, context_length=context_length)
    return _adapt_to_service(tokenizer) if type(tokenizer) is SimpleTokenizer else tokenizer


@functools.lru_cache(maxsize=4)
def small_tokenizer(vocabulary: int, context_length: int) -> SimpleTokenizer:
    """CLIP's byte-pair encoding, reduced to its first merges.

    Merges are ordered by how early they were learned, so every prefix of the list is a byte-pair encoding: every
    Unicode text can be encoded, and rare words take more tokens. A small vocabulary keeps the embedding table of a
    small model from outweighing its towers.

    Args:
        vocabulary: Vocabulary size.
        context_length: Maximum number of tokens per text.
    """
    merges = vocabulary - _BASE_TOKENS
    lines = gzip.decompress(Path(default_bpe()).read_bytes()).decode("utf-8").split("\n")[: merges + 1]
    with tempfile.NamedTemporaryFile(suffix=".txt.gz") as file:
        file.write(gzip.compress("\n".join(lines).encode("utf-8")))
        file.flush()
        tokenizer = SimpleTokenizer(bpe_path=file.name, context_length=context_length)
    if tokenizer.vocab_size != vocabulary:
        raise AssertionError(f"the tokenizer has {tokenizer.vocab_size} tokens, expected {vocabulary}")
    return _adapt_to_service(tokenizer)


def _adapt_to_service(tokenizer: SimpleTokenizer) -> SimpleTokenizer:
    """Bound the tokenizer's word cache, which grows with user input, and speed up its cleaning; tokens stay equal."""
    if tokenizer.clean_fn is _clean:
        tokenizer.clean_fn = _clean_text
    tokenizer.cache = _WordCache(tokenizer.cache)
    return tokenizer


def _clean_text(text: str) -> str:
    """Return the text as open_clip cleans it.

    Plain ASCII skips the repair of encodings, which takes half of the time.
    """
    if text.isascii() and text.isprintable() and "&" not in text:
        return " ".join(text.split()).lower()
    return _clean(text)


class _WordCache(dict[str, str]):
    """Tokens by word. A full cache drops all words except its initial ones."""

    def __init__(self, initial: Mapping[str, str]) -> None:
        super().__init__(initial)
        self._initial = dict(initial)

    def __setitem__(self, word: str, tokens: str) -> None:
        if len(self) >= MAX_CACHED_WORDS:
            self.clear()
            self.update(self._initial)
        super().__setitem__(word, tokens)
