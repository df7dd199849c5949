"""Stems of words, their neighbors at one typing error, and a key for the words of a text.

With stems, the plural finds the singular, and one inflected form the others. English words always have stems. Stems of
another language are used if its stop words are frequent enough in the texts; elsewhere they would only join unrelated
words.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice

import Stemmer

from index.words.text_analysis import COMPOUND, SEGMENTATION, fold_text, split_words

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
_IRREGULAR: dict[str, str] = dict(
    re.findall(
        r"(\w+)/(\w+)",
        "men/man women/woman children/child feet/foot teeth/tooth mice/mouse geese/goose knives/knife leaves/leaf "
        "wolves/wolf calves/calf halves/half shelves/shelf loaves/loaf",
    )
)
# Changes with the stem of any word; part of what is stored about words.
STEMMING = f"stems/1 snowball/{Stemmer.version()}"
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
    """
    present = [ENGLISH]
    remaining = iter(frequencies)
    for language, words in STOP_WORDS.items():
        counts = list(islice(remaining, len(words)))
        if sum(map(bool, counts)) >= _MIN_DISTINCT and sum(counts) >= _MIN_SHARE * documents:
            present.append(language)
    return tuple(present)


MIN_LETTERS = 4  # shorter words have too many neighbors
MAX_LETTERS = 24  # no word that people misspell is longer
_MAX_ALPHABETS = 2  # Unicode blocks whose letters are tried


def is_correctable(word: str) -> bool:
    """Check whether a word is long enough and has only letters; a number with another digit is another number."""
    blocks = {ord(letter) >> 8 for letter in word}
    return MIN_LETTERS <= len(word) <= MAX_LETTERS and len(blocks) <= _MAX_ALPHABETS and word.isalpha()


def spelling_neighbors(word: str) -> list[str]:
    """List the distinct folded words at Damerau-Levenshtein distance 1 (Damerau 1964), in its own alphabets."""
    letters = sorted(set(word).union(*(_letters(ord(letter) >> 8) for letter in word)))
    splits = [(word[:end], word[end:]) for end in range(len(word) + 1)]
    neighbors = {left + right[1:] for left, right in splits if right}
    neighbors |= {left + right[1] + right[0] + right[2:] for left, right in splits if len(right) > 1}
    neighbors |= {left + letter + right[1:] for left, right in splits if right for letter in letters}
    neighbors |= {left + letter + right for left, right in splits for letter in letters}
    return sorted(neighbors - {word})


@lru_cache(maxsize=64)
def _letters(block: int) -> frozenset[str]:
    """List the folded letters among the 256 characters of a Unicode block, which holds an alphabet."""
    characters = map(chr, range(block << 8, (block + 1) << 8))
    return frozenset(letter for letter in characters if letter.isalpha() and fold_text(letter) == letter)


# English words that do not change what a text asks for.
_FUNCTION_WORDS = frozenset(
    {"a", "an", "the", "of", "in", "on", "at", "to", "is", "are", "with", "and", "by", "from"}
)


def words_key(text: str) -> str | None:
    """Compute a digest of a text's words; None without words.

    It is the same for texts with the same words, regardless of their order, case, number and English inflection, and of
    words such as articles. Keys of texts that another version of the software divides otherwise differ.
    """
    terms = {term.removeprefix(COMPOUND) for term, *_ in split_words(text)}
    content = sorted(terms - _FUNCTION_WORDS or terms)
    if not content:
        return None
    stems = sorted({stem_words(ENGLISH, [term])[0] if term.isascii() else term for term in content})
    return hashlib.sha256(" ".join([SEGMENTATION, *stems]).encode()).hexdigest()
