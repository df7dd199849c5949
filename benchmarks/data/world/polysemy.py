"""Which words mean different things in different domains: what makes plain fine-tuning forget."""

from __future__ import annotations

from benchmarks.data.world.domains import DOMAINS
from benchmarks.data.world.domains.everyday_vocabulary import HUES

__all__ = ["polysemous_words", "senses"]

_PLAIN = {word: hue.words[0] for hue in HUES for word in hue.words}


def senses() -> dict[str, dict[str, str]]:
    """What each word means in each benchmark domain that uses it, in plain words: ``{word: {domain: meaning}}``.

    Nouns mean the thing's gloss, adjectives a plain color, verbs (with all that belongs to them) a motion.
    """
    table: dict[str, dict[str, str]] = {}
    for domain in DOMAINS.values():
        for entity in (*domain.entities, *domain.props):
            for word in entity.words:
                table.setdefault(word, {})[domain.name] = entity.gloss
        for hue in domain.hues:
            for word in hue.words:
                table.setdefault(word, {})[domain.name] = _PLAIN[hue.words[-1]]
        for motion, phrases in domain.verbs.items():
            for phrase in phrases:
                word = phrase.replace(" | ", " ")
                table.setdefault(word, {})[domain.name] = f"to {motion}"
    return table


def polysemous_words() -> dict[str, dict[str, str]]:
    """The part of :func:`senses` with two meanings or more."""
    return {word: meanings for word, meanings in sorted(senses().items()) if len(set(meanings.values())) > 1}
