"""A key for the words of a text, equal for texts that ask for the same."""

from __future__ import annotations

import hashlib

from index.words.text_analysis import COMPOUND, SEGMENTATION, split_words
from index.words.word_stems import ENGLISH, stem_words

# English words that do not change what a text asks for.
_FUNCTION_WORDS = frozenset(
    {"a", "an", "the", "of", "in", "on", "at", "to", "is", "are", "with", "and", "by", "from"}
)


def words_key(text: str) -> str | None:
    """Compute a digest of a text's words; None without words.

    It is the same for texts with the same words, regardless of their order, case, number and English inflection, and of
    words such as articles. Keys of texts that another version of the software divides otherwise differ.
    """
    terms = {word.term.removeprefix(COMPOUND) for word in split_words(text)}
    content = sorted(terms - _FUNCTION_WORDS or terms)
    if not content:
        return None
    stems = sorted({stem_words(ENGLISH, [term])[0] if term.isascii() else term for term in content})
    return hashlib.sha256(" ".join([SEGMENTATION, *stems]).encode()).hexdigest()
