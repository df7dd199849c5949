"""Tables of terms, and words at one typing error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.words.word_forms import is_correctable, spelling_neighbors
from index.words.word_segment import TermTable, merge_tables

# Terms that share their first eight bytes, of one to four bytes for each character.
terms = st.text(st.sampled_from("ab\u00e9狗\U00020000"), min_size=1, max_size=12).map(str.encode)
term_sets = st.sets(terms, max_size=20)


@given(term_sets, terms)
def test_term_is_found_at_its_place(members: set[bytes], other: bytes) -> None:
    ordered = sorted(members)
    table = TermTable.of(ordered)
    assert table.all_bytes() == ordered
    assert [table.find(term) for term in ordered] == list(range(len(ordered)))
    assert (table.find(other) >= 0) == (other in members)
    assert table.may_contain([*ordered, other])[:-1].all()


@given(term_sets, st.text(st.sampled_from("ab狗"), min_size=1, max_size=10).map(str.encode))
def test_terms_with_a_prefix_stand_side_by_side(members: set[bytes], prefix: bytes) -> None:
    ordered = sorted(members)
    matches = [ordered[index] for index in TermTable.of(ordered).with_prefix(prefix)]
    assert matches == [term for term in ordered if term.startswith(prefix)]


@given(st.lists(term_sets, min_size=1, max_size=4))
def test_merged_table_is_the_union(groups: list[set[bytes]]) -> None:
    merged, mappings = merge_tables([TermTable.of(sorted(group)) for group in groups])
    assert merged.all_bytes() == sorted(set().union(*groups))
    for group, mapping in zip(groups, mappings, strict=True):
        assert [merged.bytes_of(index) for index in mapping.tolist()] == sorted(group)


words = st.text(st.sampled_from("abcd"), min_size=4, max_size=6)


def is_one_error(left: str, right: str) -> bool:
    """Check whether a letter is missing, added or replaced, or two neighboring letters are exchanged."""
    if len(left) == len(right):
        wrong = [index for index, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
        if len(wrong) == 2 and wrong[1] == wrong[0] + 1:
            first, second = wrong
            return left[first] == right[second] and left[second] == right[first]
        return len(wrong) == 1
    short, long = sorted((left, right), key=len)
    return len(long) == len(short) + 1 and any(
        long[:index] + long[index + 1 :] == short for index in range(len(long))
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
