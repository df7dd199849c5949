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

# Han, kana and Hangul.
CJK = "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\u1100-\u11ff"
CJK += "\U00020000-\U0003fffd"
# Thai, Lao, Burmese and Khmer: vowels that precede their consonant, marks and vowels that follow it, and signs that
# stack the next consonant below it.
_LEADING = "\u0e40-\u0e44\u0ec0-\u0ec4"
_FOLLOWING = (
    "\u0e30-\u0e3a\u0e45\u0e47-\u0e4e\u0eb0-\u0ebd\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
)
_FOLLOWING += "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd"
_STACKING = "\u1039\u17d2"
UNSPACED = CJK + "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
# What is divided no further in such scripts: a syllable without its final consonants, or a character of CJK.
SYLLABLE = f"[{_LEADING}]?[\\s\\S](?:[{_STACKING}][\\s\\S]|[{_FOLLOWING}]){{0,8}}"

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
LOOKS = "\ufe0e\ufe0f\U0001f3fb-\U0001f3ff"
EMOJI_JOINERS = f"\u200d\u20e3{_TAGS}"
_WITH_LOOKS = f"[{_PICTURE}][{LOOKS}{_TAGS}]{{0,32}}"
_FLAG, _KEYCAP = "[\U0001f1e6-\U0001f1ff]{2}", "[0-9#*]\ufe0f?\u20e3"
EMOJI = f"(?:{_WITH_LOOKS}(?:\u200d{_WITH_LOOKS}){{0,8}}|{_FLAG}|{_KEYCAP})"

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
