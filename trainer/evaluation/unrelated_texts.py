"""Texts without a video: sentences about matters that no video shows, and random letters.

A release is calibrated with them in addition to the captions of other domains, which a library of one domain lacks.
"""

from __future__ import annotations

from functools import cache

import numpy as np

_SENTENCES = (
    "the square root of two is irrational",
    "inflation rose by half a percent in the last quarter",
    "adjectives agree with the noun in gender and number",
    "the hypothesis was rejected at the five percent level",
    "please find the invoice attached to this message",
    "our subscription plan renews automatically every year",
    "the novel was translated into eleven languages",
    "a prime number has exactly two divisors",
    "the password must contain at least one digit",
    "her dissertation discusses the philosophy of language",
    "interest is compounded monthly on the remaining balance",
    "the treaty ended a war of thirty years",
    "this medicine should not be combined with aspirin",
    "the committee postponed its decision until spring",
    "electrons occupy discrete energy levels in an atom",
    "he has been a member of the union since 1994",
    "the proof follows by induction on the length of the word",
    "the symphony is written in the key of d minor",
    "our quarterly revenue exceeded the forecast",
    "genes are transcribed into messenger molecules",
    "the deadline for applications is the end of june",
    "free will and determinism may be compatible",
    "the average temperature of the planet has increased",
    "the museum is closed on public holidays",
    "patience is a virtue that few people possess",
    "the exchange rate depends on supply and demand",
    "how do I reset my account settings",
    "what is the capital of australia",
    "best price for a flight to lisbon next week",
    "the verb stands at the end of a subordinate clause",
    "the galaxy is two million light years away",
    "the company announced a merger with its largest competitor",
    "symptoms usually disappear within a few days",
    "the census is conducted every ten years",
    "memory is freed when the last reference is dropped",
    "the poem describes a feeling of loss",
)
_RANDOM_TEXTS = 12
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@cache
def unrelated_texts() -> tuple[str, ...]:
    """The texts; the same in every call."""
    rng = np.random.default_rng(0)

    def word() -> str:
        return "".join(rng.choice(list(_LETTERS), rng.integers(3, 9)))

    random = [" ".join(word() for _ in range(rng.integers(1, 6))) for _ in range(_RANDOM_TEXTS)]
    return (*_SENTENCES, *random)
