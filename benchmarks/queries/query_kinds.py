"""Draw queries of several kinds from a library's captions."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.queries.library_videos import Library, LibraryVideo
from service.core.request_limits import MAX_QUERY_CHARS

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
    """A text, and the videos that are right for it.

    Attributes:
        kind: Kind in the tables.
        text: Text to search for.
        right: IDs of the right videos, including those with hidden captions.
        stored: Number of right videos whose stored captions say so.
        domain: Domain of the right video, or the only one whose stored captions have the words; None if there are
            several.
        group: Folder of a whole caption's domain.
    """

    kind: str
    text: str
    right: frozenset[str] = frozenset()
    stored: int = 0
    domain: str | None = None
    group: str = ""

    @property
    def needs_one(self) -> bool:
        """Whether one right video suffices: for whole and retyped captions, but not for words."""
        return self.kind not in ("words", "pairs")

    @property
    def is_caption(self) -> bool:
        """Whether the text is a whole caption of one video."""
        return self.kind in CAPTION_KINDS


def keyword_queries(library: Library, count: int, rng: random.Random) -> list[Query]:
    """Draw single words, and pairs of adjacent words, from stored captions that few videos have.

    Every video with a caption that contains all words, in any order, is right.
    """
    videos = [video for part in library.values() for video in part]
    contents, stored_contents = (
        {video.id: {word for text in texts for word in caption_words(text)} for video, texts in part}
        for part in ([(v, v.captions) for v in videos], [(v, v.stored) for v in videos])
    )
    found: dict[str, dict[str, LibraryVideo]] = defaultdict(dict)
    queries = []
    for video in videos:
        for words in map(caption_words, video.stored):
            for first, second in zip(words, [*words[1:], ""], strict=True):
                if is_content_word(first):
                    found[first][video.id] = video
                if _is_content(first) and _is_content(second):
                    found[f"{first} {second}"][video.id] = video
    limit = max(2, _MAX_SHARE * len(videos))
    for kind, spaces in (("words", 0), ("pairs", 1)):
        texts = sorted(t for t, holders in found.items() if t.count(" ") == spaces and len(holders) <= limit)
        for text in rng.sample(texts, min(count, len(texts))):
            needed = set(text.split())
            right = frozenset(video for video, content in contents.items() if needed <= content)
            stored = [video for video in videos if needed <= stored_contents[video.id]]
            domains = {video.domain for video in stored}
            queries.append(
                Query(kind, text, right, len(stored), stored[0].domain if len(domains) == 1 else None)
            )
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
    needed, position = {"new wording": (2, 1), "long description": (3, -1)}.get(kind, (1, 0))
    if video.is_hidden != (kind == "hidden") or len(video.captions) < needed:
        return ()
    return (video.captions[position][:MAX_QUERY_CHARS],)


def library_words(library: Mapping[str, Sequence[LibraryVideo]]) -> set[str]:
    """Collect the words in all captions, hidden ones included."""
    return {
        word for part in library.values() for v in part for text in v.captions for word in caption_words(text)
    }
