"""Texts for which no video in a library is right."""

from __future__ import annotations

import random
from collections.abc import Collection

import numpy as np

_STEM = 4  # words that share this many first letters may be forms of one word
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

# Recipes, law, sports results, travel and software: releases are calibrated with none of these texts.
SENTENCES = (
    "preheat the oven to 180 degrees and grease a baking tin",
    "fold the egg whites into the melted chocolate",
    "let the dough rise in a warm place for an hour",
    "simmer the tomatoes with garlic until the sauce thickens",
    "season the lamb with rosemary and roast it for two hours",
    "whisk butter and sugar until the mixture is pale",
    "peel the potatoes and cut them into thin slices",
    "garnish the soup with parsley and a spoon of cream",
    "soak the beans overnight and drain them",
    "serve the risotto at once with grated cheese",
    "the tenant shall give notice three months in advance",
    "the court dismissed the appeal and upheld the verdict",
    "the contract is void if either party was deceived",
    "liability is limited to cases of gross negligence",
    "the heirs may renounce the estate within six weeks",
    "the defendant was acquitted for lack of evidence",
    "copyright expires seventy years after the death of the author",
    "the parties agree to settle disputes by arbitration",
    "personal data must be erased on request",
    "the statute was amended by parliament last year",
    "the home team lost by three goals in the final",
    "she broke the national record over ten thousand meters",
    "the striker was transferred for a record fee",
    "the ferry to the island leaves twice a day",
    "breakfast is included in the price of the room",
    "the nearest airport is forty miles from the city",
    "install the package and restart the server",
    "the query failed because the table has no index",
    "merge the branch after all reviews are approved",
    "the bishop was elected pope in the conclave",
    "clouds will clear by noon with a light breeze from the west",
    "the orchestra tuned before the second act of the opera",
)


def random_letters(count: int, seed: int = 0) -> list[str]:
    """Generate texts of one to five words of random letters."""
    rng = np.random.default_rng([seed, 1])

    def word() -> str:
        return "".join(rng.choice(list(_LETTERS), rng.integers(2, 10)))

    return [" ".join(word() for _ in range(rng.integers(1, 6))) for _ in range(count)]


def foreign_words(library_words: Collection[str], count: int, seed: int = 0) -> list[str]:
    """Draw single words from :data:`SENTENCES` that no word in the library resembles in letters.

    Args:
        library_words: Words in all the library's texts.
    """
    known = {word[:_STEM] for word in library_words}
    words = sorted({word for text in SENTENCES for word in text.split() if len(word) > _STEM})
    foreign = [word for word in words if word[:_STEM] not in known]
    return random.Random(f"foreign {seed}").sample(foreign, min(count, len(foreign)))
