"""The inverted index against a search that reads every text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.words import word_index, word_segment
from index.words.text_analysis import parse_query
from index.words.word_forms import is_correctable, spelling_neighbors
from index.words.word_index import COMMON_DOCUMENTS, SELECTED_DOCUMENTS, TextKind, VideoText, WordIndex
from index.words.word_segment import TermTable, merge_tables

from .naive_word_search import Texts, frequencies, matching_texts, most_frequent_terms, rows, videos_with_all

WORDS = ["dog", "dogs", "cat", "sit", "sits", "sit-up", "up", "row", "rowing", "the", "situp", "狗", "走狗"]
phrases = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
video_texts = st.builds(VideoText, st.sampled_from(TextKind), phrases, st.none(), st.integers(0, 15))
changes = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.lists(video_texts, max_size=3)), max_size=4),
    min_size=1,
    max_size=6,
)
queries = st.one_of(
    phrases, phrases.map(lambda text: f'"{text}" dog'), phrases.map(lambda text: f'cat "{text}"')
)


def captions(*texts: str) -> list[VideoText]:
    return [VideoText(TextKind.CAPTION, text) for text in texts]


def index_of(*texts: str) -> WordIndex:
    """Index one caption per video; IDs start at 0."""
    return WordIndex.empty().replace((video, captions(text)) for video, text in enumerate(texts))


def hits(index: WordIndex, query: str) -> list[int]:
    return sorted(index.lookup(parse_query(query)).videos.tolist())


def states(
    batches: list[list[tuple[int, list[VideoText]]]],
) -> Iterator[tuple[WordIndex, dict[int, list[VideoText]]]]:
    index, texts = WordIndex.empty(), {}
    for batch in batches:
        index, texts = index.replace(batch), texts | dict(batch)
        yield index, texts


@given(changes, queries)
def test_lookup_agrees_with_reading_every_text_in_every_state(
    batches: list[list[tuple[int, list[VideoText]]]], query: str
) -> None:
    units = parse_query(query)
    # All states are compared after the last change: a change must not reach an older state.
    for index, texts in list(states(batches)):
        matches = index.lookup(units)
        assert rows(matches) == matching_texts(texts, units)
        assert matches.frequencies.tolist() == frequencies(texts, units)
        assert index.containing(units).tolist() == videos_with_all(texts, units)
        assert (
            index.documents
            == matches.documents
            == sum(bool(text.text) for group in texts.values() for text in group)
        )
        assert index.videos == sum(any(text.text for text in group) for group in texts.values())


@given(changes)
def test_captioned_videos_have_a_caption_or_a_transcript(
    batches: list[list[tuple[int, list[VideoText]]]],
) -> None:
    ids = np.array([7, 3, 3, 0, 12, 9], dtype=np.int64)
    for index, texts in states(batches):
        assert index.captioned(ids).tolist() == [
            any(text.text and text.kind == TextKind.CAPTION for text in texts.get(video, []))
            for video in ids.tolist()
        ]


def test_captions_and_their_words_are_counted_by_video(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_index, "_VIDEOS_OF_A_PART", 2)
    index = index_of("heron", "owl barn meadow", "two owls", "a gull")
    index = index.replace(
        [(4, [VideoText(TextKind.METADATA, "place barn")]), (1, captions("owl", "barn owl"))]
    )
    counted = [
        video for part in index.captions() for video in zip(*(each.tolist() for each in part), strict=True)
    ]
    assert sorted(counted) == [(0, 1, 1), (1, 2, 3), (2, 1, 2), (3, 1, 2)]


@given(changes, st.sampled_from(["d", "S", "sit", "row", "走", "x", "", "sit up"]), st.integers(1, 3))
def test_suggestions_are_the_most_frequent_terms(
    batches: list[list[tuple[int, list[VideoText]]]], prefix: str, count: int
) -> None:
    for index, texts in states(batches):
        assert index.suggest(prefix, count) == most_frequent_terms(texts, prefix.lower(), count)


def large_texts(videos: int, seed: int) -> dict[int, list[VideoText]]:
    """Captions with words of very different frequencies; video IDs in no order."""
    random = np.random.default_rng(seed)
    ids = random.permutation(10 * videos)[:videos]
    numbers = random.zipf(1.2, size=(videos, 5)) % 5000
    return {
        int(video): captions(" ".join(f"w{number}" for number in row), f"the clip w{row[0]}")
        for video, row in zip(ids, numbers.tolist(), strict=True)
    }


@pytest.mark.slow
def test_many_segments_agree_with_reading_every_text() -> None:
    random = np.random.default_rng(1)
    texts = large_texts(4000, seed=0)
    units = parse_query("w7 w300 edited")
    index = WordIndex.empty()
    items = list(texts.items())
    for start in range(0, len(items), 600):
        index = index.replace(items[start : start + 600])
    before, expected_before = index, matching_texts(texts, units)
    for video in random.choice(list(texts), 300, replace=False).tolist():
        texts[video] = captions("edited the clip w1 w2", "w3") if video % 3 else []
        index = index.replace([(video, texts[video])])
    assert rows(before.lookup(units)) == expected_before
    for prefix in ["w", "w4", "th", "edited"]:
        assert index.suggest(prefix, 7) == most_frequent_terms(texts, prefix, 7)
    for query in ["w7 w300", "edited", '"w1 w2"', '"the clip" w9', "w4999 w40 w1", "clip w8", '"clip w1"']:
        units = parse_query(query)
        matches = index.lookup(units)
        assert matches.frequencies.tolist() == frequencies(texts, units)
        assert index.containing(units).tolist() == videos_with_all(texts, units)
        expected = matching_texts(texts, units)
        common = [frequency > COMMON_DOCUMENTS for frequency in matches.frequencies]
        assert set(rows(matches)) == {
            row
            for row in expected
            if all(common)
            or any(value and not skipped for value, skipped in zip(row[3], common, strict=True))
        }


def test_common_units_alone_find_every_text_with_the_rarest() -> None:
    texts: Texts = {
        video: captions("a person" + " walks" * (video % 2) + " there" * (video % 3 == 0))
        for video in range(6000)
    }
    index = WordIndex.empty().replace(texts.items())
    assert hits(index, "person") == list(range(6000))
    assert hits(index, "person walks there") == [video for video in range(6000) if video % 3 == 0]
    assert index.lookup(parse_query("person walks")).strengths.sum(axis=0).tolist() == [3000, 3000]
    # A word that no text contains selects nothing, and hides nothing.
    assert hits(index, "walks xyzzy") == list(range(1, 6000, 2))
    assert len(index.containing(parse_query("person walks there"))) == 1000


def test_query_of_many_frequent_words_finds_the_texts_with_its_rarer_words() -> None:
    words = [f"w{number}" for number in range(21)]
    # Each word is in fewer than a twentieth of the texts, and all of them together are in every text.
    index = index_of(*(f"{words[video % 21]} x" for video in range(60_000)))
    matches = index.lookup(parse_query(" ".join(words)))
    counts = np.count_nonzero(matches.strengths, axis=0)
    assert matches.frequencies.sum() == 60_000
    assert set(counts[matches.frequencies == matches.frequencies.min()]) <= {0, matches.frequencies.min()}
    assert SELECTED_DOCUMENTS / 2 < counts.sum() == len(matches.videos) <= SELECTED_DOCUMENTS


@pytest.mark.parametrize(
    ("caption", "query"),
    [
        ("swings with kettlebells", "kettlebell"),
        ("a kettlebell swing", "Kettlebells"),
        ("two women and children", "woman child"),
        ("3/4 sit-up", "3/4 sit-ups"),
        ("t-bar row", "tbar"),
        ("Pullups at the bar", "pull-up"),
        ("Ein Mann hebt eine Hantel", "Hanteln"),
        ("Zwei Hunde und eine Katze mit einem Ball auf der Straße", "strasse katzen"),
        ("les chevaux et une vache dans le pré", "cheval vaches"),
        ("des jeux avec les oiseaux", "jeu oiseau"),
        ("una mujer con las luces del coche", "mujeres luz"),
        ("los perros y una pesa por la calle", "perro pesas"),
        ("Zoë in the CAFÉ", "zoe cafe"),
        ("一只狗在跑", "狗"),
        ("一只狗在跑", "只狗在"),
        ("강아지가 달린다", "강아지"),
        ('signing the word "bird"', '"the word bird"'),
        ("dog", '"dog'),
        ("München und der Marienplatz mit einem Hund", "Muenchen"),
    ],
)
def test_all_words_of_the_query_are_hits(caption: str, query: str) -> None:
    index = index_of(caption, "something else", "another text")
    assert index.containing(parse_query(query)).tolist() == [0]


@pytest.mark.parametrize("query", ["", '"', "?!", "\x00\x1b", "xyzzy", '"dog cat"', "\ud800"])
def test_query_without_a_known_word_finds_nothing(query: str) -> None:
    matches = index_of("cat and dog").lookup(parse_query(query))
    assert matches.strengths.shape == (0, len(parse_query(query)))
    assert len(matches.videos) == 0


def test_empty_index_answers() -> None:
    index = WordIndex.empty()
    assert hits(index, "dog") == []
    assert index.replace([]).documents == index.replace([(1, []), (2, captions(""))]).videos == 0
    assert index.suggest("d", 5) == []
    assert index.correct("dumbell") is None
    assert index.captioned(np.array([1], dtype=np.int64)).tolist() == [False]


def test_long_text_and_long_query_are_searched() -> None:
    text = " ".join(f"w{number}" for number in range(10_000))
    index = index_of(text, "other")
    assert index.lookup(parse_query(text)).lengths.tolist() == [10_000]
    assert hits(index, "w9999") == [0]
    assert hits(index, '"w9998 w9999"') == [0]


def test_last_texts_of_a_repeated_video_count() -> None:
    index = WordIndex.empty().replace([(5, captions("cat")), (5, captions("dog"))])
    assert (hits(index, "cat"), hits(index, "dog"), index.videos) == ([], [5], 1)


def test_foreign_stems_need_foreign_texts() -> None:
    assert hits(index_of("a gym with pesas"), "pesa") == [0]  # English plural
    assert hits(index_of("cheval"), "chevaux") == []


def test_stems_of_a_language_are_used_while_texts_are_in_it() -> None:
    english = {video: captions(f"a dog runs {video}") for video in range(300)}
    german = captions("Zwei Katzen auf der Bank und ein Ball")
    index = WordIndex.empty().replace([*english.items(), (300, german)])
    assert hits(index, "katze") == [300]
    changed = index.replace([(300, captions("Katzen"))])
    assert hits(changed, "katze") == []
    assert hits(changed, "katzen") == [300]


def test_threads_search_and_change_an_index() -> None:
    texts = large_texts(2000, seed=3)
    index = WordIndex.empty().replace(texts.items())
    units = parse_query('w3 "w1 w2" w100')
    expected = matching_texts(texts, units)

    def search(number: int) -> bool:
        changed = index.replace([(-number, captions("w3 added"))])
        return rows(index.lookup(units)) == expected and len(rows(changed.lookup(units))) == len(expected) + 1

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(search, range(1, 40)))


def test_large_segments_are_merged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_segment, "_ENTRIES", 7)
    texts = large_texts(100, seed=4)
    index = WordIndex.empty()
    for video, group in texts.items():  # each change merges
        index = index.replace([(video, group), (-1, captions("w1 clip"))])
    units = parse_query('w3 "w1 w2" w1')
    assert rows(index.lookup(units)) == matching_texts({**texts, -1: captions("w1 clip")}, units)


def test_misspelled_word_is_corrected_to_the_most_frequent_neighbor() -> None:
    index = index_of("dumbbell", "dumbbell press", "cable row", "cables", "fable", "clip 0001235", "größe")
    assert index.correct("dumbell") == "dumbbell"
    assert index.correct("dumbblel") == "dumbbell"
    assert index.correct("dumbbfll") == "dumbbell"
    assert index.correct("grosze") == "grosse"
    assert index.correct("dumbbells") is None  # a variant is in the texts
    assert index.correct("dumbbel") is None  # it has the same stem
    assert index.correct("rwo") is None  # too short
    assert index.correct("0001236") is None  # another number
    assert index.correct("dmbel") is None  # two errors
    assert index.replace([(0, []), (1, [])]).correct("dumbell") is None


def test_words_are_expanded_to_the_terms_that_stand_for_them() -> None:
    index = index_of("two kettlebells", "kettlebell", "a sit-up")
    word, phrase = parse_query('kettlebell "sits up"')
    assert index.expand(word) == {(frozenset({"kettlebell", "kettlebells"}),)}
    assert index.expand(phrase) == {(frozenset({"sit"}), frozenset({"up"}))}
    (compound,) = parse_query("situp")
    assert index.expand(compound) == {(frozenset({"-situp"}),), (frozenset({"sit"}), frozenset({"up"}))}


def test_only_words_of_few_alphabets_are_corrected() -> None:
    """A word with characters from many alphabets would have hundreds of thousands of neighbors."""
    assert is_correctable("dumbell")
    assert not is_correctable("".join(chr(0x17000 + 256 * n + 7) for n in range(12)))
    assert not is_correctable("dumbell" * 10)


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
