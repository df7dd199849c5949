"""Search for words by reading every text; the index must agree with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from index.words.text_analysis import QueryUnit, analyze_text
from index.words.word_forms import stem_words
from index.words.word_index import VideoText, WordMatches

Texts = Mapping[int, Sequence[VideoText]]


def strength(unit: QueryUnit, text: str) -> float:
    """Compute the strength of a unit in an English text, 0 if it is absent."""
    words = analyze_text(text)
    numbered = list(zip(words.positions, words.terms, strict=True))

    def at(position: int, term: str) -> float:
        terms = [other for start, other in numbered if start == position]
        stem = stem_words("english", [term])
        return max(
            (
                1.0 if other == term else 0.9 * (stem_words("english", [other.lstrip("-")]) == stem)
                for other in terms
            ),
            default=0,
        )

    def anywhere(*terms: str) -> float:
        return max(
            (
                min(at(start + offset, term) for offset, term in enumerate(terms))
                for start in range(words.length)
            ),
            default=0,
        )

    joined = [term.lstrip("-") for term in unit.joined]
    other = 0.9 * any(map(anywhere, joined))
    if unit.is_phrase:
        return max(anywhere(*unit.terms), other)
    (word,) = unit.terms
    compounds = {term for term in unit.joined if term.startswith("-")}
    if compounds & set(words.terms):
        return 1.0
    apart = any(  # the first part as it is
        at(start, word[:end]) == 1 and at(start + 1, word[end:])
        for end in range(1, len(word))
        for start in range(0 if compounds else words.length)
    )
    best = max(anywhere(word), other, 0.9 * apart)
    return min(best, 0.9) if compounds or {f"-{term}" for term in joined} & set(words.terms) else best


def matching_texts(texts: Texts, units: Sequence[QueryUnit]) -> list[tuple[int, int, int, tuple[float, ...]]]:
    """List video, kind, length and strengths of each text that contains any unit, ascending."""
    matches = []
    for video, group in texts.items():
        for text in group:
            strengths = tuple(round(strength(unit, text.text), 3) for unit in units)
            if any(strengths):
                matches.append((video, int(text.kind), analyze_text(text.text).length, strengths))
    return sorted(matches)


def rows(matches: WordMatches) -> list[tuple[int, int, int, tuple[float, ...]]]:
    """Convert the matches to the form of ``matching_texts``."""
    strengths = [tuple(round(value, 3) for value in row) for row in matches.strengths.tolist()]
    columns = (matches.videos.tolist(), matches.kinds.tolist(), matches.lengths.tolist(), strengths)
    return sorted(zip(*columns, strict=True))


def frequencies(texts: Texts, units: Sequence[QueryUnit]) -> list[int]:
    """Count the texts with each unit."""
    return [
        int(np.count_nonzero([strength(unit, text.text) for group in texts.values() for text in group]))
        for unit in units
    ]


def videos_with_all(texts: Texts, units: Sequence[QueryUnit]) -> list[int]:
    """Find the videos whose texts together contain all units."""
    return sorted(
        video
        for video, group in texts.items()
        if units and all(any(strength(unit, text.text) for text in group) for unit in units)
    )


def most_frequent_terms(texts: Texts, prefix: str, count: int) -> list[tuple[str, int]]:
    """List the terms that begin with a word, with the number of texts that contain each, most frequent first."""
    totals = Counter(
        term
        for group in texts.values()
        for text in group
        for term in {term.lstrip("-") for term in analyze_text(text.text).terms}
        if prefix and term.startswith(prefix)
    )
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:count]
