"""Split texts into words, and queries into units.

A text is folded first, which is the form in which words are compared: to letters, digits, emoji, spaces, hyphens and
apostrophes. Letters are case-folded, decomposed (NFKD), stripped of accents and composed again (NFC); digits are those
of ASCII. Emoji stand between spaces and lose variation selectors and skin tones. Everything else, including control
characters, becomes a space. Invisible format characters, such as soft hyphens and direction marks, are dropped, because
they occur within words.

A word is a run of folded letters and digits, or an emoji. Hyphens, slashes and apostrophes separate
words; the parts of a word with hyphens or apostrophes also form one word together, a compound, whose term begins with a
hyphen ("sit-up": sit, up, -situp). A contraction is a single word ("dog's": -dog, -dogs; "don't": -dont). A query finds
each of its words also as the other kind of term, and adjacent words as one (``QueryUnit.joined``).

Chinese, Japanese, Thai, Lao, Khmer and Burmese are written without spaces, and Korean attaches particles to words:
their runs are divided into overlapping pairs of syllables, the same way in every installation.
A single syllable in a run is a word, too, so that it can be found alone, except for a bare consonant.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Container, Iterator
from functools import lru_cache
from itertools import chain, groupby, islice
from typing import NamedTuple

# Han, kana and Hangul.
_CJK = "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\u1100-\u11ff"
_CJK += "\U00020000-\U0003fffd"
# Thai, Lao, Burmese and Khmer: vowels that precede their consonant, marks and vowels that follow it, and signs that
# stack the next consonant below it.
_LEADING = "\u0e40-\u0e44\u0ec0-\u0ec4"
_FOLLOWING = (
    "\u0e30-\u0e3a\u0e45\u0e47-\u0e4e\u0eb0-\u0ebd\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
)
_FOLLOWING += "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd"
_STACKING = "\u1039\u17d2"
_UNSPACED = _CJK + "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
# What is divided no further in such scripts: a syllable without its final consonants, or a character of CJK.
_SYLLABLE = re.compile(f"[{_LEADING}]?[\\s\\S](?:[{_STACKING}][\\s\\S]|[{_FOLLOWING}]){{0,8}}")

# Pictures of the Unicode property Emoji, and the symbols beside them, such as notes and stars.
_PICTURE = (
    "\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf\u23e9-\u23fa\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe"
)
_PICTURE += "\u2600-\u275a\u2761-\u2767\u2794-\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55"
_PICTURE += (
    "\U0001f004\U0001f0cf\U0001f170-\U0001f19a\U0001f300-\U0001f64f\U0001f680-\U0001f6ff\U0001f7e0-\U0001faff"
)
_TAGS = "\U000e0020-\U000e007f"  # of the flags of regions
# Variation selectors and skin tones, which do not change the meaning of an emoji.
_MODIFIERS = "\ufe0e\ufe0f\U0001f3fb-\U0001f3ff"
_EMOJI_JOINERS = f"\u200d\u20e3{_TAGS}"
_MODIFIED = f"[{_PICTURE}][{_MODIFIERS}{_TAGS}]{{0,32}}"
_FLAG, _KEYCAP = "[\U0001f1e6-\U0001f1ff]{2}", "[0-9#*]\ufe0f?\u20e3"
_EMOJI = f"(?:{_MODIFIED}(?:\u200d{_MODIFIED}){{0,8}}|{_FLAG}|{_KEYCAP})"

# An emoji, or a character and the marks that belong to it: accents, voiced sound marks of kana, vowels and finals of
# Hangul. More than eight marks mean nothing, and would fill the cache. Zero-width spaces divide the lines of scripts
# without spaces, and some texts lack them.
_CLUSTER = re.compile(
    f"{_EMOJI}|[{_UNSPACED}]\u200b+(?=[{_UNSPACED}])|"
    "[\\s\\S][\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f\u3099\u309a\uff9e\uff9f\u1160-\u11ff]{0,8}"
)
_MODIFIER = re.compile(f"[{_MODIFIERS}]")
# Accents on Latin, Greek and Cyrillic letters, Hebrew points, vowel marks and lengthening of Arabic letters, variation
# selectors.
_ACCENTS = re.compile(
    "[\ufe00-\ufe0f\U000e0100-\U000e01ef\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f\u0591-\u05bd\u05bf-\u05c7\u0640\u064b-\u065f\u0670]"
)
# Letters without a decomposition that people nevertheless type as other letters.
_LETTERS = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ı": "i"})
_HYPHENS = frozenset("-\u2010")
_APOSTROPHES = frozenset("'`\u00b4\u02bb\u02bc\u2018\u2019\uff07")


@lru_cache(maxsize=1 << 16)
def _fold_cluster(cluster: str) -> str:
    if re.match(_EMOJI, cluster):
        return f" {cluster[0]}{_MODIFIER.sub('', cluster[1:])} "
    cluster = cluster.rstrip("\u200b") or " "
    if cluster in _APOSTROPHES:
        return "'"
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", cluster).casefold())
    # Composed again, because words in kana and Hangul consist of composed characters.
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed).translate(_LETTERS))
    return "".join(map(_fold_character, plain))


def _fold_character(character: str) -> str:
    if character.isalnum():
        return str(unicodedata.decimal(character)) if character.isdecimal() else character
    if character in _HYPHENS:
        return "-"
    category = unicodedata.category(character)
    if category == "Cf":
        return ""
    # Vowel signs in Indic and Thai scripts are marks that belong to words.
    return character if category.startswith("M") else " "


_ASCII = {code: _fold_cluster(chr(code)) for code in range(128)}


def fold_text(text: str) -> str:
    """Fold a text; its length may change unless it is ASCII."""
    if text.isascii():
        return text.translate(_ASCII)
    return "".join(map(_fold_cluster, _CLUSTER.findall(text)))


def fold_with_spans(text: str) -> tuple[str, list[int], list[int]]:
    """Fold a text, and locate the source of each folded character.

    Returns:
        The folded text, and for each of its characters where its source starts and ends, in code points.
    """
    if text.isascii():
        return text.translate(_ASCII), list(range(len(text))), list(range(1, len(text) + 1))
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for cluster in _CLUSTER.finditer(text):
        folded = _fold_cluster(cluster[0])
        parts.append(folded)
        starts += [cluster.start()] * len(folded)
        ends += [cluster.start() + len(cluster[0].rstrip("\u200b"))] * len(folded)
    return "".join(parts), starts, ends


MAX_TERM = 32  # characters in a term; the rest of a longer word is ignored, in texts and in queries
MAX_UNITS = 64  # units in a query; the others are ignored
MAX_PHRASE = 64  # words in a phrase; the others are ignored
MAX_WORDS = 1 << 16  # word positions that the index stores per text; later words are ignored

SEGMENTATION = "syllable-pairs/1"  # version of the tokenizer, stored with the index
COMPOUND = "-"  # begins the terms of words that are written with a hyphen or an apostrophe

_CJK_SYLLABLE = re.compile(f"[{_CJK}]")
_WORD = f"[^{_UNSPACED} '-]"
_RUN = re.compile(f"([{_UNSPACED}]+)|({_WORD}+)('(?:[stdm]|re|ve|ll)(?!{_WORD}))?|[ '-]+")
_NOT_ONE_TERM = re.compile(f"[{_UNSPACED}{_EMOJI_JOINERS}'-]|[^ ]{{{MAX_TERM + 1}}}")
_JOINER = re.compile(f"[{_EMOJI_JOINERS}]+")
QUOTE = re.compile('["\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c-\u300f\uff02]')

_MAX_PARTS = 3
# Letters and digits of scripts with spaces. English words of closed classes are no parts: "the rapist" is not
# "therapist". Words such as "up" are parts.
WORD_PART = re.compile(
    "(?!(?:a|an|the|of|in|on|at|to|is|are|with|and|by|from|for|as|or|but|not|no|nor|so|if|than|then|that|this|these|it|"
    "its|i|me|my|he|him|his|she|her|we|us|our|you|your|they|them|their|who|what|be|am|was|were|been|has|have|had|do|does|"
    f"did|can|will|would|may)$)[^\\W_{_UNSPACED}]+$"
)


Word = tuple[
    str, int, int
]  # a folded term, and where it starts and ends in the original text, in code points


class QueryUnit(NamedTuple):
    """One word of a query, or a quoted phrase: its terms, and where it is in the query, in code points.

    Attributes:
        joined: Single terms that also match: compounds that the query has, such as -situp for each part of "sit-up",
            and words that the unit and its neighbors, or those of a phrase, may form if they are written as one.
    """

    terms: tuple[str, ...]
    is_phrase: bool
    start: int
    end: int
    joined: tuple[str, ...] = ()


class TextWords(NamedTuple):
    """A text's terms with their positions, which phrases compare, and its number of words without compounds."""

    terms: list[str]
    positions: list[int] | range
    length: int


# A term, where it starts and ends in the folded text, its position, and whether it is extra: a compound, or a syllable
# in a longer run, which are terms besides the text's words.
_Token = tuple[str, int, int, int, bool]


def split_words(text: str, among: Container[str] | None = None) -> list[Word]:
    """Split a text into its terms, in text order; compounds and pairs of characters overlap others.

    Args:
        among: The only terms to list; None lists all.
    """
    words: list[Word] = []
    if not text.isascii():
        words += chain(*words_by_position(text).values())
    else:  # several times as fast
        start = 0
        for run in text.translate(_ASCII).split(" "):
            if "-" in run or "'" in run:
                words += [(term, start + first, start + last) for term, first, last, _, _ in _tokens(run)]
            elif run:
                words.append((run[:MAX_TERM], start, start + len(run)))
            start += len(run) + 1
    return words if among is None else [word for word in words if word[0] in among]


def words_by_position(text: str) -> dict[int, list[Word]]:
    """Split a text like :func:`split_words`, and group the terms by the position that the index stores."""
    folded, starts, ends = fold_with_spans(text)
    placed: dict[int, list[Word]] = {}
    for term, start, end, position, _ in _tokens(folded):
        placed.setdefault(position, []).append((term, starts[start], ends[end - 1]))
    return placed


def parse_query(text: str) -> list[QueryUnit]:
    """Parse a query into its distinct units, in order, at most ``MAX_UNITS``.

    Double quotes of any style enclose a phrase; a quote without a second one means nothing. Each part of a hyphenated
    word is a unit.
    """
    folded, starts, ends = fold_with_spans(text)
    words: list[Word] = []
    compounds: dict[int, list[str]] = {}  # by the start of a part
    for term, first, last, _, is_extra in _tokens(folded):
        start = starts[first]
        if not is_extra:
            words.append((term.removeprefix(COMPOUND), start, ends[last - 1]))
        if term.startswith(COMPOUND):
            for _, part, _ in words:
                if part >= start:
                    compounds.setdefault(part, []).append(term)

    quotes = [quote.start() for quote in QUOTE.finditer(text)]
    units: list[QueryUnit] = []
    for before, group in groupby(words, lambda word: bisect(quotes, word[1])):
        is_quoted = before % 2 == 1 and before < len(quotes)
        for phrase in [list(group)[:MAX_PHRASE]] if is_quoted else [[word] for word in group]:
            terms = tuple(term for term, _, _ in phrase)
            units.append(QueryUnit(terms, len(phrase) > 1, phrase[0][1], phrase[-1][2]))

    # The words that each unit may form: alone, or with its neighbors.
    joined: list[list[str]] = [[] for _ in units]
    for first in range(len(units)):
        for end in range(first + 1, min(first + _MAX_PARTS, len(units)) + 1):
            terms = sum((unit.terms for unit in units[first:end]), ())
            word = "".join(terms)
            if not (1 < len(terms) <= _MAX_PARTS and all(map(WORD_PART.match, terms)) and not word.isdigit()):
                continue
            if end - first in (1, len(terms)):  # a phrase has no neighbors
                for of_unit in joined[first:end]:
                    of_unit.append(word)

    distinct: dict[tuple[tuple[str, ...], bool], QueryUnit] = {}
    for unit, of_unit in zip(units, joined, strict=True):
        whole = () if unit.is_phrase else compounds.get(unit.start, ())
        distinct.setdefault((unit.terms, unit.is_phrase), unit._replace(joined=(*whole, *of_unit)))
        if len(distinct) == MAX_UNITS:
            break
    return list(distinct.values())


def analyze_text(text: str) -> TextWords:
    """Split a text into the terms that the index stores: those of ``split_words``, with positions."""
    folded = fold_text(text)
    if not _NOT_ONE_TERM.search(folded):
        terms = folded.split()[:MAX_WORDS]
        return TextWords(terms, range(len(terms)), len(terms))
    tokens = list(islice(_tokens(folded), MAX_WORDS))
    return TextWords(
        [term for term, *_ in tokens],
        [position for *_, position, _ in tokens],
        sum(not is_extra for *_, is_extra in tokens),
    )


def _tokens(folded: str) -> Iterator[_Token]:
    position = 0
    parts: list[_Token] = []  # of a word with hyphens or apostrophes
    separator = " "
    for run in _RUN.finditer(folded):
        start, end = run.span()
        syllables, word, ending = run.groups()
        if not (syllables or word):
            separator = run[0]
            continue
        if syllables or separator not in ("-", "'"):
            yield from _compound(parts)
            parts = []
        separator = ""
        if syllables:
            for token in _syllable_tokens(syllables, start, position):
                yield token
                position = token[3] + 1
            continue
        term = (word + ending[1:] if ending else word)[:MAX_TERM]
        if ending:
            # Before 't, there is only a part of a word.
            base = term if ending == "'t" else word[:MAX_TERM]
            yield COMPOUND + base, start, end, position, False
            if base != term:
                yield COMPOUND + term, start, end, position, True
        else:
            yield term, start, end, position, False
            for part in () if word.isascii() else sorted({*_JOINER.split(word)} - {"", word}):
                yield part, start, end, position, True
        parts.append((term, start, end, position, False))
        position += 1
    yield from _compound(parts)


def _compound(parts: list[_Token]) -> Iterator[_Token]:
    if len(parts) > 1:
        # It has the position of the last part, so that the next word follows it.
        (_, start, *_), (*_, end, position, _) = parts[0], parts[-1]
        yield COMPOUND + "".join(term for term, *_ in parts)[:MAX_TERM], start, end, position, True


def _syllable_tokens(run: str, offset: int, position: int) -> Iterator[_Token]:
    starts = [syllable.start() for syllable in _SYLLABLE.finditer(run)]
    if len(starts) == 1:
        yield run, offset, offset + len(run), position, False
        return
    for index, (start, end, last) in enumerate(
        zip(starts, [*starts[1:], len(run)], [*starts[2:], len(run), 0], strict=True)
    ):
        if end - start > 1 or _CJK_SYLLABLE.match(run[start]):
            # It has the position of the pair that ends with it, so that the next word follows the last one.
            yield run[start:end], offset + start, offset + end, position + max(index - 1, 0), True
        if last:
            yield run[start:last][:MAX_TERM], offset + start, offset + last, position + index, False
