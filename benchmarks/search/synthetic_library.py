"""Libraries of any size, without learning: what a search costs does not depend on what the weights have learned.

Everything that a search touches is real: shards, one pinned release a domain with low-rank updates and words of its
own, routing profiles, rows of the catalog. Only the numbers are drawn. A domain has fifty words of its own and shares
a hundred with all; a caption mixes both. The query encoder of the domain encodes its captions, and videos lie around
these vectors: one *sought* video for each caption at a cosine of about 0.9, all others at about 0.35, so that
they are found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from sqlalchemy import text

from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.backbones.tokenizer import small_tokenizer
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.families.low_rank_family import LOW_RANK_FAMILY
from models.releases.release_files import write_release
from models.releases.release_lineage import ParentRelease, ReleaseTask
from models.releases.release_state import ReleaseState
from models.routing.routing_profiles import RoutingProfiles
from models.routing.token_statistics import token_presence, token_profile
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.settings import Settings, settings

__all__ = ["Asked", "Library", "enter", "make_library", "words_of"]

_OWN, _COMMON = 50, 100  # words of a domain, and of all
_VAGUE = 400
_RANK = 16
_CONTEXT = 77
_SOUGHT, _OTHER = 0.9, 0.35  # cosines of videos and captions

Rng = np.random.Generator


@dataclass(frozen=True)
class Asked:
    """A query, and the vector id of the video that it seeks."""

    text: str
    sought: int


@dataclass(frozen=True)
class Library:
    """What was made.

    Attributes:
        configured: settings with which a query service finds it.
        asked: queries, all different, in random order.
        vague: queries without a word of any domain; nothing tells them apart but what videos look like.
        bytes: of the stored vectors.
    """

    configured: Settings
    tasks: int
    vectors: int
    asked: list[Asked]
    vague: list[str]
    bytes: int


def words_of(backbone: Backbone) -> list[str]:
    """Whole words of a backbone's vocabulary."""
    encoder = small_tokenizer(backbone.vocabulary, _CONTEXT).encoder
    known = (token.removesuffix("</w>") for token in encoder if token.endswith("</w>"))
    return sorted(word for word in known if len(word) >= 4 and word.isascii() and word.isalpha())


def make_library(
    folder: Path,
    backbone: Backbone,
    *,
    tasks: int,
    vectors: int,
    captions: int,
    first_id: int = 1,
    seed: int = 0,
) -> Library:
    """Write a library of ``vectors`` videos in ``tasks`` domains of equal size.

    Args:
        captions: how many of the videos are sought, about; eight in each domain at least.
        folder: its data folder. The catalog is that of the process.
        first_id: of its vectors; libraries that share a catalog must not share ids.
    """
    rng = np.random.default_rng(seed)
    common, *domains = _vocabularies(words_of(backbone), tasks, rng)
    store = ShardStore(folder / "index")
    learned: list[ReleaseTask] = []
    profiles = RoutingProfiles.from_dense(np.empty((0, backbone.vocabulary), np.float32))
    asked: list[Asked] = []
    next_id = first_id
    before: ParentRelease | None = None
    for number, own in enumerate(domains):
        rows = vectors // tasks + (number < vectors % tasks)
        task = ReleaseTask(f"{folder.name}-{number}", f"{folder.name} {number}", f"{number:064x}")
        learned.append(task)
        texts = _captions(own, common, min(rows, max(8, -(-captions // tasks))), rng)
        profiles = profiles.append_tasks(_profile(backbone, texts))
        state = _release(backbone, learned, profiles, texts, seed + number)
        with store.staging() as staged:
            write_release(staged, state, parent=before)
            release = store.adopt_release(staged)
        alone = replace(state, tasks=[task])
        encoder = open_query_encoder(backbone, alone, {task.task_id: alone})
        around = encoder.encode(texts, [task.task_id], "pinned")[:, 0]
        shard = store.write_shard(
            task=task.task_id,
            release=release.id,
            fingerprint=task.fingerprint,
            ids=np.arange(next_id, next_id + rows),
            vectors=_videos(around, rows, rng),
        )
        store.publish(release=release, shards=[shard])
        before = ParentRelease(release.id, len(learned))
        asked += [Asked(caption, next_id + place) for place, caption in enumerate(texts)]
        enter(task, next_id, rows)
        next_id += rows
    order = rng.permutation(len(asked))
    return Library(
        configured=settings().model_copy(update={"data_dir": folder, "backbone": backbone.name}),
        tasks=tasks,
        vectors=vectors,
        asked=[asked[place] for place in order],
        vague=_captions(common, common, _VAGUE, rng),
        bytes=2 * vectors * backbone.dim,
    )


def _vocabularies(words: Sequence[str], tasks: int, rng: Rng) -> list[list[str]]:
    """The words of all domains, and those of each."""
    shuffled = [words[place] for place in rng.permutation(len(words))]
    common, rest = shuffled[:_COMMON], shuffled[_COMMON:]
    return [
        common,
        *([rest[place] for place in rng.choice(len(rest), _OWN, replace=False)] for _ in range(tasks)),
    ]


def _captions(own: Sequence[str], common: Sequence[str], count: int, rng: Rng) -> list[str]:
    """Different ones, of three words of the domain and five of all."""
    captions: dict[str, None] = {}
    while len(captions) < count:
        words = [*rng.choice(own, 3), *rng.choice(common, 5)]
        captions[" ".join(words[place] for place in rng.permutation(8))] = None
    return list(captions)


def _profile(backbone: Backbone, captions: Sequence[str]) -> RoutingProfiles:
    ids = backbone.tokenize(captions)
    presence = token_presence(ids, backbone.end_of_text(ids), backbone.vocabulary)
    return RoutingProfiles.from_dense(token_profile(presence.sum(dim=0)).half().float()[None].numpy())


def _release(
    backbone: Backbone,
    learned: Sequence[ReleaseTask],
    profiles: RoutingProfiles,
    captions: Sequence[str],
    seed: int,
) -> ReleaseState:
    """A release of kind ``low_rank`` whose updates change a vector by about as much as learned ones do."""
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
        tensors=tensors,
    )


def _videos(captions: npt.NDArray[np.float32], rows: int, rng: Rng) -> npt.NDArray[np.float32]:
    """Unit vectors: first the one that each caption seeks, then others around all of them."""
    centre = np.resize(np.arange(len(captions)), rows)
    near = np.where(np.arange(rows) < len(captions), _SOUGHT, _OTHER).astype(np.float32)[:, None]
    aside = rng.standard_normal((rows, captions.shape[1]), np.float32)
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    videos = near * captions[centre] + np.sqrt(1 - near**2) * aside
    return np.asarray(videos / np.linalg.norm(videos, axis=1, keepdims=True), np.float32)


def enter(task: ReleaseTask, first_id: int, rows: int, method: str = "strata") -> None:
    """Task and videos in the catalog, as if they had been learned by a method."""
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
        # One statement, since a million objects would take longer than all that is to be measured.
        session.execute(
            text(
                "INSERT INTO videos (vector_id, id, task_id, uri, captions, metadata, status) "
                "WITH RECURSIVE numbers(i) AS "
                "(SELECT CAST(:first AS BIGINT) UNION ALL SELECT i + 1 FROM numbers WHERE i < :last) "
                "SELECT i, 'v' || i, :task, i || '.mp4', '[\"a caption\"]', '{}', 'accepted' FROM numbers"
            ),
            {"first": first_id, "last": first_id + rows - 1, "task": task.task_id},
        )
