"""Folding: the form in which words from texts and queries are compared.

A text is folded to letters, digits, spaces and hyphens. Letters are case-folded, decomposed (NFKC) and stripped of
accents. Everything else, including control characters, becomes a space. Invisible format characters, such as soft
hyphens and direction marks, are dropped, because they occur within words.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# A character and the marks that belong to it: accents, voiced sound marks of kana, vowels and finals of Hangul. More
# than eight marks mean nothing, and would fill the cache.
_CLUSTER = re.compile(
    "[\\s\\S][\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f\u3099\u309a\uff9e\uff9f\u1160-\u11ff]{0,8}"
)
# Accents on Latin, Greek and Cyrillic letters, Hebrew points, vowel marks and lengthening of Arabic letters.
_ACCENTS = re.compile(
    "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f\u0591-\u05bd\u05bf-\u05c7\u0640\u064b-\u065f\u0670]"
)
# Letters without a decomposition that people nevertheless type as other letters.
_LETTERS = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ı": "i"})
_HYPHENS = frozenset("-\u2010")
_ZERO_WIDTH_SPACE = "\u200b"
_ASCII = {code: chr(code).lower() if chr(code).isalnum() or chr(code) == "-" else " " for code in range(128)}


@lru_cache(maxsize=1 << 16)
def _fold_cluster(cluster: str) -> str:
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", cluster).casefold())
    # Composed again, because words in kana and Hangul consist of composed characters.
    plain = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed).translate(_LETTERS))
    return "".join(map(_fold_character, plain))


def _fold_character(character: str) -> str:
    if character.isalnum():
        return character
    if character in _HYPHENS:
        return "-"
    category = unicodedata.category(character)
    if category == "Cf" and character != _ZERO_WIDTH_SPACE:
        return ""
    # Vowel signs in Indic and Thai scripts are marks that belong to words.
    return character if category.startswith("M") else " "


def fold_text(text: str) -> str:
    """Fold a text to letters, digits, spaces and hyphens; its length may change."""
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
        ends += [cluster.end()] * len(folded)
    return "".join(parts), starts, ends
