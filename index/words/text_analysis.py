"""Split texts into words, and queries into units.

A word is a run of folded letters and digits (``text_folding``). Hyphens, slashes and apostrophes separate words; the
parts of a hyphenated word also form one word together ("sit-up": sit, up, situp). Chinese and Japanese are written
without spaces, and Korean attaches particles to words: their runs are divided into overlapping pairs of characters.
Each single character in a run is a word, too, so that it can be found alone.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from itertools import islice
from typing import NamedTuple

from index.words.text_folding import fold_text, fold_with_spans

MAX_TERM = 32  # characters in a term; the rest of a longer word is ignored, in texts and in queries
MAX_UNITS = 64  # units in a query; the others are ignored
MAX_PHRASE = 64  # words in a phrase; the others are ignored
MAX_WORDS = 1 << 16  # word positions that the index stores per text; later words are ignored

_CJK = "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\u1100-\u11ff"
_CJK += "\U00020000-\U0003fffd"
_CJK_CHARACTER = re.compile(f"[{_CJK}]")
_RUN = re.compile(f"[{_CJK}]+|[^{_CJK} -]+|[ -]+")
_ASCII_WORD = re.compile("[a-z0-9]+(?:-[a-z0-9]+)*")
_LONG = re.compile(f"[^ ]{{{MAX_TERM + 1}}}")
QUOTE = re.compile('["\u201c\u201d\u201e\u201f\u00ab\u00bb]')


class Word(NamedTuple):
    """A folded term, and where it is in the original text, in code points."""

    term: str
    start: int
    end: int


class QueryUnit(NamedTuple):
    """One word of a query, or a quoted phrase: its terms, and where it is in the query, in code points.

    A part of a hyphenated word also matches the word written without hyphens, which is ``joined``.
    """

    terms: tuple[str, ...]
    is_phrase: bool
    start: int
    end: int
    joined: str | None = None


class TextWords(NamedTuple):
    """A text's terms with their positions, which phrases compare, and its number of words without compounds."""

    terms: list[str]
    positions: list[int] | range
    length: int


class _Token(NamedTuple):
    term: str
    start: int  # in the folded text, as ``end``
    end: int
    position: int
    is_extra: bool  # a compound, or a character in a longer run: a term besides the text's words


def split_words(text: str, among: Container[str] | None = None) -> list[Word]:
    """Split a text into its terms, in text order; compounds and pairs of characters overlap others.

    Args:
        among: The only terms to list; None lists all.
    """
    words = _ascii_words(fold_text(text)) if text.isascii() else _words(text)
    return [Word(*word) for word in words if among is None or word[0] in among]


def _words(text: str) -> Iterator[tuple[str, int, int]]:
    folded, starts, ends = fold_with_spans(text)
    return ((token.term, starts[token.start], ends[token.end - 1]) for token in _tokens(folded))


def _ascii_words(folded: str) -> Iterator[tuple[str, int, int]]:
    """Split like :func:`_words`, several times as fast."""
    start = 0
    for run in folded.split(" "):
        if "-" in run:
            yield from _hyphenated_words(run, start)
        elif run:
            yield run[:MAX_TERM], start, start + len(run)
        start += len(run) + 1


def _hyphenated_words(run: str, offset: int) -> Iterator[tuple[str, int, int]]:
    for word in _ASCII_WORD.finditer(run):
        parts = word[0].split("-")
        start = offset + word.start()
        for part in parts:
            yield part[:MAX_TERM], start, start + len(part)
            start += len(part) + 1
        if len(parts) > 1:
            joined = "".join(part[:MAX_TERM] for part in parts)
            yield joined[:MAX_TERM], offset + word.start(), offset + word.end()


def parse_query(text: str) -> list[QueryUnit]:
    """Parse a query into its distinct units, in order, at most ``MAX_UNITS``.

    Double quotes of any style enclose a phrase; a quote without a second one means nothing. Each part of a hyphenated
    word is a unit.
    """
    folded, starts, ends = fold_with_spans(text)
    words: list[Word] = []
    joined: dict[int, str] = {}  # by the start of a part
    for token in _tokens(folded):
        start, end = starts[token.start], ends[token.end - 1]
        if not token.is_extra:
            words.append(Word(token.term, start, end))
        elif not _CJK_CHARACTER.match(token.term):
            joined |= {word.start: token.term for word in words if word.start >= start}
    distinct: dict[tuple[tuple[str, ...], bool], QueryUnit] = {}
    for unit in _units(iter(words), _quoted_spans(text)):
        if not unit.is_phrase:
            unit = unit._replace(joined=joined.get(unit.start))
        distinct.setdefault((unit.terms, unit.is_phrase), unit)
        if len(distinct) == MAX_UNITS:
            break
    return list(distinct.values())


def analyze_text(text: str) -> TextWords:
    """Split a text into the terms that the index stores: those of ``split_words``, with positions."""
    folded = fold_text(text)
    if (
        "-" not in folded
        and not _LONG.search(folded)
        and (text.isascii() or not _CJK_CHARACTER.search(folded))
    ):
        terms = folded.split()[:MAX_WORDS]
        return TextWords(terms, range(len(terms)), len(terms))
    tokens = list(islice(_tokens(folded), MAX_WORDS))
    return TextWords(
        [token.term for token in tokens],
        [token.position for token in tokens],
        sum(not token.is_extra for token in tokens),
    )


def _tokens(folded: str) -> Iterator[_Token]:
    position = 0
    parts: list[_Token] = []  # of a hyphenated word
    separator = " "
    for run in _RUN.finditer(folded):
        start, end = run.span()
        if folded[start] in " -":
            separator = run[0]
            continue
        if separator != "-":
            yield from _compound(parts)
            parts = []
        separator = ""
        if _CJK_CHARACTER.match(run[0]):
            yield from _compound(parts)
            parts = []
            for token in _character_tokens(run[0], start, position):
                yield token
                position = token.position + 1
            continue
        token = _Token(run[0][:MAX_TERM], start, end, position, False)
        parts.append(token)
        yield token
        position += 1
    yield from _compound(parts)


def _compound(parts: list[_Token]) -> Iterator[_Token]:
    if len(parts) > 1:
        # It has the position of the last part, so that the next word follows it.
        term = "".join(part.term for part in parts)[:MAX_TERM]
        yield _Token(term, parts[0].start, parts[-1].end, parts[-1].position, True)


def _character_tokens(run: str, start: int, position: int) -> Iterator[_Token]:
    if len(run) == 1:
        yield _Token(run, start, start + 1, position, False)
        return
    for index, character in enumerate(run):
        # A character has the position of the pair that ends with it, so that the next word follows the last one.
        yield _Token(character, start + index, start + index + 1, position + max(index - 1, 0), True)
        if index + 1 < len(run):
            yield _Token(run[index : index + 2], start + index, start + index + 2, position + index, False)


def _quoted_spans(text: str) -> list[tuple[int, int]]:
    quotes = [quote.start() for quote in QUOTE.finditer(text)]
    return list(zip(quotes[::2], quotes[1::2], strict=False))


def _units(words: Iterator[Word], quoted: list[tuple[int, int]]) -> Iterator[QueryUnit]:
    phrase: list[Word] = []
    spans = iter(quoted)
    opening, closing = next(spans, (-1, -1))
    for word in words:
        while opening >= 0 and word.start > closing:
            yield from _phrase_units(phrase)
            phrase = []
            opening, closing = next(spans, (-1, -1))
        if opening >= 0 and word.start > opening:
            phrase.append(word)
        else:
            yield QueryUnit((word.term,), False, word.start, word.end)
    yield from _phrase_units(phrase)


def _phrase_units(words: list[Word]) -> Iterator[QueryUnit]:
    kept = words[:MAX_PHRASE]
    if kept:
        yield QueryUnit(tuple(word.term for word in kept), len(kept) > 1, kept[0].start, kept[-1].end)
