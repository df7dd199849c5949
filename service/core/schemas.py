"""What goes in and what comes out, as the API's users write and read it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from service.core.settings import QueryMode

__all__ = [
    "CaptionView",
    "CaptionsResponse",
    "ClipResponse",
    "ClipTimingView",
    "CountsView",
    "DeletionSpec",
    "DeletionView",
    "EventView",
    "ForgettingView",
    "FoundMomentView",
    "LeaseView",
    "MomentView",
    "OverviewView",
    "ProgressView",
    "ReadyView",
    "RejectedView",
    "ReleaseView",
    "RoutingView",
    "SearchBatch",
    "SearchBatchResponse",
    "SearchQuery",
    "SearchResponse",
    "SearchResult",
    "ShardView",
    "SimilarResponse",
    "Split",
    "State",
    "TaskSpec",
    "TaskView",
    "TimingView",
    "VideoSpec",
    "VideoView",
]

State = Literal["queued", "probing", "training", "indexing", "evaluating", "ready", "failed", "cancelled"]
Split = Literal["train", "val", "test"]
Matrix = list[list[float | None]]  # rows = releases, columns = tasks, null where undefined
Scalar = bool | int | float | str | None

Name = Annotated[str, StringConstraints(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9 ._-]+$")]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
Uri = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class VideoSpec(_Input):
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


class TaskSpec(_Input):
    """One domain of videos to learn and to index."""

    name: Name
    method: str | None = Field(
        default=None, description="How it is learned; the server's default when left out."
    )
    settings: dict[str, Scalar] | None = Field(default=None, description="Settings of the method.")
    videos: list[VideoSpec] = Field(min_length=1)


class ProgressView(_View):
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


class RejectedView(_View):
    """A video that was left out, and why."""

    uri: str
    reason: str


class CountsView(_View):
    """Videos of a task."""

    videos: int = 0
    accepted: int = 0
    rejected: int = 0
    train: int = 0
    val: int = 0
    test: int = 0


class TaskView(_View):
    """A task as it stands."""

    id: str
    name: str
    method: str
    settings: dict[str, Scalar]
    state: State
    progress: ProgressView
    eta_seconds: float | None
    rejected: list[RejectedView]
    error: str | None
    error_hint: str | None
    counts: CountsView
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


class EventView(_View):
    """Something that happened to a task. Ids grow; ask for those after the last one you saw."""

    id: int
    task_id: str
    at: datetime
    kind: Literal["state", "progress", "rejected", "log"]
    data: dict[str, Any]


class SearchQuery(_Input):
    """What to look for: the same as the parameters of ``GET /search``.

    Only its shape is checked here. Its values are checked by the service, whatever way they came in.
    """

    q: str = Field(description="What is seen, in words.")
    k: int = Field(default=10, description="How many results.")
    task: str | list[str] | None = Field(
        default=None, description="Names or ids of the domains to search; all by default."
    )
    mode: str | None = Field(default=None, description="'pinned', 'mapped' or 'latest' query encoders.")
    min_duration: float | None = Field(default=None, description="Seconds.")
    max_duration: float | None = Field(default=None, description="Seconds.")
    arrived_after: datetime | None = Field(
        default=None, description="Posted then or later; UTC without a zone."
    )
    arrived_before: datetime | None = Field(default=None, description="Posted earlier.")
    where: dict[str, Any] | None = Field(
        default=None,
        description=(
            "Metadata that a video must have: by field a value, {min, max}, {any: [values]} or {all: [texts]}. "
            "A list of texts has each of them."
        ),
    )
    min_score: float | None = Field(default=None, description="Results below this score are left out.")
    min_confidence: float | None = Field(
        default=None, description="Results that are less likely than this to be right are left out; 0..1."
    )
    routes: int | str | None = Field(
        default=None,
        description=(
            "Which domains count: 'all', 'auto' (those that the words make likely and that can still matter), or how "
            "many of the likeliest."
        ),
    )
    moments: int = Field(default=3, description="How many moments of each long video, the best first.")
    cursor: str | None = Field(
        default=None,
        description="`next_cursor` of the page before; everything but k and moments stays as it was.",
    )


class SearchBatch(_Input):
    """Several searches, answered together and from one release."""

    queries: list[SearchQuery]


class MomentView(_View):
    """A part of a video, in seconds since its beginning."""

    start: float
    end: float


class FoundMomentView(MomentView):
    """A moment, and how well it fits."""

    score: float


class SearchResult(_View):
    """One hit: a video. ``task`` is the task's name."""

    rank: int
    video_id: str
    task: str
    task_id: str
    score: float = Field(description="The best of the whole video's and its moments'.")
    confidence: float | None = Field(
        default=None,
        description="Probability that this is the video asked for, 0..1; null where the release is not calibrated.",
    )
    captions: list[str]
    thumbnail_url: str
    stream_url: str = Field(
        description="Where moments were found, it plays the best of them (`#t=start,end`)."
    )
    moments: list[FoundMomentView] = Field(
        default_factory=list, description="Of a long video, where in it: the best first."
    )


class RoutingView(_View):
    """A task, and how much the query sounds like it. ``task`` is the task's name."""

    task: str
    task_id: str
    weight: float
    searched: bool = Field(
        description="Whether the query was encoded for it and its shard searched; where not, it was too unlikely."
    )


class TimingView(_View):
    """Milliseconds."""

    encode: float
    route: float
    search: float
    merge: float
    total: float


class SearchResponse(_View):
    """The answer to a query."""

    query: str
    release: str | None
    generation: int
    mode: QueryMode
    results: list[SearchResult]
    confidence: float | None = Field(
        default=None,
        description="Probability that what is asked for is among the first ten of the list, 0..1; null where the "
        "release is not calibrated. Filters count, thresholds and pages do not.",
    )
    routing: list[RoutingView] = Field(
        description="The tasks that were searched, and others up to 20, the likeliest first."
    )
    timing_ms: TimingView
    degraded: dict[str, str] = Field(
        default_factory=dict, description="Tasks (by name) that could not be searched, and why."
    )
    next_cursor: str | None = Field(
        default=None,
        description="Send it as `cursor` for the results after these; null where there are none.",
    )


class SearchBatchResponse(_View):
    """The answers to a batch, in the order of its queries."""

    answers: list[SearchResponse]


class SimilarResponse(_View):
    """The videos most like one. ``task`` is the name of its task; scores are cosines of stored vectors."""

    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    results: list[SearchResult]
    searched: list[str] = Field(description="Names of the tasks whose videos it was compared with.")
    not_compared: dict[str, str] = Field(
        description="Tasks (by name) whose videos another encoder has embedded, so no cosine with them has a meaning."
    )
    degraded: dict[str, str] = Field(description="Tasks (by name) that could not be searched, and why.")


class CaptionView(_View):
    """A text of the library. ``task`` is the name of the task it comes from, ``video_id`` a video that it was given."""

    text: str
    score: float = Field(description="Cosine of the text's vector and the video's.")
    own: bool = Field(description="Whether it was given to the video that is described.")
    video_id: str
    task: str
    task_id: str


class CaptionsResponse(_View):
    """The texts that fit a video best. ``task`` is the name of its task."""

    video_id: str
    task: str
    task_id: str
    release: str
    generation: int
    mode: QueryMode
    captions: list[CaptionView]
    candidates: int = Field(description="How many texts were compared.")
    degraded: dict[str, str] = Field(description="Tasks (by name) that could not be searched, and why.")


class ClipTimingView(_View):
    """Milliseconds."""

    decode: float
    encode: float
    search: float
    total: float


class ClipResponse(_View):
    """The answer to a clip or a picture.

    Scores are cosines, stretched so that 0 is what two videos of the found one's domain have on average; 1 is the same
    video.
    """

    kind: Literal["video", "picture"]
    width: int
    height: int
    duration: float | None = Field(description="Seconds; null for a picture.")
    release: str
    generation: int
    results: list[SearchResult]
    searched: list[str] = Field(description="Names of the tasks that were searched.")
    captions: list[CaptionView] | None = Field(
        default=None,
        description="Texts of the best result's domain that fit the clip best; null where not asked for.",
    )
    timing_ms: ClipTimingView
    degraded: dict[str, str] = Field(description="Tasks (by name) that could not be searched, and why.")


class ReadyView(_View):
    """Whether queries can be answered."""

    ready: bool
    release: str | None = None
    generation: int = 0
    tasks: int = 0
    degraded: dict[str, str] = Field(default_factory=dict)
    checks: dict[str, str] = Field(default_factory=dict, description="Part → 'ok' or what is wrong with it.")


class VideoView(_View):
    """A video as it stands. ``task`` is the task's name."""

    id: str
    task: str
    task_id: str
    uri: str
    status: Literal["pending", "accepted", "rejected"]
    reason: str | None
    captions: list[str]
    split: Split | None
    effective_split: Split | None
    metadata: dict[str, Any]
    content_hash: str | None
    bytes: int | None
    container: str | None
    codec: str | None
    width: int | None
    height: int | None
    fps: float | None
    duration: float | None
    frames: int | None
    thumbnail_url: str
    stream_url: str
    moments: list[MomentView] = Field(
        default_factory=list, description="Of a long video, the parts that it is found by, in order of time."
    )


class DeletionSpec(_Input):
    """Videos to delete."""

    videos: list[Identifier] = Field(min_length=1, max_length=20_000, description="Ids of videos.")


class DeletionView(_View):
    """What became of a deletion. Sent again, it finds nothing left to delete."""

    deleted: list[str] = Field(description="Ids of the videos that were there, and are gone.")
    not_found: list[str] = Field(description="Ids of no video (of the task): deleted before, or never there.")


class ForgettingView(_View):
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


class ShardView(_View):
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


class ReleaseView(_View):
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


class LeaseView(_View):
    """A worker at work."""

    task_id: str
    task: str
    state: State
    owner: str
    expires_at: datetime


class OverviewView(_View):
    """Everything at one glance."""

    release: str | None
    generation: int
    tasks: dict[State, int]
    videos: int
    searchable: int = Field(description="Videos that are laid down.")
    vectors: int = Field(description="Of these, and of their moments.")
    shards: list[ShardView]
    releases: list[ReleaseView]
    bytes_shards: int
    bytes_releases: int
    workers: list[LeaseView]
    degraded: dict[str, str]
    database: str = Field(description="'ok' or what is wrong with it.")
    broker: str = Field(description="'ok' or what is wrong with it.")
