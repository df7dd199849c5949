"""Requests and responses about operating a library: jobs, workers, queues, searches and readiness."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from cinestrata_schemas.choice_types import TaskKind, TaskState
from cinestrata_schemas.model_types import Open, RequestModel, ResponseModel


class JobSpec(RequestModel):
    """A maintenance job: free the disk space of deleted vectors, or write a backup."""

    kind: Literal["compact", "snapshot"]
    task: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="For a compaction: name or ID of a single domain; default: all domains.",
    )


class JobDetails(ResponseModel):
    """A maintenance job with its result."""

    id: int
    kind: Open[Literal["compact", "snapshot"]]
    task_id: str | None
    state: Open[Literal["queued", "running", "done", "failed"]]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    result: dict[str, Any] | None = Field(
        description="For a compaction: `domains`, `deleted`, `bytes_before` and `bytes_after`; for a snapshot: "
        "`path`, `files`, `bytes` and `external_tasks`."
    )


class SnapshotDetails(ResponseModel):
    """A backup written by a worker."""

    name: str = Field(examples=["cinestrata-20261123T080000Z-1.tar"], description="Name of the archive.")
    bytes: int = Field(description="Size of the archive.")
    created_at: datetime


class GpuMemory(ResponseModel):
    """Memory of a GPU."""

    device: int = Field(description="Device number on its machine.")
    used_bytes: int
    total_bytes: int


class WorkerDetails(ResponseModel):
    """A worker process seen within the last day."""

    name: str = Field(description="Host and process.")
    alive: bool = Field(description="Whether it has reported within the last minute.")
    seen_at: datetime
    free_bytes: int | None = Field(description="Free disk space of its data folder.")
    gpus: list[GpuMemory] = Field(description="GPU memory of its machine, used by all processes.")
    task: str | None = Field(description="Name of the task that it has claimed.")
    error: str | None = Field(description="Its last error.")
    error_at: datetime | None


class QueuedTask(ResponseModel):
    """A task that waits for a worker."""

    id: str
    name: str
    state: Open[TaskState]
    kind: Open[TaskKind]
    videos: int


class TrainingPoint(ResponseModel):
    """A progress report: training loss and throughput."""

    at: datetime
    stage: str
    fraction: float
    loss: float | None
    videos_per_second: float | None


class RunningTask(ResponseModel):
    """A task being processed by a worker, with its last progress reports."""

    id: str
    name: str
    state: Open[TaskState]
    points: list[TrainingPoint] = Field(description="The last reports, at most 200, oldest first.")


class OperationsStatus(ResponseModel):
    """The state of a library's operation; its lists have a maximum length."""

    waiting: int = Field(description="Number of tasks waiting for a worker.")
    queue: list[QueuedTask] = Field(description="The first 20 waiting tasks in queue order.")
    messages: dict[str, int | None] = Field(description="Messages in each queue; null if no broker responds.")
    running: list[RunningTask] = Field(description="The first 3 tasks being processed.")
    workers: list[WorkerDetails] = Field(description="Up to 50 worker processes, last seen first.")
    jobs: list[JobDetails] = Field(description="The last 10 maintenance jobs, newest first.")
    free_bytes: int | None = Field(description="Free disk space of the data folder.")
    total_bytes: int | None
    compactable_bytes: int = Field(
        description="Size of the shards that a compaction rewrites: those with deleted vectors or several segments."
    )


class Readiness(ResponseModel):
    """Whether a process can answer searches."""

    ready: bool
    release: str | None = None
    pinned: bool = Field(default=False, description="Whether an earlier release is served.")
    generation: int = 0
    tasks: int = 0
    degraded: dict[str, str] = Field(default_factory=dict)
    checks: dict[str, str] = Field(default_factory=dict, description="'ok' or the error of each component.")
