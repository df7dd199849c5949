"""Ingest a library with the workers' code and search it: ``python -m benchmarks.queries.served_library FOLDER``.

The command runs in its own process, because a library's settings are those of its process. It reads FOLDER/library.json
and writes FOLDER/answers.json and FOLDER/scores.npy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
    folder: Path,
    media: Path,
    cache: Path,
    backbone: str,
    method: str | None = None,
    backbones: Mapping[str, str] | None = None,
) -> ServedAnswers:
    """Ingest a library in a process of its own, and search it; raise ProtocolError if a domain cannot be learned.

    ``backbones`` are those of domains that have another one.
    """
    specification = {
        "domains": {
            name: [
                {
                    "id": video.id,
                    "uri": video.uri,
                    "captions": video.stored,
                    "split": "train" if video.stored else None,
                    "metadata": video.metadata or None,
                }
                for video in videos
            ]
            for name, videos in library.items()
        },
        "questions": questions,
        "texts": texts,
        "cache": str(cache.absolute()),
        "method": method,
        "backbones": dict.fromkeys(library, backbone) | dict(backbones or {}),
    }
    folder.mkdir(parents=True)
    (folder / "library.json").write_text(json.dumps(specification))
    # Another library's settings, such as its database, must not reach this one.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
    environment = {
        **inherited,
        "CINESTRATA_DATA_DIR": str(folder / "data"),
        "CINESTRATA_MEDIA_ROOT": str(media),
        "CINESTRATA_BACKBONE": backbone,
        "CINESTRATA_TORCH_THREADS": "1",
    }
    command = [sys.executable, "-P", "-m", "benchmarks.queries.served_library", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProtocolError(f"the library cannot be ingested: {done.stderr.strip()[-2000:]}")
    stored = json.loads((folder / "answers.json").read_text())
    answers = [Answer(**answer) for answer in stored["answers"]]
    return ServedAnswers(answers, stored["videos"], *np.load(folder / "scores.npy"))


def _ingest(
    domains: Mapping[str, Sequence[Mapping[str, Any]]],
    method: str | None,
    backbones: Mapping[str, str],
    cache: Path,
) -> None:
    """Learn the domains in order with the workers' jobs."""
    upgrade(settings())
    for backbone in dict.fromkeys(backbones.values()):
        remember_outputs(load_worker_backbone(backbone, settings().frames, settings().torch_threads), cache)
    for name, videos in domains.items():
        specification = {"name": name, "method": method, "backbone": backbones[name], "videos": videos}
        task = commands.create_task(TaskSpec.model_validate(specification)).task
        probe(task.id)
        run_learning_job(task.id)
        task = commands.get_task(task.id)
        if task.state != "ready" or task.counts.rejected:
            raise ProtocolError(f"domain {name!r} is {task.state}: {task.error}")


def _search(engine: SearchEngine, questions: Sequence[Question]) -> list[Answer]:
    answers: list[Answer] = []
    for batch in batches(questions, MAX_BATCH_QUERIES):
        queries = [SearchQuery(q=text, k=DEPTH, task=domain, moments=0) for text, domain in batch]
        answers += map(to_answer, engine.search_many(queries))
    return answers


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
            start_searches(snapshot, requests, engine.metadata_cache, with_words=with_words)
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


def main(folder: Path) -> None:
    """Ingest the library in a folder, and write its answers."""
    specification = json.loads((folder / "library.json").read_text())
    configure_logging("console", "ERROR")
    _ingest(
        specification["domains"],
        specification["method"],
        specification["backbones"],
        Path(specification["cache"]),
    )
    engine = SearchEngine()
    engine.snapshots.refresh()
    answers = _search(engine, [Question(*question) for question in specification["questions"]])
    with session_scope() as session:
        videos = dict(session.execute(select(Video.vector_id, Video.id)).all())
    columns = {vector_id: column for column, vector_id in enumerate(videos)}
    scores = _score(engine, specification["texts"], columns)
    engine.close()
    np.save(folder / "scores.npy", scores)
    stored = {"answers": [answer._asdict() for answer in answers], "videos": list(videos.values())}
    (folder / "answers.json").write_text(json.dumps(stored))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
