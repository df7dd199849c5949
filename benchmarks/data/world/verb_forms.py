"""Verb phrases in the forms that the caption frames need."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

__all__ = ["VerbPhrase", "verb_phrase"]

# Verbs of one short syllable double their last consonant ("spinning"), and these longer ones do.
_SHORT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")
_DOUBLING = frozenset({"zigzag", "level", "cancel"})


class VerbPhrase(NamedTuple):
    """``drift to the left`` / ``drifts to the left`` / ``drifting to the left``."""

    base: str
    third: str
    ing: str


@lru_cache(maxsize=4096)
def verb_phrase(text: str) -> VerbPhrase:
    """Forms of a phrase written ``"drift | to the left"`` (the verb, then what follows it)."""
    verb, _, tail = (piece.strip() for piece in text.partition("|"))
    tail = f" {tail}" if tail else ""
    return VerbPhrase(verb + tail, _third(verb) + tail, _ing(verb) + tail)


def _third(verb: str) -> str:
    if verb == "have":
        return "has"
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


def _ing(verb: str) -> str:
    if verb in _DOUBLING or _SHORT.fullmatch(verb):
        return verb + verb[-1] + "ing"
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")):
        return verb[:-1] + "ing"
    return verb + "ing"
