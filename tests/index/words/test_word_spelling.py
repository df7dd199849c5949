"""Words at one typing error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.words.word_forms import is_correctable, spelling_neighbors

words = st.text(st.sampled_from("abcd"), min_size=4, max_size=6)


def is_one_error(left: str, right: str) -> bool:
    """Check whether a letter is missing, added or replaced, or two neighboring letters are exchanged."""
    if len(left) == len(right):
        wrong = [place for place, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
        if len(wrong) == 2 and wrong[1] == wrong[0] + 1:
            first, second = wrong
            return left[first] == right[second] and left[second] == right[first]
        return len(wrong) == 1
    short, long = sorted((left, right), key=len)
    return len(long) == len(short) + 1 and any(
        long[:place] + long[place + 1 :] == short for place in range(len(long))
    )


@given(words, words)
def test_neighbors_are_the_words_at_one_error(word: str, other: str) -> None:
    assert (other in spelling_neighbors(word)) == is_one_error(word, other)


@pytest.mark.parametrize(
    ("word", "meant"), [("штаега", "штанга"), ("αλτηρς", "αλτηρας"), ("kafee", "kaffee")]
)
def test_letters_of_the_same_alphabet_are_tried(word: str, meant: str) -> None:
    assert meant in spelling_neighbors(word)


def test_short_words_and_numbers_are_not_corrected() -> None:
    assert [is_correctable(word) for word in ("row", "rows", "0001", "mp34")] == [False, True, False, False]
