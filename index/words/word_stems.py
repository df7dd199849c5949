"""Stem words, so that the plural finds the singular, and one inflected form the others.

English words always have stems. Stems of another language are used if its stop words are frequent enough in the texts;
elsewhere they would only join unrelated words.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import islice

import Stemmer

ENGLISH = "english"
_GERMAN = "und", "der", "das", "ein", "eine", "einen", "einer", "mit", "auf", "ist", "im", "dem", "wird", "zu"
# Frequent words of a language, folded, that the other languages here do not have.
STOP_WORDS: Mapping[str, tuple[str, ...]] = {
    "german": _GERMAN,
    "french": ("les", "des", "une", "et", "dans", "avec", "du", "le", "qui", "est", "sont"),
    "spanish": ("el", "los", "las", "una", "del", "por", "para", "y", "su", "esta"),
}
ALL_STOP_WORDS = tuple(word for words in STOP_WORDS.values() for word in words)
# A language is present if one in two hundred texts, including file names, contains one of its stop words, and if the
# texts together contain more than one of them.
_MIN_SHARE = 0.005
_MIN_DISTINCT = 2

# Plurals whose Snowball stem differs from the singular's; they get that of the singular.
_IRREGULAR = {
    "men": "man",
    "women": "woman",
    "children": "child",
    "feet": "foot",
    "teeth": "tooth",
    "mice": "mouse",
    "geese": "goose",
    "knives": "knife",
    "leaves": "leaf",
    "wolves": "wolf",
    "calves": "calf",
    "halves": "half",
    "shelves": "shelf",
    "loaves": "loaf",
}
_STEMMERS = threading.local()  # a stemmer must not be shared between threads


def stem_words(language: str, words: Sequence[str]) -> list[str]:
    """Stem folded words in a language (Porter 2001, https://snowballstem.org)."""
    stemmer = getattr(_STEMMERS, language, None)
    if stemmer is None:
        stemmer = Stemmer.Stemmer(language, 0)
        setattr(_STEMMERS, language, stemmer)
    stems: list[str] = stemmer.stemWords([_singular(language, word) for word in words])
    return stems


def _singular(language: str, word: str) -> str:
    if language == ENGLISH:
        return _IRREGULAR.get(word) or _IRREGULAR.get(word.removesuffix("s"), word)  # also "womens"
    if language == "french" and word.endswith(("eux", "oux")) and len(word) > 3:
        return word[:-1]
    if language == "spanish" and len(word) > 4:
        if word.endswith("ces"):
            return word[:-3] + "z"
        if word.endswith(("res", "nes", "les", "des")) and len(word) > 5:
            return word[:-2]
    return word


def present_languages(frequencies: Sequence[int], documents: int) -> tuple[str, ...]:
    """Decide which languages' stems are used.

    Args:
        frequencies: How many texts contain each word of ``ALL_STOP_WORDS``.
        documents: Number of all texts.
    """
    present = [ENGLISH]
    remaining = iter(frequencies)
    for language, words in STOP_WORDS.items():
        counts = list(islice(remaining, len(words)))
        if sum(map(bool, counts)) >= _MIN_DISTINCT and sum(counts) >= _MIN_SHARE * documents:
            present.append(language)
    return tuple(present)
