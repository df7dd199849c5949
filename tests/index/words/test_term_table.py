"""Sorted tables of terms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
    found = [ordered[place] for place in TermTable.of(ordered).with_prefix(prefix)]
    assert found == [term for term in ordered if term.startswith(prefix)]


@given(st.lists(term_sets, min_size=1, max_size=4))
def test_merged_table_is_the_union(groups: list[set[bytes]]) -> None:
    merged, places = merge_tables([TermTable.of(sorted(group)) for group in groups])
    assert merged.all_bytes() == sorted(set().union(*groups))
    for group, mapping in zip(groups, places, strict=True):
        assert [merged.bytes_of(place) for place in mapping.tolist()] == sorted(group)
