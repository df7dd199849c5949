"""Misspelled words: known terms at one typing error from a word."""

from __future__ import annotations

from collections.abc import Iterable

MIN_LETTERS = 4  # shorter words have too many neighbours


def is_correctable(word: str) -> bool:
    """Whether a word is long enough and has letters only; a number with another digit is another number."""
    return len(word) >= MIN_LETTERS and word.isalpha()


def spelling_neighbours(word: str, alphabet: Iterable[str]) -> list[str]:
    """Strings at Damerau-Levenshtein distance 1 (Damerau 1964), with letters of an alphabet; distinct."""
    letters = sorted(set(alphabet))
    splits = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    neighbours = {left + right[1:] for left, right in splits if right}
    neighbours |= {left + right[1] + right[0] + right[2:] for left, right in splits if len(right) > 1}
    neighbours |= {left + letter + right[1:] for left, right in splits if right for letter in letters}
    neighbours |= {left + letter + right for left, right in splits for letter in letters}
    return sorted(neighbours - {word})
