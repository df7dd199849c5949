"""Words of texts, and units of queries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.words.text_analysis import MAX_PHRASE, MAX_TERM, MAX_UNITS, analyze_text, parse_query, split_words


def terms(text: str) -> list[str]:
    return [term for term, *_ in split_words(text)]


def units(text: str) -> list[str]:
    return [" ".join(unit.terms) for unit in parse_query(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dog, DOG; dog!", ["dog", "dog", "dog"]),
        ("3/4 sit-up", ["3", "4", "sit", "up", "-situp"]),
        ("T-Bar row", ["t", "bar", "-tbar", "row"]),
        ("chest-to-bar", ["chest", "to", "bar", "-chesttobar"]),
        ("a -- -b- c-", ["a", "b", "c"]),
        ("dog's l’homme snake_case", ["-dog", "-dogs", "l", "homme", "-lhomme", "snake", "case"]),
        ("don't you're McDonald's' ", ["-dont", "-you", "-youre", "-mcdonald", "-mcdonalds"]),
        ("rock 'n' roll 5'10", ["rock", "n", "roll", "5", "10", "-510"]),
        ("บ้าน", ["บ้า", "บ้าน"]),
        ("กินข้าว", ["กิ", "กิน", "นข้า", "ข้า", "ข้าว"]),
        ("แมวนอน\u200bบน", ["แม", "แมว", "วน", "นอ", "อน", "นบ", "บน"]),
        ("ကန် ក្មេង ๕๑๑", ["ကန်", "န်", "ក្មេ", "ក្មេង", "511"]),
        ("👍🏽👍 ❤️ 🏄🏿‍♀️", ["👍", "👍", "❤", "🏄\u200d♀", "♀", "🏄"]),
        ("🇩🇪🇫🇷 7️⃣ \ufe0f\u200d", ["🇩🇪", "🇫🇷", "7\u20e3", "7"]),
        ("Straße Äpfel Œuvre Łódź", ["strasse", "apfel", "oeuvre", "lodz"]),
        ("cafe\u0301 café CAFÉ", ["cafe", "cafe", "cafe"]),
        ("½ ﬃ ② Ｗｉｄｅ", ["1", "2", "ffi", "2", "wide"]),
        ("so\u00adft a\u200eb", ["soft", "ab"]),
        ("a\x00b\x1bc\nd\u200be", ["a", "b", "c", "d", "e"]),
        ("狗", ["狗"]),
        ("犬が走", ["犬", "犬が", "が", "が走", "走"]),
        ("ｶﾞ カ\u3099 ガ", ["ガ", "ガ", "ガ"]),
        ("vim狗", ["vim", "狗"]),
        ("हिन्दी", ["हिन्दी"]),
        ("\ud800 x", ["x"]),
        ("!?… \t", []),
        ("", []),
    ],
)
def test_text_is_split_into_folded_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@given(st.text(max_size=60))
def test_spans_of_words_contain_them(text: str) -> None:
    for term, start, end in split_words(text):
        assert 0 <= start < end <= len(text)
        assert term in terms(text[start:end])


LONG = "x" * (MAX_TERM - 1)


@given(st.lists(st.sampled_from(["a", "B", "1", "-", "'", "s", " ", "/", LONG])).map("".join))
def test_ascii_text_is_split_like_any_other(text: str) -> None:
    assert [*split_words(text), ("e", len(text) + 1, len(text) + 2)] == split_words(f"{text} é")


def test_some_terms_of_a_text_are_listed() -> None:
    assert split_words("Sit-up, sit, situps", {"sit", "-situp"}) == [
        ("sit", 0, 3),
        ("-situp", 0, 6),
        ("sit", 8, 11),
    ]


@given(st.text(max_size=60))
def test_index_stores_the_terms_of_the_text(text: str) -> None:
    stored = analyze_text(text)
    assert stored.terms == terms(text)
    assert len(stored.positions) == len(stored.terms)
    assert stored.length <= len(stored.terms)


@given(st.text(st.sampled_from("aÉ犬がก\u0e34-\u0301\u00ad '\"/1ß🏄🏿\u200d\u200b"), max_size=30))
def test_query_finds_its_own_text(text: str) -> None:
    assert {term for unit in parse_query(text) for term in unit.terms} <= {
        term.lstrip("-") for term in terms(text)
    }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("dog Dog dog", ["dog"]),
        ("3/4 sit-up", ["3", "4", "sit", "up"]),
        ('"cable row" seated', ["cable row", "seated"]),
        ("“cable row” „a b“ «c d»", ["cable row", "a b", "c d"]),
        ('row "cable row" row', ["row", "cable row"]),
        ('"bird"', ["bird"]),
        ('the word "bird', ["the", "word", "bird"]),
        ('"a b" c "d', ["a b", "c", "d"]),
        ('"" a', ["a"]),
        ('"', []),
        ("犬が走る", ["犬が", "が走", "走る"]),
        ("犬", ["犬"]),
    ],
)
def test_query_is_parsed_into_words_and_phrases(query: str, expected: list[str]) -> None:
    assert units(query) == expected
    assert all(unit.is_phrase == (len(unit.terms) > 1) for unit in parse_query(query))


def test_units_have_spans_in_the_query() -> None:
    query = 'Ein "große Straße" – Äpfel'
    assert [query[unit.start : unit.end] for unit in parse_query(query)] == ["Ein", "große Straße", "Äpfel"]


def test_long_input_is_limited() -> None:
    assert len(parse_query(" ".join(f"w{number}" for number in range(10_000)))) == MAX_UNITS
    assert len(parse_query('"' + "a b " * 10_000 + '"')[0].terms) == MAX_PHRASE
    assert terms("a" * 100_000) == ["a" * MAX_TERM]
    assert len(analyze_text("a " * 100_000).terms) < 100_000
