"""Captions as people retype them: with filler words, words that are unknown or from other captions, synonyms, or typos.

A query is made from one stored caption. Right is every video with a stored caption that contains all words that the
query keeps of it; a synonym, an inflection and a typo keep the word that they stand for.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Sequence

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.queries.library_videos import Library
from benchmarks.queries.query_kinds import Query, is_content_word
from benchmarks.queries.unknown_texts import SENTENCES, foreign_words
from service.core.request_limits import MAX_QUERY_CHARS

_LENGTHS = (1, 2, 3, 5, 8)  # content words of a caption, from its first one
RETYPED_KINDS = (
    "exact",
    "filler",
    "one unknown word",
    "unknown words",
    "one other word",
    "other words",
    "fewer words",
    "other order",
    "typo",
    "three words",
    "inflections",
    "synonyms",
    *(f"first {length}" for length in _LENGTHS),
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

# Written before any constant was tuned on queries with them. Both words of a pair replace each other.
_PAIRS = (
    "man/guy woman/lady person/human child/kid baby/infant boy/lad friend/buddy doctor/physician car/automobile "
    "bike/bicycle plane/airplane boat/ship truck/lorry road/street path/trail house/home room/chamber sofa/couch "
    "rug/carpet cup/mug bag/sack box/carton stone/rock forest/woods sea/ocean hill/mound picture/image movie/film "
    "phone/telephone screen/display robot/machine shop/store food/meal trash/garbage weight/load big/large "
    "small/little fast/quick quiet/silent easy/simple hard/difficult start/begin stop/halt close/shut walk/stroll "
    "run/jog jump/leap lift/raise lower/drop push/press pull/drag hold/grip grab/grasp put/place throw/toss "
    "turn/rotate bend/flex look/gaze"
)
_SYNONYMS = {
    word: other
    for pair in _PAIRS.split()
    for first, second in [pair.split("/")]
    for word, other in ((first, second), (second, first))
}
_INFLECTIONS = [  # the first pattern that fits
    (r"(?<=[aeiouy][^aeiouy])([a-z]*)ing$", r"\1ed"),
    (r"(?<=[aeiouy][^aeiouy])([a-z]*)ed$", r"\1ing"),
    (r"ies$", "y"),
    (r"(?<=ss|sh|ch)es$|(?<=x)es$|(?<![us])s$", ""),
    (r"(?<=[^aeiou])y$", "ies"),
    (r"(?<=s|x)$|(?<=sh|ch)$", "es"),
    (r"$", "s"),
]


def retyped_queries(library: Library, count: int, rng: random.Random) -> list[Query]:
    """Draw captions and retype each once for every kind."""
    videos = [video for part in library.values() for video in part]
    stored = [(video, caption_words(text)) for video in videos for text in video.stored]
    sets = [set(words) for _, words in stored]
    captions = sorted({text for video in videos for text in video.stored})
    known = set().union(*sets)
    unknown = foreign_words(known, len(SENTENCES))
    other = sorted(filter(is_content_word, known))
    found: dict[str, list[Query]] = {kind: [] for kind in RETYPED_KINDS}
    for text in rng.sample(captions, len(captions)):
        words = caption_words(text)
        content = [place for place, word in enumerate(words) if is_content_word(word)]
        if len(content) < _MIN_CONTENT:
            continue
        for kind, query, kept in _retype(text, words, content, unknown, other, rng):
            if len(query) <= MAX_QUERY_CHARS and len(found[kind]) < count:
                needed = set(kept)
                holders = [
                    video
                    for (video, own), contained in zip(stored, sets, strict=True)
                    if needed <= contained and (isinstance(kept, set) or f" {query} " in f" {' '.join(own)} ")
                ]
                right = frozenset(video.id for video in holders)
                domains = {video.domain for video in holders}
                domain = holders[0].domain if len(domains) == 1 else None
                found[kind].append(Query(kind, query, right, len(right), domain))
    return [query for queries in found.values() for query in queries]


def _retype(
    text: str,
    words: Sequence[str],
    content: Sequence[int],
    unknown: Sequence[str],
    other: Sequence[str],
    rng: random.Random,
) -> Iterator[tuple[str, str, Collection[str]]]:
    """Retype a caption in every way.

    Yields:
        The kind, the query, and the words of the caption that make a video right: a set, or a list if they have to be
        in a row.
    """
    yield "exact", text, set(words)
    yield "filler", rng.choice(_FILLERS).format(text.rstrip(".")), set(words)
    several = max(1, round(_REPLACED * len(content)))
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
    start = rng.randrange(len(words) - 2)
    part = words[start : start + 3]
    yield "three words", " ".join(part), part
    inflected = set(rng.sample(content, several))
    typed = [inflect(word) if place in inflected else word for place, word in enumerate(words)]
    yield "inflections", " ".join(typed), set(words)
    if any(word in _SYNONYMS for word in words):
        yield "synonyms", " ".join(_SYNONYMS.get(word, word) for word in words), set(words)
    for length in _LENGTHS:
        if length <= len(content):
            first = [words[place] for place in content[:length]]
            yield f"first {length}", " ".join(first), set(first)


def inflect(word: str) -> str:
    """Inflect an English word by its ending: "lifting" becomes "lifted", "boxes" "box", and "dog" "dogs"."""
    pattern, other = next(rule for rule in _INFLECTIONS if re.search(rule[0], word))
    return re.sub(pattern, other, word, count=1)


def _swap_letters(word: str, rng: random.Random) -> str:
    """Swap two neighboring letters that differ, or drop one of two equal ones."""
    place = rng.randrange(1, len(word) - 2)
    first, second = word[place], word[place + 1]
    return word[:place] + (second + first if first != second else first) + word[place + 2 :]
