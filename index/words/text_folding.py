"""Folding: the form in which words from texts and queries are compared.

A text is folded to letters, digits, emoji, spaces, hyphens and apostrophes. Letters are case-folded, decomposed (NFKC)
and stripped of accents; digits are those of ASCII. Emoji stand between spaces and lose variation selectors and skin
tones. Everything else, including control characters, becomes a space. Invisible format characters, such as soft
hyphens and direction marks, are dropped, because they occur within words.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from index.words.character_classes import EMOJI, LOOKS, UNSPACED

# An emoji, or a character and the marks that belong to it: accents, voiced sound marks of kana, vowels and finals of
# Hangul. More than eight marks mean nothing, and would fill the cache. Zero-width spaces divide the lines of scripts
# without spaces, and some texts lack them.
_CLUSTER = re.compile(
    f"{EMOJI}|[{UNSPACED}]\u200b+(?=[{UNSPACED}])|"
    "[\\s\\S][\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f\u3099\u309a\uff9e\uff9f\u1160-\u11ff]{0,8}"
)
_EMOJI = re.compile(EMOJI)
_LOOKS = re.compile(f"[{LOOKS}]")
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
    if _EMOJI.match(cluster):
        return f" {cluster[0]}{_LOOKS.sub('', cluster[1:])} "
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
