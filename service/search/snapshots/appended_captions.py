"""Routing profiles of domains with appended videos or edited captions, which no release has learned.

A release stores the profile of each task's training captions and never changes. After appends or edits, a snapshot
recomputes a domain's profile from the current captions of all videos in its shard that are not held out, so that it
equals the profile of one task with these captions. Unpublished, failed and cancelled appends do not count: the profile
depends only on the shard and its captions, not on when it is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from index.files.manifest_format import task_of
from index.shards.vector_store import SearchableShard
from models.routing.routing_profiles import profile_row
from service.catalog.database import session_scope
from service.catalog.domain_videos import in_domain, read_caption_edits
from service.catalog.tables import Task, Video


class AppendedProfile(NamedTuple):
    """Routing profile of a domain with appended videos or edited captions: ascending tokens and their values, ``[N]``.

    ``version`` names the state of shard and captions, and the factor, that it was computed from.
    """

    version: str
    tokens: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


def appended_profiles(
    shards: Mapping[str, SearchableShard],
    factors: Mapping[str, float],
    previous: Mapping[str, AppendedProfile],
    uncounted: Collection[str] = (),
) -> dict[str, AppendedProfile]:
    """Compute the profiles of uncounted domains, and of those with appends or edited captions; raises Unavailable.

    Profiles that ``previous``, those of a previous snapshot, has of the same shard and captions are reused.

    Args:
        factors: Factor of each task's encoder (:attr:`~models.encoders.query_encoder.QueryEncoder.profile_factor`).
    """
    edits = read_caption_edits()
    with session_scope() as session:
        targets = set(session.scalars(select(Task.target_id).where(Task.target_id.is_not(None)).distinct()))
    profiles: dict[str, AppendedProfile] = {}
    for key, shard in shards.items():
        task = task_of(key)
        version = f"{shard.state}+{edits.get(task, 0)}*{factors[key]}"
        before = previous.get(key)
        if before is not None and before.version == version:
            profiles[key] = before
        elif task in edits or task in uncounted or (task in targets and _has_appended_videos(task, shard)):
            row = profile_row(_captions(task, shard), factors[key])
            profiles[key] = AppendedProfile(version, *row)
    return profiles


def _has_appended_videos(task: str, shard: SearchableShard) -> bool:
    """Check whether a shard contains appended videos that are not deleted."""
    with session_scope() as session:
        # The manifest is replaced before the catalog assigns the videos to the domain.
        is_published = (Video.task_id == task) & (Video.effective_split == "appended")
        appended = select(Video.vector_id).join(Task, Task.id == Video.task_id)
        of_domain = (Task.target_id == task) | is_published
        ids = list(session.scalars(appended.where(of_domain, Video.status == "accepted")))
    return bool(np.isin(np.array(ids, np.int64), shard.ids).any())


def _captions(task: str, shard: SearchableShard) -> list[str]:
    """Read the captions of a shard's videos, appends included, except those held out."""
    with session_scope() as session:
        rows = session.execute(
            select(Video.vector_id, Video.task_id, Video.effective_split, Video.captions).where(
                in_domain(task), Video.status == "accepted"
            )
        ).all()
    stored = np.isin(np.array([row.vector_id for row in rows], np.int64), shard.ids)
    return [
        caption
        for row, is_stored in zip(rows, stored.tolist(), strict=True)
        if is_stored and (row.task_id != task or row.effective_split not in ("val", "test"))
        for caption in row.captions
    ]
