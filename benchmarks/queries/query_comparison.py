"""Compare the product with its rivals on all kinds of queries, over several seeds; a running service with BM25 only.

A seed orders the domains and draws the queries. For each seed, three libraries are learned: with all captions of the
learned videos, with only their first captions, and without a quarter of the domains, whose captions are unknown texts.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clips.caption_tfidf import caption_words
from benchmarks.data.source_tasks import Progress
from benchmarks.errors import ProtocolError
from benchmarks.queries.library_videos import (
    Library,
    LibraryVideo,
    hide_videos,
    keep_first_captions,
    leave_out,
    read_domains,
)
from benchmarks.queries.query_kinds import (
    SENTENCES,
    Query,
    caption_queries,
    foreign_words,
    keyword_queries,
    library_words,
    random_letters,
    retyped_queries,
    timed_queries,
)
from benchmarks.queries.query_rivals import (
    FULL_TEXT,
    VISUAL,
    Bm25,
    Floats,
    Outcome,
    VectorRivals,
    combine,
    compare_answers,
    fit_weights,
    read_features,
    stored_text,
)
from benchmarks.queries.served_library import DEPTH, Answer, Question, ServedAnswers, serve, to_answer
from cinestrata_client.client import Client
from media import content_hash

UNKNOWN_KINDS = ("random letters", "foreign words", "other sentences", "captions of domains left out")
KEPT_KINDS = ("captions of the other domains", "hidden captions of the other domains")
_LIBRARIES_AT_A_TIME = 2
_WEIGHTS = np.linspace(0, 1, 21).round(2).tolist()  # of BM25 in the convex combination


@dataclass(frozen=True)
class Plan:
    """A library and the queries to it."""

    seed: int
    name: str
    library: Library
    queries: list[Query]

    @property
    def videos(self) -> list[LibraryVideo]:
        """All videos of the library."""
        return [video for part in self.library.values() for video in part]

    @property
    def questions(self) -> list[Question]:
        """Searches of all domains, then of single domains."""
        in_domain = [Question(query.text, query.domain) for query in self.queries if query.is_caption]
        return [*(Question(query.text) for query in self.queries), *in_domain]


@dataclass
class QueryResults:
    """Outcomes of all seeds, and the weights of BM25 in each: for one half of the videos, fitted on the other."""

    videos: dict[str, int]
    hidden: int
    seeds: int
    names: bool
    ridge: list[str] = field(default_factory=list)
    weights: list[list[float]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    @classmethod
    def empty(cls, library: Library, seeds: int, *, names: bool) -> QueryResults:
        """Create results of a library, without outcomes."""
        videos = {name: len(part) for name, part in sorted(library.items())}
        hidden = sum(video.is_hidden for part in library.values() for video in part)
        return cls(videos, hidden, seeds, names)

    def add(self, plan: Plan, answers: Sequence[Answer], scores: Mapping[str, Floats]) -> None:
        """Add the outcomes of answers, BM25 and other scores ``[Q, N]``; a seed's first library fits the fusion."""
        bm25 = Bm25([stored_text(video, with_names=self.names) for video in plan.videos])
        words = np.stack([bm25(query.text) for query in plan.queries])
        if VISUAL in scores and len(self.weights) == plan.seed:
            visual = scores[VISUAL]
            self.weights.append(
                fit_weights(
                    plan.queries, plan.videos, _WEIGHTS, lambda row, w: combine(words[row], visual[row], w)
                )
            )
        weights = self.weights[plan.seed] if self.weights else []
        scores = {FULL_TEXT: words, **scores}
        self.outcomes += compare_answers(plan.queries, plan.videos, answers, scores, weights)


def compare_on_queries(
    folders: Sequence[Path],
    *,
    backbone: str,
    cache: Path,
    method: str | None = None,
    seeds: int = 1,
    queries: int = 150,
    uncaptioned: float = 0.2,
    names: bool = False,
    only: Collection[str] = (),
    excluded: Collection[str] = (),
    workers: int = 1,
    progress: Progress = lambda done, total: None,
    report: Callable[[str], None] = lambda line: None,
) -> QueryResults:
    """Ingest the libraries for all seeds, and search them; raise ProtocolError if a folder or a video is unusable."""
    with tempfile.TemporaryDirectory() as temporary:
        media = Path(temporary).resolve()
        domains = read_domains(folders, media, names=names, only=only, excluded=excluded)
        first = hide_videos(domains, 0, uncaptioned)
        features = read_features(first, backbone, cache, workers=workers, progress=progress)
        report(f"{backbone} runs in {features.engine}")
        results = QueryResults.empty(first, seeds, names=names)
        plans = [
            plan
            for seed in range(seeds)
            for plan in plan_libraries(hide_videos(domains, seed, uncaptioned), seed, queries)
        ]

        def answer(plan: Plan) -> ServedAnswers:
            texts = [query.text for query in plan.queries]
            options: dict[str, Any] = {"media": media, "cache": cache, "backbone": backbone, "method": method}
            served = serve(plan.library, plan.questions, texts, **options)
            report(f"{plan.name}: {len(served.videos)} videos, {len(plan.questions)} searches")
            return served

        rivals = VectorRivals(features)
        with ThreadPoolExecutor(_LIBRARIES_AT_A_TIME) as pool:
            for plan, served in zip(plans, pool.map(answer, plans), strict=True):
                scores = rivals.score(plan.seed, plan.library, plan.queries, served)
                results.add(plan, served.answers, scores)
        results.ridge = rivals.parameters
        return results


def plan_libraries(library: Library, seed: int, count: int) -> list[Plan]:
    """Draw the queries to a library with all captions, and to its two variants."""
    letters, words, sentences, captions = UNKNOWN_KINDS
    unknown = {
        letters: random_letters(count, seed),
        words: foreign_words(library_words(library), count, seed),
        sentences: list(SENTENCES),
    }
    complete = [
        *keyword_queries(library, count, random.Random(f"keywords {seed}")),
        *caption_queries(library, ["learned", "hidden"], count, seed),
        *retyped_queries(library, count, random.Random(f"retyped {seed}")),
        *timed_queries(library, count, random.Random(f"timed {seed}")),
        *(Query(kind, text) for kind, texts in unknown.items() for text in texts),
    ]
    short = keep_first_captions(library)
    reworded = caption_queries(short, ["new wording", "long description"], count, seed)
    rest, left_out = leave_out(library, seed)
    remaining = [
        query._replace(kind=name)
        for kind, name in zip(("learned", "hidden"), KEPT_KINDS, strict=True)
        for query in caption_queries(rest, [kind], count, seed)  # type: ignore[list-item]
    ]
    stored = {
        tuple(caption_words(text)) for part in rest.values() for video in part for text in video.captions
    }
    absent = dict.fromkeys(q.text for q in caption_queries(left_out, ["learned", "hidden"], count, seed))
    foreign = [Query(captions, text) for text in absent if tuple(caption_words(text)) not in stored]
    plans = [
        Plan(seed, f"seed {seed}, all captions", library, complete),
        Plan(seed, f"seed {seed}, first captions", short, reworded),
        Plan(seed, f"seed {seed}, without {', '.join(left_out)}", rest, [*foreign, *remaining]),
    ]
    return [plan for plan in plans if plan.queries]


def compare_service(
    url: str,
    folders: Sequence[Path],
    *,
    seeds: int,
    queries: int,
    names: bool,
    only: Collection[str] = (),
    excluded: Collection[str] = (),
    report: Callable[[str], None] = lambda line: None,
) -> QueryResults:
    """Search a service's library, and BM25 over the captions and timed texts that it stores.

    Videos whose captions are in the folders, but not in the library, are hidden. Captions in new wording and domains
    left out need other libraries, so they are not measured. Arguments are those of :func:`compare_on_queries`.
    """
    with tempfile.TemporaryDirectory() as media, Client(url) as client:
        domains = read_domains(folders, Path(media), names=names, only=only, excluded=excluded)
        library = _match_videos(client, domains)
        results = QueryResults.empty(library, seeds, names=names)
        for seed in range(seeds):
            plan, *_ = plan_libraries(library, seed, queries)
            searches = (
                client.search(text, k=DEPTH, task=domain and [domain], moments=0)
                for text, domain in plan.questions
            )
            results.add(plan, list(map(to_answer, searches)), {})
            report(f"{plan.name}: {len(plan.videos)} videos, {len(plan.questions)} searches")
        return results


def _match_videos(client: Client, domains: Library) -> Library:
    """Replace the videos' IDs and stored captions by those of the service; videos that it lacks are left out."""
    library = {}
    for name, videos in domains.items():
        stored = {video.content_hash: video for video in client.iter_videos(task=name, status="accepted")}
        library[name] = [
            replace(
                video,
                id=row.id,
                stored=(*row.captions,),
                is_hidden=bool(video.captions) > bool(row.captions),
                timed=tuple((cue.source or "", cue.text) for cue in client.get_video(row.id).transcript),
            )
            for video in videos
            if (row := stored.get(content_hash(video.file)))
        ]
        if not library[name]:
            raise ProtocolError(f"the service has no video of domain {name!r}")
    return library
