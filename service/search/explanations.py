"""Explain searches: what the score of a result consists of, and which of a domain's captions do not find their video.

The recall matrix records only shares. A query report repeats a sample of these queries over the whole library with the
served release and keeps the first results. These searches ignore the words in captions and other texts, so that a
caption does not find itself. A domain whose captions are all learned is reported with its fold: the visual score of a
caption's own video is that of a solution without it. Routing still knows the caption.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, String, cast, func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.search import (
    FirstResultShare,
    MomentMatch,
    QueryOutcome,
    QueryReport,
    QueryWord,
    ResultExplanation,
    SearchQuery,
)
from index.arrays import Hit, batches
from index.errors import ShardStoreError
from index.files.manifest_format import task_of
from models.errors import ModelError
from models.releases.release_files import read_fold
from models.releases.release_state import MeasuredFold
from models.routing.confidence_model import DEFAULT_VISUAL_SCORE
from models.routing.routing_profiles import distinct_pieces
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.catalog.task_names import require_task
from service.core import request_limits
from service.core.errors import Conflict, InvalidInput
from service.core.media_urls import media_urls
from service.core.settings import Settings
from service.library.recall_matrix import newest_recall
from service.search.catalog_read_cache import CatalogReadCache, read_cues, read_rows
from service.search.search_request import SearchRequest, parse_requests
from service.search.single_flight_cache import SingleFlightCache
from service.search.snapshots.search_snapshot import SearchSnapshot, ShardScan
from service.search.text_search.answers import (
    build_results,
    compute_confidence,
    find_best_moments,
    list_routing,
)
from service.search.text_search.executor import UnknownTask, execute
from service.search.text_search.query_words import QueryWords
from service.search.video_search import load_stored_vector

_SHOWN_RESULTS = 3
_BATCH = 16  # captions per batch; other searches run in between
_MAX_CACHED_DOMAINS = 256
_MAX_WORDS = 64
_LISTED_TASKS = 8

MAX_SAMPLED_CAPTIONS = 128  # about a second of searches with the default backbone
# Captions that were not learned come first: learned ones rank better than a new query would.
_SPLITS = ("test", "val", "fold", "appended", "train")


def explain_result(
    snapshot: SearchSnapshot, cache: CatalogReadCache, video_id: str, request: SearchRequest
) -> ResultExplanation:
    """Break down the score that a search gives a video, whether or not it is among the first k results.

    Raises InvalidInput if the search excludes the video's domain, or as :func:`execute` and :func:`load_stored_vector`.
    """
    vector_id, task, _ = load_stored_vector(snapshot, video_id)
    (search,) = execute(snapshot, [request], cache)
    if task not in search.planner.prior_bonuses:
        raise InvalidInput.at(
            "task",
            f"The search does not include {snapshot.task_names[task]!r}, the video's domain.",
            "Add this domain, or leave the parameter out.",
        )
    hits = search.planner.hits
    compute_confidence(search, hits)
    ranked = [hit.id for hit in hits[: request.query.k]]
    bonus = float(search.planner.prior_bonuses[task])
    words = float(search.words.look_up(np.array([vector_id], np.int64))[0][0])
    visual = snapshot.lineages[task].visual_score
    (query,) = snapshot.query_vectors([(search.words.text, search.mode, task)])
    # The same scan that searches use.
    (scanned,) = snapshot.scan([ShardScan(task, query, 1, np.array([vector_id], np.int64), group=None)])
    if not len(scanned.scores):  # the shard broke since the vector was read
        raise snapshot.unavailable_error(task)
    video_cosine = float(scanned.scores[0])
    moments: list[MomentMatch] = []
    if snapshot.shards[task].has_moments:
        search.query_vectors = {task: query}
        hit, count = Hit(task, vector_id, 0.0), max(1, request.query.moments)
        moments = find_best_moments(search, [hit], count).get(vector_id, [])
    cosine = max([video_cosine, *(visual.cosines(moment.score - bonus - words) for moment in moments)])
    is_ranked, matching_hits = vector_id in ranked, search.matching_hits
    passage = search.words.passages.get(vector_id)
    timed = None if passage is None else read_cues([passage]).get(passage)
    texts = [
        text
        for row in read_rows([vector_id]).values()
        for text in search.words.matched_texts(vector_id, row, timed)
    ]
    return ResultExplanation(
        query=request.query.q,
        video_id=video_id,
        task=snapshot.task_names[task],
        task_id=task_of(task),
        release=snapshot.release_id,
        generation=snapshot.generation,
        mode=search.mode,
        rank=1 + ranked.index(vector_id) if is_ranked else None,
        depth=request.query.k,
        score=visual.log_odds(cosine) + bonus + words,
        cosine=cosine,
        video_cosine=video_cosine,
        visual_term=visual.log_odds(cosine),
        visual_weight=visual.weight,
        neutral_cosine=visual.neutral,
        is_fitted=visual is not DEFAULT_VISUAL_SCORE,
        routing_term=bonus,
        weight=math.exp(search.weights[task]),
        words_term=words,
        texts=texts,
        routing=list_routing(search, _LISTED_TASKS, [task]),
        confidence=search.probabilities.get(vector_id) if is_ranked else None,
        matches=None if matching_hits is None or not is_ranked else vector_id in matching_hits,
        moments=moments,
        words=_words(snapshot, search.words, vector_id, task, list(search.weights)),
    )


def _words(
    snapshot: SearchSnapshot, query: QueryWords, video: int, task: str, tasks: Sequence[str]
) -> list[QueryWord]:
    """List a query's words with their evidence for a video's task, from its routing profile."""
    indices = np.array([snapshot.router_indices[other] for other in tasks], np.int64)
    index = tasks.index(task)
    words = query.text.split()[:_MAX_WORDS]
    listed = []
    for word, pieces in zip(words, distinct_pieces(words), strict=True):
        evidence, coverage = snapshot.router.word_evidence(pieces, indices)
        is_covered = coverage >= 1  # without pieces, the coverage is 0
        listed.append(
            QueryWord(
                text=word,
                known=bool(is_covered[index]),
                in_texts=query.are_in_texts(video, word),
                domains=int(is_covered.sum()),
                evidence=float(evidence[index]) - float(evidence.mean()),
            )
        )
    return listed


class SampledCaption(NamedTuple):
    """A caption and the video that it describes."""

    text: str
    vector_id: int
    video_id: str


class CaptionSample(NamedTuple):
    """Captions from one split of a domain, and the number of its captioned videos; no split if none has a caption."""

    task_id: str
    task_name: str
    split: str | None
    videos: int
    captions: tuple[SampledCaption, ...]


class _Outcome(NamedTuple):
    """One searched caption: its video's rank and the first hits."""

    caption: SampledCaption
    rank: int | None
    domain_weight: float
    hits: Sequence[Hit]


class QueryReports:
    """Computes reports on domains' queries, and caches them per index generation. Thread-safe."""

    def __init__(self, settings: Settings, cache: CatalogReadCache) -> None:
        self._settings = settings
        self._read_cache = cache
        self._reports: SingleFlightCache[str, QueryReport] = SingleFlightCache(_MAX_CACHED_DOMAINS)

    def report(self, snapshot: SearchSnapshot, name_or_id: str, worst: int) -> QueryReport:
        """Report how a domain's own captions rank their videos, with at most ``worst`` of the worst queries.

        Raises UnknownTask if the snapshot lacks the domain, Unavailable, or as :func:`sample_captions`.
        """
        sample = sample_captions(name_or_id)
        task_id = sample.task_id
        if not sample.captions:
            return self._search(snapshot, sample, None)
        if task_id not in snapshot.task_names:
            raise UnknownTask(task_id, "task_id", list(snapshot.task_names.values())[:20])
        snapshot.require_searchable(task_id)
        fold: MeasuredFold | None = None
        if sample.split == "fold":  # its captions may have been edited since
            with suppress(ModelError, ShardStoreError):
                fold = read_fold(
                    snapshot.index_snapshot.release_folder(snapshot.shards[task_id].entry.release)
                )
            held = tuple(c for c in sample.captions if fold and fold.has_caption(c.vector_id, c.text))
            fold = fold if held else None
            sample = sample._replace(captions=held) if held else sample._replace(split="train")
        # Captions, and routing profiles with them, can change without a new generation.
        profiles = frozenset((task, profile.version) for task, profile in snapshot.appended_profiles.items())
        version = (snapshot.release_id, snapshot.generation, sample.captions, profiles)
        report = self._reports.get(task_id, version, lambda _: self._search(snapshot, sample, fold))
        measured = newest_recall(task_id)
        return report.model_copy(update={"worst": report.worst[:worst], "measured": measured})

    def _search(
        self, snapshot: SearchSnapshot, sample: CaptionSample, fold: MeasuredFold | None
    ) -> QueryReport:
        """Search with the captions of a sample, and report how they rank."""
        depth = request_limits.MAX_RESULTS if sample.captions else 0
        queries = [SearchQuery(q=caption.text, k=depth, moments=0) for caption in sample.captions]
        requests = parse_requests(queries, self._settings, is_batch=True)
        searches = [
            search
            for batch in batches(requests, _BATCH)
            for search in execute(snapshot, batch, self._read_cache, with_words=False)
        ]
        outcomes: list[_Outcome] = []
        for search, caption in zip(searches, sample.captions, strict=True):
            hits, planner, video = search.planner.hits, search.planner, caption.vector_id
            if fold is not None and sample.task_id in planner.searched:
                hits = [hit for hit in hits if hit.id != video]
                cosine = float(
                    fold.query_vectors(np.array([video]))[0] @ fold.video_vectors(np.array([video]))[0]
                )
                visual = snapshot.lineages[sample.task_id].visual_score
                score = visual.log_odds(cosine) + planner.prior_bonuses[sample.task_id]
                hits = sorted([*hits, Hit(sample.task_id, video, score)], key=planner.rank_key)
            rank = next((number for number, hit in enumerate(hits[:depth], 1) if hit.id == video), None)
            weight = math.exp(search.weights.get(sample.task_id, -math.inf))
            outcomes.append(_Outcome(caption, rank, weight, hits[:_SHOWN_RESULTS]))
        count = len(outcomes)

        def recall_at(k: int) -> float | None:
            return sum(outcome.rank in range(1, k + 1) for outcome in outcomes) / count if count else None

        first_tasks = Counter(task_of(outcome.hits[0].task) for outcome in outcomes if outcome.hits)
        failed = [outcome for outcome in outcomes if outcome.rank != 1]
        failed.sort(key=lambda outcome: (-(outcome.rank or math.inf), outcome.domain_weight))
        worst = failed[: request_limits.MAX_WORST_QUERIES]
        rows = read_rows({hit.id for outcome in worst for hit in outcome.hits})
        return QueryReport(
            task=sample.task_name,
            task_id=sample.task_id,
            release=snapshot.release_id,
            generation=snapshot.generation,
            mode=searches[0].mode if searches else None,
            split=sample.split,  # type: ignore[arg-type]
            held_out=sample.split == "test",
            queries=count,
            captions=sample.videos,
            depth=depth,
            recall_at_1=recall_at(1),
            recall_at_10=recall_at(10),
            measured={},
            first_results=[
                FirstResultShare(
                    task=snapshot.task_names[task], task_id=task, queries=queries, share=queries / count
                )
                for task, queries in first_tasks.most_common()
            ],
            worst=[
                QueryOutcome(
                    caption=outcome.caption.text,
                    video_id=outcome.caption.video_id,
                    thumbnail_url=media_urls(outcome.caption.video_id)[0],
                    rank=outcome.rank,
                    domain_weight=outcome.domain_weight,
                    results=build_results(outcome.hits, rows, snapshot),
                )
                for outcome in worst
            ],
        )


def sample_captions(name_or_id: str, limit: int = MAX_SAMPLED_CAPTIONS) -> CaptionSample:
    """Sample captions of a domain, cut to the maximum query length, from the first split that has any.

    Videos are ordered by content hash, so the sample does not depend on arrival order and is the same on every call.
    Each video contributes its first caption before any contributes a second.

    Raises NotFound, or Conflict if the task is an append or not learned.
    """
    with session_scope() as session:
        task = require_task(session, name_or_id)
        if task.target_id is not None:
            raise Conflict(f"Task {task.id!r} is an append; its videos belong to task {task.target_id!r}.")
        if task.state != "ready":
            raise Conflict(f"Task {task.name!r} is not learned yet: its state is {task.state!r}.")
        for split in _SPLITS:
            is_captioned = (
                (Video.task_id == task.id)
                & (Video.status == "accepted")
                & (Video.effective_split == split)
                & (cast(Video.captions, String) != "[]")  # as both databases store an empty list
            )
            videos = session.scalar(select(func.count()).select_from(Video).where(is_captioned)) or 0
            if captions := _read_captions(session, is_captioned, limit) if videos else ():
                return CaptionSample(task.id, task.name, split, videos, captions)
        return CaptionSample(task.id, task.name, None, 0, ())


def _read_captions(
    session: Session, condition: ColumnElement[bool], limit: int
) -> tuple[SampledCaption, ...]:
    rows = session.execute(
        select(Video.vector_id, Video.id, Video.captions)
        .where(condition)
        .order_by(Video.content_hash, Video.vector_id)
        .limit(limit)
    )
    by_video = [
        [
            SampledCaption(text, vector_id, video_id)
            for caption in captions
            if (text := caption[: request_limits.MAX_QUERY_CHARS].strip())
        ]
        for vector_id, video_id, captions in rows
    ]
    rounds = (caption for row in zip_longest(*by_video) for caption in row if caption is not None)
    return tuple(rounds)[:limit]
