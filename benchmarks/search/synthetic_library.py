"""Synthetic libraries of any size, created without training: the cost of a search does not depend on weights.

All data structures that a search uses are real: shards, one pinned release per task with low-rank updates and token
updates, routing profiles and catalog rows. Only the numbers are random. Each task has fifty words of its own and a
hundred in common with all tasks; a caption mixes both. The task's query encoder encodes its captions, and video vectors
are placed around the results: one target video per caption at a cosine of about 0.9, all others at about 0.35, so that
a search finds its target.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog
import torch
from sqlalchemy import text

from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.backbones.tokenizer import small_tokenizer
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.families.low_rank_family import LOW_RANK_FAMILY
from models.encoders.tower_query_backbone import unpad
from models.releases.release_files import write_release
from models.releases.release_lineage import ParentRelease, ReleaseTask
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import to_arrays
from models.routing.routing_profiles import RoutingProfiles
from models.routing.token_statistics import token_presence, token_profile
from service.catalog.database import session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import Task
from service.core.settings import Settings, settings

_TASK_WORDS, _COMMON_WORDS = 50, 100
_RANK = 16
_CONTEXT = 77
_TARGET_COSINE, _OTHER_COSINE = 0.9, 0.35  # cosines of videos with captions

Rng = np.random.Generator
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TargetedQuery:
    """A query and its target video's vector ID."""

    text: str
    target: int


@dataclass(frozen=True)
class SyntheticLibrary:
    """A library on disk.

    Attributes:
        settings: Settings for a search engine on the library.
        vectors: Number of vectors over all tasks.
        queries: Distinct queries in random order.
    """

    settings: Settings
    tasks: int
    vectors: int
    queries: list[TargetedQuery]


def prepare_catalog(folder: Path, backbone: str | None = None) -> None:
    """Create the catalog that the libraries of this process share, in a data folder, and silence the log."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"CINESTRATA_DATA_DIR": str(folder), "CINESTRATA_LOG_LEVEL": "ERROR"}
    if backbone is not None:
        os.environ["CINESTRATA_BACKBONE"] = backbone
    settings.cache_clear()
    upgrade(settings())


def whole_words(backbone: Backbone) -> list[str]:
    """List the whole words in a backbone's vocabulary that have four letters or more."""
    encoder = small_tokenizer(backbone.vocabulary, _CONTEXT).encoder
    words = (token.removesuffix("</w>") for token in encoder if token.endswith("</w>"))
    return sorted(word for word in words if len(word) >= 4 and word.isascii() and word.isalpha())


def make_library(
    folder: Path,
    backbone: Backbone,
    *,
    tasks: int,
    vectors: int,
    captions: int,
    first_id: int = 1,
    seed: int = 0,
) -> SyntheticLibrary:
    """Write a library of ``vectors`` videos in ``tasks`` tasks of equal size.

    Args:
        captions: Approximate number of target videos; at least eight per task.
        first_id: First vector ID; libraries in one catalog must not share IDs.
    """
    rng = np.random.default_rng(seed)
    common, *domains = _vocabularies(whole_words(backbone), tasks, rng)
    store = ShardStore(folder / "index")
    learned: list[ReleaseTask] = []
    profiles = RoutingProfiles.from_dense(np.empty((0, backbone.vocabulary), np.float32))
    queries: list[TargetedQuery] = []
    next_id = first_id
    parent: ParentRelease | None = None
    for number, task_words in enumerate(domains):
        rows = vectors // tasks + (number < vectors % tasks)
        task = ReleaseTask(f"{folder.name}-{number}", f"{folder.name} {number}", f"{number:064x}")
        learned.append(task)
        texts = _captions(task_words, common, min(rows, max(8, -(-captions // tasks))), rng)
        profiles = RoutingProfiles.concatenate([profiles, _profile(backbone, texts)])
        state = _release(backbone, learned, profiles, texts, seed + number)
        alone = replace(state, tasks=[task])
        encoder = open_query_encoder(backbone, alone, {task.task_id: alone})
        around = encoder.encode(texts, [task.task_id], "pinned")[:, 0]
        parent = publish_domain(store, state, next_id, _videos(around, rows, rng), parent)
        queries += [TargetedQuery(caption, next_id + index) for index, caption in enumerate(texts)]
        # Every video has a caption; those of the target videos are the queries.
        others = _captions(task_words, common, rows - len(texts), rng)
        insert_catalog_rows(task, next_id, rows, captions=[*texts, *others])
        next_id += rows
    order = rng.permutation(len(queries))
    return SyntheticLibrary(
        settings=settings().model_copy(update={"data_dir": folder, "backbone": backbone.name}),
        tasks=tasks,
        vectors=vectors,
        queries=[queries[index] for index in order],
    )


def publish_domain(
    store: ShardStore, state: ReleaseState, first_id: int, vectors: Vectors, parent: ParentRelease | None
) -> ParentRelease:
    """Publish a release and the shard of its newest domain.

    Returns:
        The parent of the next release.
    """
    with store.staging() as staged:
        write_release(staged, state, parent=parent)
        release = store.adopt_release(staged)
    shard = store.write_shard(
        task=state.tasks[-1].task_id,
        release=release.id,
        fingerprint=state.fingerprint,
        ids=np.arange(first_id, first_id + len(vectors)),
        vectors=vectors,
    )
    store.publish(release=release, shards=[shard])
    return ParentRelease(release.id, len(state.tasks))


def _vocabularies(words: Sequence[str], tasks: int, rng: Rng) -> list[list[str]]:
    """Draw the common words, followed by each task's words."""
    shuffled = [words[index] for index in rng.permutation(len(words))]
    common, rest = shuffled[:_COMMON_WORDS], shuffled[_COMMON_WORDS:]
    return [
        common,
        *([rest[index] for index in rng.choice(len(rest), _TASK_WORDS, replace=False)] for _ in range(tasks)),
    ]


def _captions(task_words: Sequence[str], common: Sequence[str], count: int, rng: Rng) -> list[str]:
    """Draw distinct captions of three words from the task and five common words."""
    captions: dict[str, None] = {}
    while len(captions) < count:
        words = [*rng.choice(task_words, 3), *rng.choice(common, 5)]
        captions[" ".join(words[index] for index in rng.permutation(8))] = None
    return list(captions)


def _profile(backbone: Backbone, captions: Sequence[str]) -> RoutingProfiles:
    ids = backbone.tokenize(captions)
    presence = token_presence(unpad(ids, backbone.end_of_text(ids)), backbone.vocabulary)
    return RoutingProfiles.from_dense(token_profile(presence.sum(axis=0))[None])


def _release(
    backbone: Backbone,
    learned: Sequence[ReleaseTask],
    profiles: RoutingProfiles,
    captions: Sequence[str],
    seed: int,
) -> ReleaseState:
    """Build a ``low_rank`` release with random updates that change a vector about as much as learned ones."""
    drawn = torch.Generator().manual_seed(seed)
    layers, width = len(backbone.text_blocks), backbone.text_width
    tokens = backbone.tokenize(captions).unique()
    tensors = {
        "text.a": torch.randn(layers, 4, _RANK, width, generator=drawn) / math.sqrt(width),
        "text.b": torch.randn(layers, 4, width, _RANK, generator=drawn) / (10 * math.sqrt(_RANK)),
        "text.tokens": tokens,
        "text.words": torch.randn(len(tokens), width, generator=drawn) / 100,
    }
    return ReleaseState(
        method="strata",
        kind=LOW_RANK_FAMILY.kind,
        backbone=backbone.name,
        backbone_fingerprint=backbone.fingerprint,
        fingerprint=learned[-1].fingerprint,
        frames=backbone.spec.frames,
        tasks=list(learned),
        config={"scale": 1.0},
        profiles=profiles,
        tensors=to_arrays(tensors),
    )


def _videos(captions: Vectors, rows: int, rng: Rng) -> Vectors:
    """Draw unit vectors: first each caption's target video, then more videos around all captions."""
    center = np.resize(np.arange(len(captions)), rows)
    is_target = np.arange(rows) < len(captions)
    cosine = np.where(is_target, _TARGET_COSINE, _OTHER_COSINE).astype(np.float32)[:, None]
    noise = rng.standard_normal((rows, captions.shape[1]), np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    videos = cosine * captions[center] + np.sqrt(1 - cosine**2) * noise
    return np.asarray(videos / np.linalg.norm(videos, axis=1, keepdims=True), np.float32)


def insert_catalog_rows(
    task: ReleaseTask, first_id: int, rows: int, method: str = "strata", captions: Sequence[str] = ()
) -> None:
    """Insert a task in state ``ready``, and its videos, into the catalog.

    Args:
        first_id: First vector ID of the videos.
        captions: Captions of the first videos, "" for none; all others have the same one.
    """
    with session_scope(write=True) as session:
        place = session.execute(text("SELECT COALESCE(MAX(position), 0) + 1 FROM tasks")).scalar_one()
        session.add(
            Task(
                id=task.task_id,
                name=task.name,
                position=place,
                method=method,
                state="ready",
                learned_order=place,
                created_at=datetime.now(UTC),
            )
        )
        session.flush()
        # One SQL statement: creating a million ORM objects would take longer than the whole benchmark.
        session.execute(
            text(
                "INSERT INTO videos "
                "(vector_id, id, task_id, uri, captions, metadata, added_at, status, is_rejection_final) "
                "WITH RECURSIVE numbers(i) AS "
                "(SELECT CAST(:first AS BIGINT) UNION ALL SELECT i + 1 FROM numbers WHERE i < :last) "
                "SELECT i, 'v' || i, :task, i || '.mp4', '[\"a caption\"]', '{}', :now, 'accepted', FALSE FROM numbers"
            ),
            {"first": first_id, "last": first_id + rows - 1, "task": task.task_id, "now": datetime.now(UTC)},
        )
        if captions:
            session.execute(
                text("UPDATE videos SET captions = :captions WHERE vector_id = :id"),
                [
                    {"captions": json.dumps([caption] if caption else []), "id": first_id + place}
                    for place, caption in enumerate(captions)
                ],
            )
