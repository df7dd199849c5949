"""Requests and responses about the whole library: its state, shards, releases and recall matrix."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

from pydantic import Field

from cinestrata_schemas.choice_types import Gallery, HeldOut, QueryMode, TaskState
from cinestrata_schemas.model_types import Matrix, Open, RequestModel, ResponseModel, optional
from cinestrata_schemas.tasks import TaskDetails


class RecallFigures(ResponseModel):
    """Recall of held-out captions in one gallery: shares of queries, 0..1."""

    queries: int
    r1: float
    r5: float
    r10: float
    r1_low: float = Field(description="Lower end of the 95 % confidence interval of `r1`.")
    r1_high: float = Field(description="Upper end of the interval.")


class MeasuredShare(ResponseModel):
    """A share of queries, 0..1, with its 95 % confidence interval (Wilson)."""

    share: float
    queries: int
    low: float
    high: float


class DomainLoss(ResponseModel):
    """A domain's Recall@1 right after it was learned, minus the newest release's. ``task`` is its name."""

    task_id: str
    task: str
    loss: float = Field(description="`learned` minus `now`.")
    queries: int
    learned: float
    now: float


class MeasuredLoss(ResponseModel):
    """Recall@1 of earlier domains right after they were learned, minus the newest release's, weighted by queries."""

    loss: float = Field(description="`learned` minus `now`; a gain is negative.")
    domains: int
    queries: int
    learned: float
    now: float
    worst: DomainLoss | None = Field(
        description="Domain with the largest loss, among those with 20 or more queries if there are any; null if none "
        "has lost."
    )


class UnfoundDomain(ResponseModel):
    """A domain in which no query ranks its video first. ``task`` is its name."""

    task_id: str
    task: str
    queries: int


class ServedRecall(ResponseModel):
    """Recall@1 as users experience it: with the newest release, weighted by queries."""

    mode: Open[QueryMode] = Field(description="Query mode in which the service searches.")
    domains: int = Field(description="Number of domains with queries.")
    domains_with_few_queries: int = Field(description="Number of domains with fewer than 20 queries.")
    recall: dict[Open[Gallery], MeasuredShare | None] = Field(description="Recall@1, by gallery.")
    loss: dict[Open[Gallery], MeasuredLoss | None] = Field(description="Loss of earlier domains, by gallery.")
    router_accuracy: MeasuredShare | None = Field(
        description="Share of queries whose own domain is the likeliest of those with captions."
    )
    unfound_domains: int = Field(
        description="Number of domains in which no query ranks its video first among all held-out videos."
    )
    unfound: list[UnfoundDomain] = Field(description="The five with the most queries.")
    unfound_all_domains: int = Field(
        description="Number of domains in which no query ranks its video first among all videos, as users search."
    )
    unfound_all: list[UnfoundDomain] = Field(description="The five with the most queries.")


class RecallMatrix(ResponseModel):
    """The recall matrix and the measures derived from it.

    Recall values are shares, 0..1. Rows are releases, columns are domains, both in learning order. Domains without
    queries or videos are omitted. Local: the domain's own shard, known task. Global: the union of all shards, unknown
    task. The galleries contain the held-out videos; ``…_all`` galleries contain all videos.

    Rows and columns are a window of the matrix; measures, curves and ``served`` describe the whole library.
    """

    first_release: int = Field(description="Position of the first row in the complete matrix, from 1.")
    domains: int = Field(description="Number of columns of the complete matrix.")
    first_domain: int = Field(description="Position of the first column in the complete matrix, from 1.")
    tasks: list[str] = Field(description="Domain name of each column.")
    task_ids: list[str]
    releases: list[str] = Field(description="Release of each row.")
    mode: Open[QueryMode]
    matrix_local: Matrix
    matrix_global: Matrix
    matrix_local_all: Matrix
    matrix_global_all: Matrix
    learned: dict[Open[Gallery], list[float | None]] = Field(description="Recall when learned, by gallery.")
    queries: list[list[int]] = Field(description="Queries of each cell; 0 where nothing was measured.")
    bwf_local: float | None = Field(description="Mean over domains with equal weights, as in the papers.")
    bwf_global: float | None
    fr: float | None
    hm: float | None
    zero_shot: list[float | None] = Field(
        description="Recall of the untrained backbone for each domain, among the held-out videos in its own shard."
    )
    recall_over_time_local: list[float | None] = Field(
        description="Mean recall over all domains for each release, weighted by queries."
    )
    recall_over_time_global: list[float | None]
    router_accuracy: list[float | None] = Field(description="For each release.")
    losses: dict[Open[Gallery], MeasuredLoss | None] = Field(
        description="Loss of earlier domains with the served release, weighted by queries, by gallery."
    )
    served: ServedRecall
    held_out: list[Open[HeldOut] | None] = Field(
        description="How the cells of each domain are measured, all alike: with a `given` or `derived` test split, or "
        "`cross_fitted`: with learned captions, by a model trained without them."
    )
    after: list[str] = Field(description="Name of the domain that each row's release learned last.")
    newest: dict[str, list[RecallFigures | None]] = Field(
        description="Recall@1, 5 and 10 of the newest release for each domain, by gallery."
    )


class ShardSummary(ResponseModel):
    """A published shard. ``task`` is the name of its domain."""

    id: str
    task: str
    task_id: str
    release: str
    count: int
    dim: int
    bytes: int
    created_at: datetime
    deleted: int = Field(
        default=0,
        description="Number of deleted vectors, which take disk space until the domain is compacted.",
    )
    degraded: str | None = None


class ShardPage(ResponseModel):
    """A page of shards."""

    shards: list[ShardSummary]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class ServeSpec(RequestModel):
    """Options of ``POST /releases/{release_id}/serve``."""

    dry_run: bool = Field(default=False, description="Return the effects without changing anything.")


class DomainChange(ResponseModel):
    """A domain that becomes searchable or unsearchable when the served release changes. ``task`` is its name."""

    task_id: str
    task: str
    videos: int
    appended: int = Field(description="Number of its videos appended after it was learned.")


class ServedChange(ResponseModel):
    """Domains that become searchable, or unsearchable, when the served release changes."""

    domains: int
    videos: int
    appended: int = Field(description="Number of these videos appended after their domain was learned.")
    first: list[DomainChange] = Field(description="The first 20 domains in learning order.")


class ServeOutcome(ResponseModel):
    """Effects of serving a release."""

    release: str
    task: str = Field(description="Name of the domain that the release learned last.")
    learned_order: int
    created_at: datetime
    before: str = Field(description="Release that was served before.")
    newest: str = Field(description="Newest release, which the next task continues.")
    pinned: bool = Field(description="Whether later releases stay unsearched until you serve another.")
    changed: bool = Field(description="Whether a different release was served before.")
    dry_run: bool
    unsearchable: ServedChange = Field(description="Domains that become unsearchable.")
    searchable_again: ServedChange = Field(description="Domains that become searchable.")
    searchable_videos: int = Field(description="Number of searchable videos after the change.")
    kept_appended: int = Field(description="Appended after the release to searchable domains; they stay.")


class PinnedRelease(ResponseModel):
    """An earlier release that an operator serves instead of the newest. ``task`` names the domain it learned last."""

    release: str
    task: str
    learned_order: int = Field(description="Position of its last domain. Later domains are not searched.")
    newest: str
    newest_task: str
    unsearchable: ServedChange = Field(description="Domains learned later.")


class ReleaseSummary(ResponseModel):
    """A release. ``task`` is the name of the domain that it learned last."""

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
    calibration_error: float | None = optional(
        "Expected calibration error of its confidences, cross-validated, 0..1; null without calibration."
    )


class ReleasePage(ResponseModel):
    """A page of releases."""

    releases: list[ReleaseSummary]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class WorkerLease(ResponseModel):
    """An active worker's lease on a task."""

    task_id: str
    task: str
    state: Open[TaskState]
    owner: str
    expires_at: datetime


class LibraryVersions(ResponseModel):
    """Versions of the library's parts; a version changes with its part."""

    tasks: str = Field(description="`/tasks`, without the progress of unfinished tasks.")
    measures: str = Field(description="`/forgetting`.")
    storage: str = Field(description="`/shards` and `/releases`.")
    syncs: str = Field(description="`/syncs`.")


class DomainVectors(ResponseModel):
    """Number of undeleted vectors in a domain. ``task`` is its name."""

    task_id: str
    task: str
    vectors: int


class UncaptionedDomain(ResponseModel):
    """A domain with videos without captions. ``task`` is its name."""

    task_id: str
    task: str
    videos: int
    uncaptioned: int = Field(description="Number of these videos that have no caption.")


class LibraryStatus(ResponseModel):
    """State of the library, in bounded size for any number of domains."""

    release: str | None = Field(description="Release that answers searches.")
    pinned: PinnedRelease | None = Field(description="Set while an earlier release is served.")
    generation: int
    tasks: dict[Open[TaskState], int]
    domains: int = Field(description="Number of learned domains with videos.")
    searchable_domains: int = Field(description="Number of these domains that the served release can search.")
    trained_domains: int = Field(
        description="Number of these domains that the encoders have learned from; others, such as domains without "
        "captions, were indexed without training."
    )
    first_domains: list[DomainVectors] = Field(description="The first 8 searchable ones, in learning order.")
    active: list[TaskDetails] = Field(description="The first 10 unfinished, without rejected videos.")
    failed: TaskDetails | None = Field(description="The first failed task, with its first rejected video.")
    videos: int
    searchable: int = Field(description="Number of searchable videos.")
    unread: int = Field(
        default=0, description="Number of videos whose speech or text in the picture is to be read."
    )
    uncaptioned: UncaptionedDomain | None = optional(
        "Of the domains in which most videos have no caption, the one with the most such videos."
    )
    vectors: int = Field(description="Number of vectors for searchable videos and their moments.")
    shard_count: int
    release_count: int
    bytes_shards: int
    bytes_releases: int
    workers: list[WorkerLease]
    degraded: dict[str, str]
    alerts: list[AlertDetails] = Field(description="The 10 newest open alerts.")
    open_alerts: int = Field(description="Number of open alerts.")
    open_failures: int = Field(description="Number of failed tasks.")
    live_workers: int = Field(description="Number of workers that reported within the last minute.")
    missing_workers: bool = Field(
        description="Whether no worker is running although one ran within the last day, or tasks are waiting."
    )
    max_upload_bytes: int = Field(description="Maximum size of an archive that is sent to create a task.")
    database: str = Field(description="'ok' or an error.")
    broker: str = Field(description="'ok' or an error.")
    versions: LibraryVersions


AlertKind = Literal["forgetting_local", "forgetting_global"]
ALERT_KINDS: tuple[AlertKind, ...] = get_args(AlertKind)


class AlertDetails(ResponseModel):
    """A domain that has lost recall, in its own shard or among all shards."""

    id: int
    kind: Open[AlertKind]
    task_id: str | None = Field(description="ID of the domain.")
    task: str | None = Field(description="Name of the domain.")
    value: float = Field(description="Lost Recall@1.")
    threshold: float
    message: str
    raised_at: datetime
    cleared_at: datetime | None = optional("When the recall recovered; only in `alert.cleared`.")
