"""Synthetic libraries of the analytic method whose domains share words, as real captions do.

All domains draw words from one vocabulary with Zipf weights; each prefers some of them and has a few words of its own.
The preference is set so that, among a hundred domains, routing finds the domain of 45 % of the queries, as on the
published captions of MSR-VTT. Text vectors, query maps, lexicons and routing evidence are those that the method
computes from the captions; queries are other captions. A video vector mixes two caption vectors and noise, so that a
domain contains videos that resemble the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.search.synthetic_library import (
    Rng,
    SyntheticLibrary,
    TargetedQuery,
    insert_catalog_rows,
    publish_domain,
    whole_words,
)
from index.shard_store import ShardStore
from models.adapters.analytic_maps import (
    AnalyticMapSet,
    AnalyticQueryMap,
    VectorLayout,
    normalize_rows,
    pad_distinct_tokens,
)
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import TokenIds
from models.backbones.query_backbone import QueryBackbone, Vectors
from models.encoders.families.analytic_family import ANALYTIC_FAMILY
from models.encoders.tower_query_backbone import TowerQueryBackbone
from models.releases.release_lineage import ParentRelease, ReleaseTask
from models.releases.release_state import ReleaseState
from models.routing.caption_evidence import CaptionScatter
from models.routing.routing_profiles import RoutingProfiles
from models.routing.token_statistics import token_presence, token_profile
from service.core.settings import settings
from trainer.methods.analytic import AnalyticConfig, build_query_map
from trainer.methods.shared.lexicon import build_lexicon

_SHARED_WORDS, _OWN_WORDS = 800, 10
_PREFERENCE = 1.3  # standard deviation of a word's log weight between domains
_OWN_SHARE = 0.05  # of a caption's words
_WORDS = 8  # per caption
_CAPTIONS = 20  # per domain, from which the maps are computed
# Weights of the target caption, of another caption in the domain, and of noise, in a video's vector.
_TARGET, _OTHER, _NOISE = 0.5, 0.55, 0.8


def make_shared_word_library(
    folder: Path,
    backbone: Backbone,
    *,
    tasks: int,
    videos: int,
    queries: int,
    first_id: int,
    seed: int,
) -> SyntheticLibrary:
    """Write a library of ``tasks`` domains with ``videos`` videos each.

    Args:
        videos: Videos per task.
        first_id: First vector ID; libraries in one catalog must not share IDs.
    """
    rng, config, encoder = np.random.default_rng(seed), AnalyticConfig(), TowerQueryBackbone(backbone)
    layout = VectorLayout.for_backbone(backbone, config.semantic_weight)
    words = whole_words(backbone)
    shared = [words[index] for index in rng.permutation(len(words))[:_SHARED_WORDS]]
    store = ShardStore(folder / "index")
    learned: list[ReleaseTask] = []
    profiles = RoutingProfiles.from_dense(np.empty((0, backbone.vocabulary), np.float32))
    scatter = CaptionScatter.empty(layout.semantic)
    targets: list[TargetedQuery] = []
    parent: ParentRelease | None = None
    for number in range(tasks):
        task = ReleaseTask(f"{folder.name}-{number}", f"{folder.name} {number}", f"{number:064x}")
        learned.append(task)
        query_count = min(videos, queries // tasks + (number < queries % tasks))
        texts = _captions(shared, words, _CAPTIONS + query_count, rng)
        ids, frozen = _encode(encoder, texts)
        query_map = _query_map(frozen[:_CAPTIONS], ids[:_CAPTIONS], layout, config)
        scatter = scatter.add(frozen[:_CAPTIONS, : layout.semantic])
        presence = token_presence(ids[:_CAPTIONS], backbone.vocabulary)
        profile = token_profile(presence.sum(axis=0), config.word_evidence)
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
        captions = AnalyticMapSet(layout, backbone.vocabulary, [query_map])(
            frozen, pad_distinct_tokens(ids), np.arange(len(frozen)), np.zeros(len(frozen), np.int64)
        )
        vectors = _videos(captions, query_count, videos, rng)
        parent = publish_domain(store, state, first_id, vectors, parent)
        targets += [TargetedQuery(text, first_id + row) for row, text in enumerate(texts[_CAPTIONS:])]
        # The videos of the queries have no captions: they are found by what they look like.
        captions_of_videos = _captions(shared, words, videos, np.random.default_rng([seed, number]))
        captions_of_videos[:query_count] = [""] * query_count
        insert_catalog_rows(task, first_id, videos, "analytic", captions=captions_of_videos)
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
    own = [words[index] for index in rng.choice(len(words), _OWN_WORDS, replace=False)]
    captions: list[str] = []
    for _ in range(count):
        drawn = rng.choice(shared, _WORDS, replace=False, p=weights / weights.sum())
        is_own = rng.random(_WORDS) < _OWN_SHARE
        captions.append(" ".join(np.where(is_own, rng.choice(own, _WORDS), drawn)))
    return captions


def _encode(encoder: QueryBackbone, texts: Sequence[str]) -> tuple[list[TokenIds], Vectors]:
    """Compute the token IDs of each text, and frozen vectors ``[n, dim]``."""
    ids = encoder.tokenize(texts)
    return ids, encoder.encode_together(ids)


def _query_map(
    frozen: Vectors, ids: list[TokenIds], layout: VectorLayout, config: AnalyticConfig
) -> AnalyticQueryMap:
    """Compute the query map of a domain with one caption per video."""
    share = len(frozen) / (len(frozen) + config.center_captions)
    captions = torch.from_numpy(frozen[:, : layout.semantic])
    tokens = [text[1:-1].tolist() for text in ids]
    return build_query_map(share * captions.mean(0), captions, build_lexicon(tokens, layout.lexical, share))


def _videos(captions: Vectors, targets: int, videos: int, rng: Rng) -> np.ndarray:
    """Draw unit vectors ``[videos, dim]``: first the targets of the last captions, then videos like any captions."""
    described = captions.copy()
    described[:, -1] = 0  # the coordinate that completes queries to unit length
    own = rng.integers(0, len(captions), videos)
    own[:targets] = np.arange(len(captions) - targets, len(captions))
    other = rng.integers(0, len(captions), videos)
    noise = rng.standard_normal((videos, captions.shape[1]), np.float32)
    noise[:, -1] = 0
    mixed = _TARGET * described[own] + _OTHER * described[other] + _NOISE * normalize_rows(noise)
    return normalize_rows(mixed)
