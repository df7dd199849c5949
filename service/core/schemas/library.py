"""Responses about the whole library: overview, shards, releases, recall matrix."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from service.core.schemas.model_types import Matrix, ResponseModel, State
from service.core.settings import QueryMode

__all__ = [
    "LibraryOverview",
    "RecallFigures",
    "RecallMatrix",
    "ReleaseSummary",
    "ShardSummary",
    "WorkerLease",
]


class RecallFigures(ResponseModel):
    """Recall of the captions of held-out videos in one gallery: shares of the queries, 0..1."""

    queries: int
    r1: float
    r5: float
    r10: float


class RecallMatrix(ResponseModel):
    """The recall matrix and the measures derived from it.

    Recall values are shares, 0..1. Rows are releases, columns are tasks, both in learned order. Tasks without
    queries and tasks without videos are omitted. Local: the task's own shard, known task. Global: the union of all
    shards, unknown task. The galleries contain the held-out videos; those of ``…_all`` contain all videos.
    """

    tasks: list[str]
    task_ids: list[str]
    releases: list[str]
    mode: QueryMode
    modes: list[str] = Field(description="Query modes with results.")
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
    after: list[str] = Field(description="Name of the task of each release.")
    newest: dict[str, list[RecallFigures | None]] = Field(
        description="Recall@1, 5 and 10 of the newest release for each task, by gallery."
    )


class ShardSummary(ResponseModel):
    """A published shard. ``task`` is the name of its task."""

    id: str
    task: str
    task_id: str
    release: str
    count: int
    dim: int
    bytes: int
    created_at: datetime
    deleted: int = Field(
        default=0, description="Number of deleted vectors; they use storage until the task is compacted."
    )
    degraded: str | None = None


class ReleaseSummary(ResponseModel):
    """A release. ``task`` is the name of its task."""

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
    """Lease of an active worker."""

    task_id: str
    task: str
    state: State
    owner: str
    expires_at: datetime


class LibraryOverview(ResponseModel):
    """Overview of the library."""

    release: str | None
    generation: int
    tasks: dict[State, int]
    videos: int
    searchable: int = Field(description="Number of searchable videos.")
    vectors: int = Field(description="Number of vectors of searchable videos and their moments.")
    shards: list[ShardSummary]
    releases: list[ReleaseSummary]
    bytes_shards: int
    bytes_releases: int
    workers: list[WorkerLease]
    degraded: dict[str, str]
    database: str = Field(description="'ok' or an error.")
    broker: str = Field(description="'ok' or an error.")
