"""Compare the product with its rivals on all kinds of queries, over several seeds.

A seed orders the domains and draws the queries. For each seed, three libraries are learned: with all
captions of the learned videos, with only their first captions, and without a quarter of the domains, whose captions are
unknown texts.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.clips.ridge_rival import RidgeSettings
from benchmarks.learning.task_preparation import Progress
from benchmarks.queries.library_videos import (
    Library,
    LibraryVideo,
    hide_videos,
    keep_first_captions,
    leave_out,
    read_domains,
)
from benchmarks.queries.query_kinds import Query, caption_queries, keyword_queries, library_words
from benchmarks.queries.query_rivals import (
    Bm25,
    FrozenFeatures,
    JointRidge,
    fuse,
    read_features,
    stored_text,
)
from benchmarks.queries.retyped_captions import retyped_queries
from benchmarks.queries.served_library import DEPTH, Answer, Question, ServedAnswers, serve
from benchmarks.queries.unknown_texts import SENTENCES, foreign_words, random_letters

PRODUCT, FULL_TEXT, FUSION, VISUAL, ZERO_SHOT, RIDGE = ROWS = (
    "product as served",
    "BM25",
    "RRF of BM25 and visual",
    "visual alone",
    "zero-shot",
    "joint ridge",
)
UNKNOWN_KINDS = ("random letters", "foreign words", "other sentences", "captions of domains left out")
_LIBRARIES_AT_A_TIME = 2


class Outcome(NamedTuple):
    """One query's values for one row, in percent.

    Attributes:
        row: Product or rival.
        gallery: ``all`` domains, or for a whole caption its ``own`` domain.
        values: Value by measure.
    """

    row: str
    gallery: str
    query: Query
    values: dict[str, float]


@dataclass
class QueryResults:
    """Outcomes of all seeds.

    Attributes:
        videos: Number of videos by domain.
        hidden: Number of hidden videos.
        names: Whether file names and metadata were stored.
        ridge: The ridge's settings in each seed.
    """

    videos: dict[str, int]
    hidden: int
    seeds: int
    names: bool
    ridge: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


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
    """Ingest the libraries for all seeds, and search them with all kinds of queries.

    Args:
        folders: Folders of domains; see :func:`~benchmarks.queries.library_videos.read_domains`.
        cache: Folder for decoded frames and frozen features.
        method: Name of the method; None: the backbone's default.
        queries: Maximum number of queries per kind and seed.
        uncaptioned: Share of the videos whose captions are hidden.
        names: Whether the product and BM25 see file names and metadata.
        only: Names of the domains to read; all by default.
        excluded: Names of domains to leave out.
        workers: Number of decoding processes.
        progress: Called with the numbers of decoded videos and of videos to decode.
        report: Called with a line that names the engine, and one per library.

    Raises:
        ProtocolError: A folder or a video cannot be used.
    """
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        media = work / "media"
        domains = read_domains(folders, media, names=names, only=only, excluded=excluded)
        first = hide_videos(domains, 0, uncaptioned)
        features = read_features(first, backbone, cache, workers=workers, progress=progress)
        report(f"{backbone} runs in {features.engine}")
        results = QueryResults(
            {name: len(videos) for name, videos in sorted(domains.items())},
            sum(video.is_hidden for videos in first.values() for video in videos),
            seeds,
            names,
        )
        plans = [
            plan
            for seed in range(seeds)
            for plan in _plan(hide_videos(domains, seed, uncaptioned), seed, queries)
        ]

        def answer(plan: _Plan) -> ServedAnswers:
            options = {"media": media, "cache": cache, "backbone": backbone, "method": method}
            texts = [query.text for query in plan.queries]
            folder = work / plan.name
            served = serve(
                plan.library,
                plan.questions,
                texts,
                folder=folder,
                **options,  # type: ignore[arg-type]
            )
            shutil.rmtree(folder)
            report(f"{plan.name}: {len(served.videos)} videos, {len(plan.questions)} searches")
            return served

        settings: dict[int, RidgeSettings] = {}
        with ThreadPoolExecutor(_LIBRARIES_AT_A_TIME) as pool:
            for plan, served in zip(plans, pool.map(answer, plans), strict=True):
                ridge = JointRidge(plan.library, features, settings.get(plan.seed))
                if plan.seed not in settings:
                    settings[plan.seed] = ridge.settings
                    results.ridge.append(str(ridge.settings))
                results.outcomes += _compare(plan, served, features, ridge, names)
        return results


@dataclass(frozen=True)
class _Plan:
    """A library and the queries to it."""

    seed: int
    name: str
    library: Library
    queries: list[Query]

    @property
    def questions(self) -> list[Question]:
        """Searches of all domains, then of single domains."""
        own = [Question(query.text, query.domain) for query in self.queries if query.is_caption]
        return [*(Question(query.text) for query in self.queries), *own]


def _plan(library: Library, seed: int, count: int) -> list[_Plan]:
    short = keep_first_captions(library)
    kept, left_out = leave_out(library, seed)
    letters, words, sentences, captions = UNKNOWN_KINDS
    unknown = {
        letters: random_letters(count, seed),
        words: foreign_words(library_words(library), count, seed),
        sentences: list(SENTENCES),
    }
    foreign = caption_queries(left_out, ["learned"], count, seed)
    plans = [
        _Plan(
            seed,
            f"seed {seed}, all captions",
            library,
            [
                *keyword_queries(library, count, random.Random(f"keywords {seed}")),
                *caption_queries(library, ["learned", "hidden"], count, seed),
                *retyped_queries(library, count, random.Random(f"retyped {seed}")),
                *(Query(kind, text) for kind, texts in unknown.items() for text in texts),
            ],
        ),
        _Plan(
            seed,
            f"seed {seed}, first captions",
            short,
            caption_queries(short, ["new wording", "long description"], count, seed),
        ),
        _Plan(
            seed,
            f"seed {seed}, without {', '.join(left_out)}",
            kept,
            [Query(captions, text) for text in dict.fromkeys(query.text for query in foreign)],
        ),
    ]
    return [plan for plan in plans if plan.queries]


def _compare(
    plan: _Plan, served: ServedAnswers, features: FrozenFeatures, ridge: JointRidge, names: bool
) -> list[Outcome]:
    """Compute all rows' outcomes for a library's queries."""
    videos = [video for part in plan.library.values() for video in part]
    texts = [query.text for query in plan.queries]
    columns = {video: column for column, video in enumerate(served.videos)}
    visual = served.visual[:, [columns[video.id] for video in videos]]
    bm25 = Bm25([stored_text(video, with_names=names) for video in videos])
    vectors = np.concatenate([features.vectors[name] for name in plan.library])
    scores = {
        FULL_TEXT: np.stack([bm25(text) for text in texts]),
        VISUAL: visual,
        ZERO_SHOT: features.encode(texts) @ vectors.T,
        RIDGE: ridge(texts),
    }
    own_answers = iter(served.answers[len(texts) :])
    ties = np.random.default_rng(plan.seed).permutation(len(videos))
    outcomes = []
    for number, query in enumerate(plan.queries):
        answers = {("all", PRODUCT): served.answers[number]}
        if query.is_caption:
            answers["own", PRODUCT] = next(own_answers)
        for gallery in [gallery for gallery, _ in answers]:
            inside = np.array([gallery == "all" or video.domain == query.domain for video in videos])
            listed = {row: np.where(inside, part[number], -np.inf) for row, part in scores.items()}
            listed[FUSION] = fuse(listed[FULL_TEXT], listed[VISUAL])
            for row, part in listed.items():
                answers[gallery, row] = _rival_answer(part, ties, videos, is_full_text=row == FULL_TEXT)
        outcomes += [
            Outcome(row, gallery, query, _values(query, answer)) for (gallery, row), answer in answers.items()
        ]
    return outcomes


def _rival_answer(
    scores: npt.NDArray[np.floating],
    ties: npt.NDArray[np.int64],
    videos: Sequence[LibraryVideo],
    *,
    is_full_text: bool,
) -> Answer:
    """Rank the first results by score, equal ones at random; full-text search finds nothing without a word."""
    order = np.lexsort((ties, -scores))[:DEPTH]
    top = [videos[row].id for row in order if scores[row] > -np.inf]
    return Answer(top, bool(top) if is_full_text else None)


def _values(query: Query, answer: Answer) -> dict[str, float]:
    values: dict[str, float] = {}
    if query.right and query.needs_one:
        values |= {f"R@{k}": 100.0 * bool(query.right & set(answer.top[:k])) for k in (1, DEPTH)}
    elif query.right:
        places = min(DEPTH, query.stored)
        values["P@min(10, R)"] = 100.0 * sum(video in query.right for video in answer.top[:places]) / places
        if query.domain is not None and answer.first_route is not None:
            values["routed"] = 100.0 * (answer.first_route == query.domain)
    if answer.matches is not None:
        values["matches" if query.right else "refused"] = 100.0 * (answer.matches == bool(query.right))
    return values
