"""Compounds: words that people write joined, apart or with a hyphen, such as "fire truck"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from index.words.character_classes import UNSPACED
from index.words.term_table import TermTable

_MAX_PARTS = 3
_MIN_CHARACTERS = 3  # of a word that is split
# Letters and digits of scripts with spaces. English words of closed classes are no parts: "the rapist" is not
# "therapist". Words such as "up" are parts.
_PART = re.compile(
    "(?!(?:a|an|the|of|in|on|at|to|is|are|with|and|by|from|for|as|or|but|not|no|nor|so|if|than|then|that|this|these|it|"
    "its|i|me|my|he|him|his|she|her|we|us|our|you|your|they|them|their|who|what|be|am|was|were|been|has|have|had|do|does|"
    f"did|can|will|would|may)$)[^\\W_{UNSPACED}]+$"
)


def join_adjacent(units: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """List the words that each unit of a query, given by its terms, may form: alone, or with its neighbors."""
    joined: list[list[str]] = [[] for _ in units]
    for first in range(len(units)):
        for end in range(first + 1, min(first + _MAX_PARTS, len(units)) + 1):
            terms = sum(units[first:end], ())
            word = "".join(terms)
            if not (1 < len(terms) <= _MAX_PARTS and all(map(_PART.match, terms)) and not word.isdigit()):
                continue
            if end - first in (1, len(terms)):  # a phrase has no neighbors
                for unit in joined[first:end]:
                    unit.append(word)
    return joined


def split_word(word: str, terms: TermTable) -> list[tuple[str, str]]:
    """Split a word in two where the first part is in a table, and the second may be, or may consist of parts."""
    if len(word) < _MIN_CHARACTERS or word.isdigit() or not _PART.match(word):
        return []
    firsts = [word[:end].encode() for end in range(1, len(word) - 1)]
    (ends,) = terms.may_contain(firsts).nonzero()
    splits = [(word[: end + 1], word[end + 1 :]) for end in ends.tolist() if terms.find(firsts[end]) >= 0]
    splits = [split for split in splits if all(map(_PART.match, split))]
    seconds = [name.encode() for _, second in splits for name in (second, second.removesuffix("s"))]
    has = terms.may_contain(seconds).tolist()
    return [
        split
        for split, *own in zip(splits, has[::2], has[1::2], strict=True)
        if any(own) or min(map(len, split)) >= _MIN_CHARACTERS
    ]
