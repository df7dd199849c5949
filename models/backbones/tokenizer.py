"""CLIP's byte-pair tokenizers, for vocabularies of any size."""

from __future__ import annotations

import functools
import gzip
import tempfile
from pathlib import Path
from typing import Any

import open_clip
from open_clip.tokenizer import SimpleTokenizer, default_bpe

# 256 bytes, each inside a word and at its end, plus the start-of-text and end-of-text tokens.
_BASE_TOKENS = 2 * 256 + 2
MAX_CACHED_WORDS = 100_000  # words whose tokens are cached; some 20 MB


def clip_tokenizer(model: str, context_length: int) -> Any:
    """Build the tokenizer that open_clip uses for a model."""
    tokenizer = open_clip.get_tokenizer(model, context_length=context_length)
    return _bound_cache(tokenizer) if type(tokenizer) is SimpleTokenizer else tokenizer


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
