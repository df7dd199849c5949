"""Synthetic libraries of the analytic method, of any size, whose domains share words as real captions do.

All data structures that a search uses are real: shards, one pinned release per task, routing profiles and catalog rows.
All domains draw words from one vocabulary with Zipf weights; each prefers some of them and has a few words of its own.
The preference is set so that, among a hundred domains, routing finds the domain of 45 % of the queries, as on the
published captions of MSR-VTT. Text vectors, query maps, lexicons and routing evidence are those that the method
computes from the captions; queries are other captions. A video vector mixes two caption vectors and noise, so that a
domain contains videos that resemble the target.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import structlog
import torch
from sqlalchemy import func, insert, select

from index.shard_store import ShardStore
from models.adapters.analytic_maps import AnalyticMapSet, AnalyticQueryMap, VectorLayout, normalize_rows
from models.backbones.backbone import Backbone
from models.backbones.open_clip_backbone import small_tokenizer
from models.backbones.query_backbone import Vectors
from models.encoders.frozen_families import ANALYTIC_FAMILY
from models.encoders.tower_query_backbone import TowerQueryBackbone
from models.releases.release_files import write_release
from models.releases.release_state import ParentRelease, ReleaseState, ReleaseTask
from models.routing.router import CaptionScatter
from models.routing.routing_profiles import (
    VOCABULARY,
    RoutingProfiles,
    count_pieces,
    distinct_pieces,
    split_pieces,
    token_profile,
)
from service.catalog.database import session_scope
from service.catalog.migrations import upgrade
from service.catalog.tables import Task, Video
from service.core.settings import Settings, settings
from trainer.methods.analytic import AnalyticConfig, build_query_map
from trainer.methods.shared.closed_form import build_lexicon

_CONTEXT = 77
_SHARED_WORDS, _OWN_WORDS = 800, 10
_PREFERENCE = 1.3  # standard deviation of a word's log weight between domains
_OWN_SHARE = 0.05  # of a caption's words
_WORDS = 8  # per caption
_CAPTIONS = 20  # per domain, from which the maps are computed
# Weights of the target caption, of another caption in the domain, and of noise, in a video's vector.
_TARGET, _OTHER, _NOISE = 0.5, 0.55, 0.8

Rng = np.random.Generator


@dataclass(frozen=True)
class TargetedQuery:
    """A query and its target video's vector ID."""

    text: str
    target: int


@dataclass(frozen=True)
class SyntheticLibrary:
    """A library on disk."""

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


def _whole_words(backbone: Backbone) -> list[str]:
    """List the whole words in a backbone's vocabulary that have four letters or more."""
    encoder = small_tokenizer(backbone.vocabulary, _CONTEXT).encoder
    words = (token.removesuffix("</w>") for token in encoder if token.endswith("</w>"))
    return sorted(word for word in words if len(word) >= 4 and word.isascii() and word.isalpha())


def make_library(
    folder: Path,
    backbone: Backbone,
    *,
    tasks: int,
    videos: int,
    queries: int,
    first_id: int = 1,
    seed: int = 0,
    captioned: float = 1.0,
) -> SyntheticLibrary:
    """Write a library of domains with ``videos`` videos each; libraries in one catalog must not share vector IDs.

    ``captioned`` is the share of the videos with captions, apart from those of the queries, which have none.
    """
    rng, config, encoder = np.random.default_rng(seed), AnalyticConfig(), TowerQueryBackbone(backbone)
    layout = VectorLayout(backbone.semantic_dim, config.semantic_weight)
    words = _whole_words(backbone)
    shared = [words[index] for index in rng.permutation(len(words))[:_SHARED_WORDS]]
    store = ShardStore(folder / "index")
    learned: list[ReleaseTask] = []
    profiles = RoutingProfiles.from_dense(np.empty((0, VOCABULARY), np.float32))
    scatter = CaptionScatter.empty(layout.semantic)
    targets: list[TargetedQuery] = []
    parent: ParentRelease | None = None
    for number in range(tasks):
        task = ReleaseTask(f"{folder.name}-{number}", f"{folder.name} {number}", f"{number:064x}")
        learned.append(task)
        query_count = min(videos, queries // tasks + (number < queries % tasks))
        texts = _captions(shared, words, _CAPTIONS + query_count, rng)
        frozen = encoder.encode(encoder.tokenize(texts))
        query_map = _query_map(frozen[:_CAPTIONS], texts[:_CAPTIONS], layout, config)
        scatter = scatter.add(frozen[:_CAPTIONS, : layout.semantic])
        profile = token_profile(count_pieces(texts[:_CAPTIONS]), config.word_evidence)
        profiles = RoutingProfiles.concatenate([profiles, RoutingProfiles.from_dense(profile[None])])
        tensors = {f"query.{name}": tensor for name, tensor in query_map.tensors().items()}
        if number == tasks - 1:  # the newest release has the evidence of all tasks
            tensors |= {f"evidence.{name}": tensor for name, tensor in scatter.tensors().items()}
        state = ReleaseState(
            method="analytic",
            kind=ANALYTIC_FAMILY.kind,
            backbone=backbone.name,
            backbone_fingerprint=backbone.fingerprint,
            fingerprint=task.fingerprint,
            frames=backbone.spec.frames,
            tasks=list(learned),
            config=config.model_dump(),
            profiles=profiles,
            tensors=tensors,
        )
        captions = AnalyticMapSet(layout, [query_map])(
            frozen, distinct_pieces(texts), np.arange(len(frozen)), np.zeros(len(frozen), np.int64)
        )
        vectors = _videos(captions, query_count, videos, rng)
        parent = _publish_domain(store, state, first_id, vectors, parent)
        targets += [TargetedQuery(text, first_id + row) for row, text in enumerate(texts[_CAPTIONS:])]
        # The videos of the queries have no captions: they are found by what they look like.
        rng_of_captions = np.random.default_rng([seed, number])
        captions_of_videos = _captions(shared, words, videos, rng_of_captions)
        is_captioned = rng_of_captions.random(videos) < captioned
        is_captioned[:query_count] = False
        captions_of_videos = [
            text * bool(has) for text, has in zip(captions_of_videos, is_captioned, strict=True)
        ]
        _insert_catalog_rows(task, first_id, captions_of_videos)
        first_id += videos
    return SyntheticLibrary(
        settings=settings().model_copy(update={"data_dir": folder, "backbone": backbone.name}),
        tasks=tasks,
        vectors=tasks * videos,
        queries=[targets[index] for index in rng.permutation(len(targets))],
    )


def _captions(shared: Sequence[str], words: Sequence[str], count: int, rng: Rng) -> list[str]:
    """Draw a domain's captions: shared words with Zipf weights and the domain's preference, and some of its own."""
    weights = np.exp(_PREFERENCE * rng.standard_normal(len(shared))) / (5 + np.arange(len(shared)))
    domain_words = [words[index] for index in rng.choice(len(words), _OWN_WORDS, replace=False)]
    captions: list[str] = []
    for _ in range(count):
        drawn = rng.choice(shared, _WORDS, replace=False, p=weights / weights.sum())
        is_own = rng.random(_WORDS) < _OWN_SHARE
        captions.append(" ".join(np.where(is_own, rng.choice(domain_words, _WORDS), drawn)))
    return captions


def _query_map(
    frozen: Vectors, texts: Sequence[str], layout: VectorLayout, config: AnalyticConfig
) -> AnalyticQueryMap:
    """Compute the query map of a domain with one caption per video."""
    share = len(frozen) / (len(frozen) + config.center_captions)
    captions = torch.from_numpy(frozen[:, : layout.semantic])
    tokens = [pieces.tolist() for pieces in split_pieces(texts)]
    return build_query_map(share * captions.mean(0), captions, build_lexicon(tokens, layout.lexical, share))


def _videos(captions: Vectors, targets: int, videos: int, rng: Rng) -> np.ndarray:
    """Draw unit vectors ``[videos, dim]``: first the targets of the last captions, then videos like any captions."""
    described = captions.copy()
    described[:, -1] = 0  # the coordinate that completes queries to unit length, where some are reserved
    captioned = rng.integers(0, len(captions), videos)
    captioned[:targets] = np.arange(len(captions) - targets, len(captions))
    other = rng.integers(0, len(captions), videos)
    noise = rng.standard_normal((videos, captions.shape[1]), np.float32)
    noise[:, -1] = 0
    mixed = _TARGET * described[captioned] + _OTHER * described[other] + _NOISE * normalize_rows(noise)
    return normalize_rows(mixed)


def _publish_domain(
    store: ShardStore, state: ReleaseState, first_id: int, vectors: Vectors, parent: ParentRelease | None
) -> ParentRelease:
    """Publish a release and the shard of its newest domain; returns the parent of the next release."""
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


def _insert_catalog_rows(task: ReleaseTask, first_id: int, captions: Sequence[str]) -> None:
    """Insert a task in state ``ready``, and a video for each caption, "" for none, into the catalog."""
    now = datetime.now(UTC)
    with session_scope(write=True) as session:
        order = 1 + (session.scalar(select(func.max(Task.position))) or 0)
        fields = {"position": order, "learned_order": order, "method": "analytic", "state": "ready"}
        session.add(Task(id=task.task_id, name=task.name, created_at=now, **fields))
        session.flush()
        # Creating a million ORM objects would take longer than the whole benchmark.
        common = {"task_id": task.task_id, "added_at": now, "status": "accepted"}
        texts = (([caption] if caption else []) for caption in captions)
        session.execute(
            insert(Video),
            [
                {"vector_id": number, "id": f"v{number}", "uri": f"{number}.mp4", "captions": text, **common}
                for number, text in enumerate(texts, first_id)
            ],
        )
