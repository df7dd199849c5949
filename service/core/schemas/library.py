"""Responses about the whole library: overview, shards, releases, recall matrix."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from service.core.schemas.model_types import Matrix, ResponseModel, State
from service.core.settings import QueryMode

__all__ = ["LibraryOverview", "RecallMatrix", "ReleaseSummary", "ShardSummary", "WorkerLease"]


class RecallMatrix(ResponseModel):
    """The recall matrix and what follows from it.

    All recalls are shares, 0..1. Rows are releases, columns are tasks, both in learned order; tasks that
    were indexed without training have no queries and are left out, and so are those whose videos were all
    deleted. Local: each task's own shard, known
    task. Global: the union of all shards, unknown task. Galleries hold the held-out videos; ``…_all`` hold
    all videos.
    """

    tasks: list[str]
    task_ids: list[str]
    releases: list[str]
    mode: QueryMode
    modes: list[str] = Field(description="The modes for which there are figures.")
    matrix_local: Matrix
    matrix_global: Matrix
    matrix_local_all: Matrix
    matrix_global_all: Matrix
    bwf_local: float | None
    bwf_global: float | None
    fr: float | None
    hm: float | None
    zero_shot: list[float | None]
    recall_over_time_local: list[float | None]
    recall_over_time_global: list[float | None]
    router_accuracy: list[float | None]
    held_out: list[Literal["given", "derived"] | None]
    after: list[str] = Field(
        description="Of each release, the name of the task that it was made or kept for."
    )


class ShardSummary(ResponseModel):
    """A shard that is laid down. ``task`` is the task's name."""

    id: str
    task: str
    task_id: str
    release: str
    count: int
    dim: int
    bytes: int
    created_at: datetime
    deleted: int = Field(default=0, description="Of its vectors; they take room until it is compacted.")
    degraded: str | None = None


class ReleaseSummary(ResponseModel):
    """A release. ``task`` is the name of the task it was made for."""

    id: str
    task: str
    task_id: str
    learned_order: int
    method: str
    backbone: str
    kind: str
    bytes: int
    created_at: datetime
    current: bool
    calibration_error: float | None = Field(
        default=None,
        description="Expected calibration error of its confidences, cross-validated, 0..1; null without calibration.",
    )


class WorkerLease(ResponseModel):
    """A worker at work."""

    task_id: str
    task: str
    state: State
    owner: str
    expires_at: datetime


class LibraryOverview(ResponseModel):
    """Everything at one glance."""

    release: str | None
    generation: int
    tasks: dict[State, int]
    videos: int
    searchable: int = Field(description="Videos that are laid down.")
    vectors: int = Field(description="Of these, and of their moments.")
    shards: list[ShardSummary]
    releases: list[ReleaseSummary]
    bytes_shards: int
    bytes_releases: int
    workers: list[WorkerLease]
    degraded: dict[str, str]
    database: str = Field(description="'ok' or what is wrong with it.")
    broker: str = Field(description="'ok' or what is wrong with it.")
