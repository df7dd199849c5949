"""Captions as people retype them: with filler words, unknown words, words of other captions, fewer words, or a typo.

A query is made from one stored caption. Right is every video with a stored caption that contains all content words that
the query keeps of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.queries.library_videos import Library
from benchmarks.queries.query_kinds import Query, is_content_word
from benchmarks.queries.unknown_texts import SENTENCES, foreign_words

RETYPED_KINDS = (
    "filler",
    "one unknown word",
    "unknown words",
    "one other word",
    "other words",
    "fewer words",
    "other order",
    "typo",
    "three words",
)

_FILLERS = (
    "video of {}",
    "show me {}",
    "{} please",
    "a clip where {}",
    "find {}",
    "{} footage",
    "looking for {}",
)
_REPLACED = 0.3  # of the content words
_KEPT = 0.6
_MIN_CONTENT = 3  # content words of a caption that is retyped
_MIN_TYPO = 6  # letters of a word with a typo


def retyped_queries(library: Library, count: int, rng: random.Random) -> list[Query]:
    """Draw captions and retype each once for every kind.

    Args:
        count: Maximum number of queries of a kind.
    """
    stored = [
        (video.id, set(caption_words(text)))
        for part in library.values()
        for video in part
        for text in video.stored
    ]
    captions = sorted({text for part in library.values() for video in part for text in video.stored})
    known = {word for _, words in stored for word in words}
    unknown = foreign_words(known, len(SENTENCES))
    other = sorted(filter(is_content_word, known))
    found: dict[str, list[Query]] = {kind: [] for kind in RETYPED_KINDS}
    for text in rng.sample(captions, len(captions)):
        words = caption_words(text)
        content = [place for place, word in enumerate(words) if is_content_word(word)]
        if len(content) < _MIN_CONTENT:
            continue
        for kind, query, kept in _retype(text, words, content, unknown, other, rng):
            if len(found[kind]) < count:
                right = frozenset(video for video, own in stored if kept <= own)
                found[kind].append(Query(kind, query, right, len(right)))
    return [query for queries in found.values() for query in queries]


def _retype(
    text: str,
    words: Sequence[str],
    content: Sequence[int],
    unknown: Sequence[str],
    other: Sequence[str],
    rng: random.Random,
) -> Iterator[tuple[str, str, set[str]]]:
    """Retype a caption in every way: kind, query, and the words of the caption that make a video right."""
    yield "filler", rng.choice(_FILLERS).format(text.rstrip(".")), set(words)
    several = max(2, round(_REPLACED * len(content)))
    for kind, replacements, replaced in (
        ("one unknown word", unknown, 1),
        ("unknown words", unknown, several),
        ("one other word", other, 1),
        ("other words", other, several),
    ):
        gone = set(rng.sample(content, replaced))
        typed = [rng.choice(replacements) if place in gone else word for place, word in enumerate(words)]
        yield kind, " ".join(typed), {words[place] for place in content if place not in gone}
    kept = set(rng.sample(content, max(2, round(_KEPT * len(content)))))
    yield "fewer words", " ".join(words[place] for place in sorted(kept)), {words[place] for place in kept}
    order = rng.sample(content, len(content))
    yield "other order", " ".join(words[place] for place in order), {words[place] for place in order}
    if long := [place for place in content if len(words[place]) >= _MIN_TYPO]:
        misspelled = rng.choice(long)
        typed = [
            _swap_letters(word, rng) if place == misspelled else word for place, word in enumerate(words)
        ]
        yield "typo", " ".join(typed), set(words)
    first = rng.randrange(len(words) - 2)
    part = words[first : first + 3]
    yield "three words", " ".join(part), set(part)


def _swap_letters(word: str, rng: random.Random) -> str:
    """Swap two neighboring letters that differ, or drop one of two equal ones."""
    place = rng.randrange(1, len(word) - 2)
    first, second = word[place], word[place + 1]
    return word[:place] + (second + first if first != second else first) + word[place + 2 :]
