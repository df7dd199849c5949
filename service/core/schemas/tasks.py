"""Requests and responses about tasks: specification, progress, events."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from service.core.schemas.model_types import (
    Identifier,
    Name,
    RequestModel,
    ResponseModel,
    Scalar,
    Split,
    State,
    Uri,
)

__all__ = [
    "RejectedVideo",
    "TaskDetails",
    "TaskEvent",
    "TaskProgress",
    "TaskSpec",
    "VideoCounts",
    "VideoSpec",
]


class VideoSpec(RequestModel):
    """A video that a task brings."""

    uri: Uri = Field(description="Path below the media root, or its file:// URI.")
    captions: list[str] = Field(default_factory=list, description="What is seen.")
    id: Identifier | None = Field(default=None, description="Your own id; one is made when there is none.")
    split: Split | None = Field(default=None, description="Test videos are held out and measured.")
    metadata: dict[str, Any] | None = Field(
        default=None,
        description=(
            "Anything you want back with the video. Texts, numbers, truth values and lists of texts can be searched by."
        ),
    )


class TaskSpec(RequestModel):
    """One domain of videos to learn and to index."""

    name: Name
    method: str | None = Field(
        default=None, description="How it is learned; the server's default when left out."
    )
    settings: dict[str, Scalar] | None = Field(default=None, description="Settings of the method.")
    videos: list[VideoSpec] = Field(min_length=1)


class TaskProgress(ResponseModel):
    """How far the current stage is. ``fraction`` is of the stage, 0..1."""

    stage: str
    fraction: float = 0.0
    done: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    videos_per_second: float | None = None
    unmeasured: str | None = Field(
        default=None, description="Of a task that is ready: why the recall matrix has no row after it."
    )


class RejectedVideo(ResponseModel):
    """A video that was left out, and why."""

    uri: str
    reason: str


class VideoCounts(ResponseModel):
    """Videos of a task."""

    videos: int = 0
    accepted: int = 0
    rejected: int = 0
    train: int = 0
    val: int = 0
    test: int = 0


class TaskDetails(ResponseModel):
    """A task as it stands."""

    id: str
    name: str
    method: str
    settings: dict[str, Scalar]
    state: State
    progress: TaskProgress
    eta_seconds: float | None
    rejected: list[RejectedVideo]
    error: str | None
    error_hint: str | None
    counts: VideoCounts
    learned_order: int | None = Field(description="t: 1 for the first task that was laid down.")
    release: str | None
    trained: bool
    held_out: Literal["given", "derived"] | None
    position: int
    attempts: int
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TaskEvent(ResponseModel):
    """Something that happened to a task. Ids grow; ask for those after the last one you saw."""

    id: int
    task_id: str
    at: datetime
    kind: Literal["state", "progress", "rejected", "log"]
    data: dict[str, Any]
