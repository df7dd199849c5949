"""Ingest a library with the workers' code, and search it, in a process whose settings are those of the library."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from benchmarks.errors import ProtocolError
from benchmarks.learning.sequential_learning import remember_outputs
from benchmarks.queries.library_videos import Library
from cinestrata_schemas.search import MAX_BATCH_QUERIES, SearchQuery, SearchResponse
from cinestrata_schemas.tasks import TaskSpec
from index.arrays import batches
from service.catalog.database import session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import Video
from service.celery_worker import probe
from service.core.process_setup import configure_logging
from service.core.settings import settings
from service.search.engine import SearchEngine
from service.search.search_request import parse_requests
from service.search.snapshots.search_snapshot import ShardScan
from service.search.text_search.executor import start_searches
from service.tasks import commands
from trainer.worker.job_environment import load_worker_backbone
from trainer.worker.learning_job import run_learning_job

DEPTH = 10  # results per search

Scores = npt.NDArray[np.float32]


class Question(NamedTuple):
    """A text to search the library for; ``domain`` limits the search to one domain."""

    text: str
    domain: str | None = None


class Answer(NamedTuple):
    """First results of a search, whether a video matches if it says so, and its confidence or a rival's best score."""

    top: list[str]
    matches: bool | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class ServedAnswers:
    """A library's answers, the IDs of its N videos, and their scores for each of Q texts."""

    answers: list[Answer]
    videos: list[str]
    visual: Scores  # [Q, N], without words: cosine plus routing term
    words: Scores  # [Q, N], without visual scores: evidence of words and routing, as log-odds


def serve(
    library: Library,
    questions: Sequence[Question],
    texts: Sequence[str],
    *,
    media: Path,
    cache: Path,
    backbone: str,
    method: str | None = None,
    backbones: Mapping[str, str] | None = None,
) -> ServedAnswers:
    """Ingest a library in a process of its own, and search it; raise ProtocolError if a domain cannot be learned.

    ``backbones`` are those of domains that have another one.
    """
    # Another library's settings, such as its database, must not reach this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
    environment |= {
        "CINESTRATA_MEDIA_ROOT": str(media),
        "CINESTRATA_BACKBONE": backbone,
        "CINESTRATA_TORCH_THREADS": "1",
    }
    learned_with = dict.fromkeys(library, backbone) | dict(backbones or {})
    with tempfile.TemporaryDirectory() as data:
        environment["CINESTRATA_DATA_DIR"] = data
        with ProcessPoolExecutor(1, get_context("spawn"), _replace_environment, (environment,)) as process:
            arguments = library, questions, texts, cache.absolute(), method, learned_with
            try:
                return process.submit(_answer, *arguments).result()
            except ProtocolError:
                raise
            except Exception as error:
                raise ProtocolError(f"the library cannot be ingested: {error}") from error


def _replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ |= environment


def _answer(
    library: Library,
    questions: Sequence[Question],
    texts: Sequence[str],
    cache: Path,
    method: str | None,
    backbones: Mapping[str, str],
) -> ServedAnswers:
    """Learn the domains in order with the workers' jobs, and search them."""
    configure_logging("console", "ERROR")
    upgrade(settings())
    for backbone in dict.fromkeys(backbones.values()):
        remember_outputs(load_worker_backbone(backbone, settings().frames, settings().torch_threads), cache)
    for name, videos in library.items():
        entries = [
            {
                "id": video.id,
                "uri": video.uri,
                "captions": video.stored,
                "split": "train" if video.stored else None,
                "metadata": video.metadata or None,
            }
            for video in videos
        ]
        specification = {"name": name, "method": method, "backbone": backbones[name], "videos": entries}
        task = commands.create_task(TaskSpec.model_validate(specification)).task
        probe(task.id)
        run_learning_job(task.id)
        task = commands.get_task(task.id)
        if task.state != "ready" or task.counts.rejected:
            raise ProtocolError(f"domain {name!r} is {task.state}: {task.error}")
    engine = SearchEngine()
    engine.snapshots.refresh()
    answers: list[Answer] = []
    for batch in batches(questions, MAX_BATCH_QUERIES):
        queries = [SearchQuery(q=text, k=DEPTH, task=domain, moments=0) for text, domain in batch]
        answers += map(to_answer, engine.search_many(queries))
    with session_scope() as session:
        ids = dict(session.execute(select(Video.vector_id, Video.id)).all())
    scores = _score(engine, texts, {vector_id: column for column, vector_id in enumerate(ids)})
    engine.close()
    return ServedAnswers(answers, list(ids.values()), *scores)


def to_answer(response: SearchResponse) -> Answer:
    """Keep what the benchmark needs from a response."""
    top = [result.video_id for result in response.results]
    return Answer(top, response.matches, response.confidence)


def _score(engine: SearchEngine, texts: Sequence[str], rows: Mapping[int, int]) -> Scores:
    """Score all videos for each text, ``[2, Q, N]``: without words, and without visual scores; rows: their columns."""
    snapshot = engine.snapshots.current()
    scores = np.full((2, len(texts), len(rows)), -np.inf, np.float32)
    for start, batch in zip(range(0, len(texts), 64), batches(texts, 64), strict=True):
        requests = parse_requests([SearchQuery(q=text) for text in batch], engine.settings)
        plain, wordy = (
            start_searches(snapshot, requests, engine.read_cache, with_words=with_words)
            for with_words in (False, True)
        )
        pairs = [(row, task) for row in range(len(batch)) for task in snapshot.nonempty_tasks]
        vectors = snapshot.query_vectors([(batch[row], snapshot.served_mode, task) for row, task in pairs])
        scans = [
            ShardScan(task, vector, snapshot.shards[task].count)
            for (_, task), vector in zip(pairs, vectors, strict=True)
        ]
        for (row, task), hits in zip(pairs, snapshot.scan(scans), strict=True):
            columns = [rows[vector_id] for vector_id in hits.ids.tolist()]
            visual, words = (
                snapshot.lineages[task].visual_score.log_odds(hits.scores),
                wordy[row].words.look_up(hits.ids)[0],
            )
            scores[0, start + row, columns] = visual + plain[row].planner.prior_bonuses[task]
            scores[1, start + row, columns] = words + wordy[row].planner.prior_bonuses[task]
    return scores
