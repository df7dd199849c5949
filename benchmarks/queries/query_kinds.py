"""Draw queries of several kinds: words and captions of a library, captions as people retype them, and unknown texts."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.queries.library_videos import Library, LibraryVideo
from service.core.request_limits import MAX_QUERY_CHARS

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
    """Draw single words from :data:`SENTENCES` that no word in the library's texts resembles in letters."""
    stems = {word[:_STEM] for word in library_words}
    words = sorted({word for text in SENTENCES for word in text.split() if len(word) > _STEM})
    foreign = [word for word in words if word[:_STEM] not in stems]
    return random.Random(f"foreign {seed}").sample(foreign, min(count, len(foreign)))


CaptionKind = Literal["learned", "hidden", "new wording", "long description"]
CAPTION_KINDS: tuple[CaptionKind, ...] = get_args(CaptionKind)

_MAX_SHARE = 0.15  # of the videos; a more frequent word names nothing
_MIN_LETTERS = 3
_FUNCTION_WORDS = frozenset(
    caption_words(
        "the and with from for are its this that his her their your you into over under down out off then than while "
        "when who which has have had not one two left right very can will all does each other"
    )
)


class Query(NamedTuple):
    """A text, and the videos that are right for it."""

    kind: str
    text: str
    right: frozenset[str] = frozenset()  # IDs, including those of videos with hidden captions
    stored: int = 0  # number of right videos whose stored captions say so
    domain: str | None = None  # of the right video, or the only one whose stored captions have the words
    group: str = ""  # folder of a whole caption's domain

    @property
    def needs_one(self) -> bool:
        """Whether one right video suffices: for whole and retyped captions, but not for words."""
        return self.kind not in ("words", "pairs")

    @property
    def is_caption(self) -> bool:
        """Whether the text is a whole caption of one video."""
        return self.kind in CAPTION_KINDS


def keyword_queries(library: Library, count: int, rng: random.Random) -> list[Query]:
    """Draw words, and pairs of adjacent words, that few videos store; right are all videos whose captions have them."""
    videos = [video for part in library.values() for video in part]
    contents, stored_contents = (
        {video.id: {word for text in texts for word in caption_words(text)} for video, texts in part}
        for part in ([(v, v.captions) for v in videos], [(v, v.stored) for v in videos])
    )
    holders_of: dict[str, dict[str, LibraryVideo]] = defaultdict(dict)
    queries = []
    for video in videos:
        for words in map(caption_words, video.stored):
            for first, second in zip(words, [*words[1:], ""], strict=True):
                if is_content_word(first):
                    holders_of[first][video.id] = video
                if _is_content(first) and _is_content(second):
                    holders_of[f"{first} {second}"][video.id] = video
    limit = max(2, _MAX_SHARE * len(videos))
    for kind, spaces in (("words", 0), ("pairs", 1)):
        texts = sorted(
            t for t, holders in holders_of.items() if t.count(" ") == spaces and len(holders) <= limit
        )
        for text in rng.sample(texts, min(count, len(texts))):
            needed = set(text.split())
            right = frozenset(video for video, content in contents.items() if needed <= content)
            stored = [video for video in videos if needed <= stored_contents[video.id]]
            domains = {video.domain for video in stored}
            queries.append(Query(kind, text, right, len(stored), min(domains) if len(domains) == 1 else None))
    return queries


def is_content_word(word: str) -> bool:
    """Check whether a word is neither short, nor a number, nor a function word."""
    return _is_content(word) and not word.isdigit()


def _is_content(word: str) -> bool:
    return len(word) >= _MIN_LETTERS and word not in _FUNCTION_WORDS


def caption_queries(library: Library, kinds: Sequence[CaptionKind], count: int, seed: int) -> list[Query]:
    """Draw whole captions, each of which describes one video.

    ``learned`` is the first caption of a learned video, ``hidden`` that of a hidden one. ``new wording`` is the second
    caption of a learned video, ``long description`` the last of at least three; the video's first one is stored.
    """
    queries = []
    for kind in kinds:
        candidates = [
            (video, text) for part in library.values() for video in part for text in _caption(video, kind)
        ]
        drawn = random.Random(f"{kind} {seed}").sample(candidates, min(count, len(candidates)))
        queries += [
            Query(kind, text, frozenset([video.id]), 1, video.domain, video.group) for video, text in drawn
        ]
    return queries


def _caption(video: LibraryVideo, kind: CaptionKind) -> Sequence[str]:
    """Pick a video's query of a kind, if it has one."""
    needed, index = {"new wording": (2, 1), "long description": (3, -1)}.get(kind, (1, 0))
    if video.is_hidden != (kind == "hidden") or len(video.captions) < needed:
        return ()
    return (video.captions[index][:MAX_QUERY_CHARS],)


TIMED_KINDS = {"heard": "speech", "read": "screen"}
_TIMED_WORDS = 3


def timed_queries(library: Library, count: int, rng: random.Random) -> list[Query]:
    """Draw up to three words in a row that were heard or read; right is every video whose texts have them."""
    videos = [video for part in library.values() for video in part]
    sources = TIMED_KINDS.values()
    texts = {}
    for video in videos:  # a sentence goes on in the next text of its source
        timed = (" ".join(text for name, text in video.timed if name == source) for source in sources)
        texts[video.id] = [f" {' '.join(caption_words(text))} " for text in (*video.stored, *timed)]
    queries = []
    for kind, source in TIMED_KINDS.items():
        said = [caption_words(text) for video in videos for name, text in video.timed if name == source]
        parts = {
            " ".join(words[start : start + _TIMED_WORDS])
            for words in said
            for start, word in enumerate(words)
            if is_content_word(word)
        }
        for text in rng.sample(sorted(parts), min(count, len(parts))):
            right = frozenset(
                video for video, stored in texts.items() if any(f" {text} " in words for words in stored)
            )
            queries.append(Query(kind, text, right, len(right)))
    return queries


def library_words(library: Mapping[str, Sequence[LibraryVideo]]) -> set[str]:
    """Collect the words in all captions, hidden ones included."""
    return {
        word for part in library.values() for v in part for text in v.captions for word in caption_words(text)
    }


_LENGTHS = (1, 2, 3, 5, 8)  # content words of a caption, from its first one
_CHANGES = (
    "exact, filler, one unknown word, unknown words, one other word, other words, fewer words, other order, typo, "
    "three words, inflections, synonyms"
)
RETYPED_KINDS = (*_CHANGES.split(", "), *(f"first {length}" for length in _LENGTHS))

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
    word: other for pair in _PAIRS.split() for word, other in (pair.split("/"), reversed(pair.split("/")))
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
    """Draw captions, and retype each once for every kind: with filler words, other words, synonyms, typos and so on.

    Right is every video with a stored caption that contains all words that the query keeps of its caption; a synonym,
    an inflection and a typo keep the word that they stand for.
    """
    videos = [video for part in library.values() for video in part]
    stored = [(video, caption_words(text)) for video in videos for text in video.stored]
    sets = [set(words) for _, words in stored]
    captions = sorted({text for video in videos for text in video.stored})
    all_words = set().union(*sets)
    unknown = foreign_words(all_words, len(SENTENCES))
    other = sorted(filter(is_content_word, all_words))
    retyped: dict[str, list[Query]] = {kind: [] for kind in RETYPED_KINDS}
    for text in rng.sample(captions, len(captions)):
        words = caption_words(text)
        content = [index for index, word in enumerate(words) if is_content_word(word)]
        if len(content) < _MIN_CONTENT:
            continue
        for kind, query, remaining in _retype(text, words, content, unknown, other, rng):
            if len(query) <= MAX_QUERY_CHARS and len(retyped[kind]) < count:
                needed = set(remaining)
                holders = [
                    video
                    for (video, texts), contained in zip(stored, sets, strict=True)
                    if needed <= contained
                    and (isinstance(remaining, set) or f" {query} " in f" {' '.join(texts)} ")
                ]
                right = frozenset(video.id for video in holders)
                domains = {video.domain for video in holders}
                domain = holders[0].domain if len(domains) == 1 else None
                retyped[kind].append(Query(kind, query, right, len(right), domain))
    return [query for queries in retyped.values() for query in queries]


def _retype(
    text: str,
    words: Sequence[str],
    content: Sequence[int],
    unknown: Sequence[str],
    other: Sequence[str],
    rng: random.Random,
) -> Iterator[tuple[str, str, Collection[str]]]:
    """Retype a caption in every way: yield kind, query, and the words that make a video right, a list if in a row."""
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
        typed = [rng.choice(replacements) if index in gone else word for index, word in enumerate(words)]
        yield kind, " ".join(typed), {words[index] for index in content if index not in gone}
    remaining = set(rng.sample(content, max(2, round(_KEPT * len(content)))))
    yield (
        "fewer words",
        " ".join(words[index] for index in sorted(remaining)),
        {words[index] for index in remaining},
    )
    order = rng.sample(content, len(content))
    yield "other order", " ".join(words[index] for index in order), {words[index] for index in order}
    if long := [index for index in content if len(words[index]) >= _MIN_TYPO]:
        misspelled = rng.choice(long)
        typed = [
            _swap_letters(word, rng) if index == misspelled else word for index, word in enumerate(words)
        ]
        yield "typo", " ".join(typed), set(words)
    start = rng.randrange(len(words) - 2)
    part = words[start : start + 3]
    yield "three words", " ".join(part), part
    inflected = set(rng.sample(content, several))
    typed = [inflect(word) if index in inflected else word for index, word in enumerate(words)]
    yield "inflections", " ".join(typed), set(words)
    if any(word in _SYNONYMS for word in words):
        yield "synonyms", " ".join(_SYNONYMS.get(word, word) for word in words), set(words)
    for length in _LENGTHS:
        if length <= len(content):
            first = [words[index] for index in content[:length]]
            yield f"first {length}", " ".join(first), set(first)


def inflect(word: str) -> str:
    """Inflect an English word by its ending: "lifting" becomes "lifted", "boxes" "box", and "dog" "dogs"."""
    pattern, other = next(rule for rule in _INFLECTIONS if re.search(rule[0], word))
    return re.sub(pattern, other, word, count=1)


def _swap_letters(word: str, rng: random.Random) -> str:
    """Swap two neighboring letters that differ, or drop one of two equal ones."""
    index = rng.randrange(1, len(word) - 2)
    first, second = word[index], word[index + 1]
    return word[:index] + (second + first if first != second else first) + word[index + 2 :]
