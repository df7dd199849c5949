"""Misspelled words: find the known terms at one typing error from a word."""

from __future__ import annotations

from functools import lru_cache

from index.words.text_folding import fold_text

MIN_LETTERS = 4  # shorter words have too many neighbors
MAX_LETTERS = 24  # no word that people misspell is longer
_MAX_ALPHABETS = 2  # Unicode blocks whose letters are tried


def is_correctable(word: str) -> bool:
    """Check whether a word is long enough and has only letters; a number with another digit is another number."""
    blocks = {ord(letter) >> 8 for letter in word}
    return MIN_LETTERS <= len(word) <= MAX_LETTERS and len(blocks) <= _MAX_ALPHABETS and word.isalpha()


def spelling_neighbors(word: str) -> list[str]:
    """List the distinct folded words at Damerau-Levenshtein distance 1 (Damerau 1964), in its own alphabets."""
    letters = sorted(set(word).union(*(_letters(ord(letter) >> 8) for letter in word)))
    splits = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    neighbors = {left + right[1:] for left, right in splits if right}
    neighbors |= {left + right[1] + right[0] + right[2:] for left, right in splits if len(right) > 1}
    neighbors |= {left + letter + right[1:] for left, right in splits if right for letter in letters}
    neighbors |= {left + letter + right for left, right in splits for letter in letters}
    return sorted(neighbors - {word})


@lru_cache(maxsize=64)
def _letters(block: int) -> frozenset[str]:
    """List the folded letters among the 256 characters of a Unicode block, which holds an alphabet."""
    characters = map(chr, range(block << 8, (block + 1) << 8))
    return frozenset(letter for letter in characters if letter.isalpha() and fold_text(letter) == letter)
