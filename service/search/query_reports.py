"""Query reports: which of a domain's captions do not find their video, and what they find instead.

The recall matrix records only shares. A report repeats a sample of these queries over the whole library with the served
release and keeps the first results. These searches ignore the words in captions and other texts, so that a caption
does not find itself.

A domain whose captions are all learned is reported with its fold: the visual score of a caption's own video is that of
a solution without it. Routing still knows the caption.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from sqlalchemy import ColumnElement, String, cast, func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import QueryMode
from cinestrata_schemas.search import FirstResultShare, QueryOutcome, QueryReport, SearchQuery
from index.arrays import batches
from index.errors import ShardStoreError
from index.hits import Hit
from models.errors import ModelError
from models.releases.release_state import MeasuredFold, read_fold
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.catalog.task_names import require_task
from service.core import request_limits
from service.core.errors import Conflict
from service.core.settings import Settings
from service.library.recall_matrix import newest_recall
from service.library.video_listing import thumbnail_url
from service.search.catalog_read_cache import read_rows
from service.search.errors import UnknownTask
from service.search.search_request import parse_requests
from service.search.single_flight_cache import SingleFlightCache
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search.executor import TextSearch, execute
from service.search.text_search.search_responses import build_results
from service.search.video_metadata_cache import VideoMetadataCache

_SHOWN_RESULTS = 3
_BATCH = 16  # captions per batch; other searches run in between
_MAX_CACHED_DOMAINS = 256

MAX_SAMPLED_CAPTIONS = 128  # about a second of searches with the default backbone
# Captions that were not learned come first: learned ones rank better than a new query would.
_SPLITS = ("test", "val", "fold", "appended", "train")


class _Outcome(NamedTuple):
    """One searched caption: its video's rank and the first hits."""

    caption: SampledCaption
    mode: QueryMode
    rank: int | None
    domain_weight: float
    hits: Sequence[Hit]


class QueryReports:
    """Computes reports on domains' queries, and caches them per index generation. Thread-safe.

    Args:
        cache: Source of metadata for searches.
    """

    def __init__(self, settings: Settings, cache: VideoMetadataCache) -> None:
        self._settings = settings
        self._metadata = cache
        self._reports: SingleFlightCache[str, QueryReport] = SingleFlightCache(_MAX_CACHED_DOMAINS)

    def report(self, snapshot: SearchSnapshot, name_or_id: str, worst: int) -> QueryReport:
        """Report how a domain's own captions rank their videos.

        Args:
            worst: Maximum number of worst queries.

        Raises:
            NotFound: There is no such task.
            Conflict: The task is an append, or is not learned.
            UnknownTask: The snapshot does not contain the task.
            Unavailable: The task's shard cannot be searched.
        """
        sample = sample_captions(name_or_id)
        task_id = sample.task_id
        if not sample.captions:
            return _report(snapshot, sample, [], depth=0)
        if task_id not in snapshot.task_names:
            raise UnknownTask(task_id, "task_id", list(snapshot.task_names.values())[:20])
        snapshot.require_searchable(task_id)
        fold = _read_fold(snapshot, task_id) if sample.split == "fold" else None
        if sample.split == "fold":  # its captions may have been edited since
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
        depth = request_limits.MAX_RESULTS
        queries = [SearchQuery(q=caption.text, k=depth, moments=0) for caption in sample.captions]
        requests = parse_requests(queries, self._settings, is_batch=True)
        outcomes = [
            _outcome(search, caption, task_id=sample.task_id, depth=depth, fold=fold)
            for batch in batches(list(zip(requests, sample.captions, strict=True)), _BATCH)
            for search, (_, caption) in zip(
                execute(snapshot, [request for request, _ in batch], self._metadata, with_words=False),
                batch,
                strict=True,
            )
        ]
        return _report(snapshot, sample, outcomes, depth)


def _read_fold(snapshot: SearchSnapshot, task_id: str) -> MeasuredFold | None:
    """Read the fold of the release that made a task's shard; None without a readable one."""
    try:
        return read_fold(snapshot.index_snapshot.release_folder(snapshot.shard_releases[task_id]))
    except (ModelError, ShardStoreError):
        return None


def _outcome(
    search: TextSearch, caption: SampledCaption, task_id: str, depth: int, fold: MeasuredFold | None
) -> _Outcome:
    hits, planner = search.planner.hits(), search.planner
    if fold is not None and task_id in planner.searched:
        hits = [hit for hit in hits if hit.id != caption.vector_id]
        video = np.array([caption.vector_id])
        cosine = float(fold.query_vectors(video)[0] @ fold.video_vectors(video)[0])
        score = search.snapshot.visual_score.nats(cosine)
        described = planner.with_bonus(Hit(task_id, caption.vector_id, score))
        hits = sorted([*hits, described], key=planner.rank_key)
    hits = hits[:depth]
    rank = next((place for place, hit in enumerate(hits, 1) if hit.id == caption.vector_id), None)
    weight = math.exp(search.routing.weights.get(task_id, -math.inf))
    return _Outcome(caption, search.mode, rank, weight, hits[:_SHOWN_RESULTS])


def _report(
    snapshot: SearchSnapshot, sample: CaptionSample, outcomes: Sequence[_Outcome], depth: int
) -> QueryReport:
    count, ranks = len(outcomes), [outcome.rank for outcome in outcomes]
    first_tasks = Counter(outcome.hits[0].task for outcome in outcomes if outcome.hits)
    failed = [outcome for outcome in outcomes if outcome.rank != 1]
    failed.sort(key=lambda outcome: (-(outcome.rank or math.inf), outcome.domain_weight))
    worst = failed[: request_limits.MAX_WORST_QUERIES]
    rows = read_rows({hit.id for outcome in worst for hit in outcome.hits})
    return QueryReport(
        task=sample.task_name,
        task_id=sample.task_id,
        release=snapshot.release_id,
        generation=snapshot.generation,
        mode=outcomes[0].mode if outcomes else None,
        split=sample.split,  # type: ignore[arg-type]
        held_out=sample.split == "test",
        queries=count,
        captions=sample.videos,
        depth=depth,
        recall_at_1=_share_within(ranks, 1),
        recall_at_10=_share_within(ranks, 10),
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
                thumbnail_url=thumbnail_url(outcome.caption.video_id),
                rank=outcome.rank,
                domain_weight=outcome.domain_weight,
                results=build_results(outcome.hits, rows, snapshot),
            )
            for outcome in worst
        ],
    )


def _share_within(ranks: Sequence[int | None], k: int) -> float | None:
    return sum(rank is not None and rank <= k for rank in ranks) / len(ranks) if ranks else None


class SampledCaption(NamedTuple):
    """A caption and the video that it describes."""

    text: str
    vector_id: int
    video_id: str


class CaptionSample(NamedTuple):
    """Captions from one split of a domain.

    Attributes:
        split: Split of the videos; None if no video of the domain has a caption.
        videos: Number of captioned videos in the split.
    """

    task_id: str
    task_name: str
    split: str | None
    videos: int
    captions: tuple[SampledCaption, ...]


def sample_captions(name_or_id: str, limit: int = MAX_SAMPLED_CAPTIONS) -> CaptionSample:
    """Sample up to ``limit`` captions of a domain, from the first split that has any.

    Videos are ordered by content hash, so the sample does not depend on arrival order and is the same on every call.
    Each video contributes its first caption before any contributes a second.

    Raises:
        NotFound: There is no such task.
        Conflict: The task is an append, or is not learned.
    """
    with session_scope() as session:
        task = require_task(session, name_or_id)
        if task.target_id is not None:
            raise Conflict(f"Task {task.id!r} is an append; its videos belong to task {task.target_id!r}.")
        if task.state != "ready":
            raise Conflict(f"Task {task.name!r} is not learned yet: its state is {task.state!r}.")
        for split in _SPLITS:
            condition = _captioned(task.id, split)
            videos = session.scalar(select(func.count()).select_from(Video).where(condition)) or 0
            if captions := _read_captions(session, condition, limit) if videos else ():
                return CaptionSample(task.id, task.name, split, videos, captions)
        return CaptionSample(task.id, task.name, None, 0, ())


def _captioned(task_id: str, split: str) -> ColumnElement[bool]:
    # An empty caption list is stored as the text "[]" in both databases.
    return (
        (Video.task_id == task_id)
        & (Video.status == "accepted")
        & (Video.effective_split == split)
        & (cast(Video.captions, String) != "[]")
    )


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
        [SampledCaption(text, vector_id, video_id) for text in map(_query_text, captions) if text]
        for vector_id, video_id, captions in rows
    ]
    rounds = (caption for row in zip_longest(*by_video) for caption in row if caption is not None)
    return tuple(rounds)[:limit]


def _query_text(caption: str) -> str:
    """Cut a caption to the maximum query length."""
    return caption[: request_limits.MAX_QUERY_CHARS].strip()
