"""Tokenizers agree with open_clip, and their word cache is bounded."""

from __future__ import annotations

from itertools import product

import pytest
from open_clip.tokenizer import SimpleTokenizer

from models.backbones import tokenizer
from models.backbones.tokenizer import clip_tokenizer, small_tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["A  Red\tStar", "fish &amp; chips", "cafÃ©", "“quoted”", "<start_of_text> a", ""]
)
def test_tokens_equal_open_clip(text: str) -> None:
    ours, theirs = clip_tokenizer("ViT-B-32", 77), SimpleTokenizer(context_length=77)
    assert ours([text]).tolist() == theirs([text]).tolist()


def test_word_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "MAX_CACHED_WORDS", 20)
    bounded = small_tokenizer.__wrapped__(8192, 64)
    special_tokens = dict(bounded.cache)
    assert special_tokens, "the cache starts with the special tokens, which are not split"
    texts = [f"<start_of_text> {first}{second}" for first, second in product("abcdefg", repeat=2)]
    expected = small_tokenizer(8192, 64)(texts).tolist()
    assert [bounded([text])[0].tolist() for text in texts] == expected
    full = dict(bounded.cache)
    assert len(full) == 20
    assert special_tokens.items() <= full.items()
    bounded(["unseen words"])
    assert bounded.cache == full  # splitting a word looks it up twice, in threads that share the cache
