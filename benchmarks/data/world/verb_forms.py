"""Verb phrases in the grammatical forms that sentence patterns use."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

__all__ = ["VerbPhrase", "verb_phrase"]

# Verbs of one syllable with a short vowel double their last consonant ("spinning"); so do the verbs of _DOUBLING.
_SHORT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")
_DOUBLING = frozenset({"zigzag", "level", "cancel"})


class VerbPhrase(NamedTuple):
    """Base form, third person and present participle, such as ``drift left``, ``drifts left`` and ``drifting left``."""

    base: str
    third: str
    ing: str


@lru_cache(maxsize=4096)
def verb_phrase(text: str) -> VerbPhrase:
    """Forms of a phrase in the notation ``"drift | to the left"``: the verb, then the words after it."""
    verb, _, tail = (piece.strip() for piece in text.partition("|"))
    tail = f" {tail}" if tail else ""
    return VerbPhrase(verb + tail, _third_person(verb) + tail, _present_participle(verb) + tail)


def _third_person(verb: str) -> str:
    if verb == "have":
        return "has"
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def _present_participle(verb: str) -> str:
    if verb in _DOUBLING or _SHORT.fullmatch(verb):
        return verb + verb[-1] + "ing"
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")):
        return verb[:-1] + "ing"
    return verb + "ing"
