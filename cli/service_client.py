"""The interface between commands and the service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from cinestrata_schemas.choice_types import SearchScope

if TYPE_CHECKING:
    from cinestrata_schemas.access import AuditPage
    from cinestrata_schemas.alerts import AlertDetails, AlertPage
    from cinestrata_schemas.choice_types import QueryMode
    from cinestrata_schemas.library import RecallMatrix
    from cinestrata_schemas.operations import JobDetails, JobSpec, SnapshotDetails
    from cinestrata_schemas.releases import ReleaseSummary, ServeOutcome
    from cinestrata_schemas.search import SearchResponse, SimilarVideosResponse
    from cinestrata_schemas.syncs import SyncDetails, SyncSpec
    from cinestrata_schemas.tasks import AppendSpec, RetrySpec, TaskDetails, TaskSpec
    from cinestrata_schemas.videos import DeletionResult, VideoDetails, VideoPage, VideoPatch, VideoSummary
    from cinestrata_schemas.webhooks import (
        DeliveryDetails,
        WebhookDetails,
        WebhookPatch,
        WebhookSecret,
        WebhookSpec,
    )

__all__ = ["FINAL_STATES", "MethodSettings", "ServiceClient"]

FINAL_STATES = ("ready", "failed", "cancelled")  # of tasks

MethodSettings = dict[str, bool | int | float | str | None] | None  # None: the method's defaults


class ServiceClient(Protocol):
    """Operations of the service that commands use."""

    def create_task(self, spec: TaskSpec, key: str | None = None) -> TaskDetails:
        """Create a task. Requests with the same idempotency key create one task."""

    def create_task_from_archive(
        self, archive: BinaryIO, filename: str, name: str, method: str | None, settings: MethodSettings
    ) -> TaskDetails:
        """Create a task from an archive of videos with a manifest."""

    def append_videos(self, task_id: str, spec: AppendSpec, key: str | None = None) -> TaskDetails:
        """Append videos to a learned domain. Requests with the same idempotency key create one append."""

    def append_archive(self, task_id: str, archive: BinaryIO, filename: str) -> TaskDetails:
        """Append the videos of an archive with a manifest to a learned domain."""

    def tasks(self) -> list[TaskDetails]:
        """All tasks, oldest first."""

    def task(self, task_id: str) -> TaskDetails:
        """The current state of a task."""

    def task_videos(self, task_id: str) -> Iterator[VideoSummary]:
        """All videos of a domain and of the appends to it, in the order of their arrival."""

    def cancel(self, task_id: str) -> TaskDetails:
        """Request that a task stops."""

    def retry(self, task_id: str, spec: RetrySpec) -> TaskDetails:
        """Queue a failed or cancelled task again."""

    def relearn(self, task_id: str, name: str | None = None) -> TaskDetails:
        """Learn the appended videos of a domain as a new domain."""

    def videos(self, **parameters: Any) -> VideoPage:
        """A page of videos; ``parameters`` are those of ``GET /videos`` that are set."""

    def edit_video(self, video_id: str, patch: VideoPatch) -> VideoDetails:
        """Change captions and metadata of a video; only fields of the patch that are set apply."""

    def register_sync(self, spec: SyncSpec) -> SyncDetails:
        """Let a domain follow a folder of videos."""

    def syncs(self) -> list[SyncDetails]:
        """All registered syncs by name."""

    def remove_sync(self, name_or_id: str) -> None:
        """Remove a registered sync by its id, or by the name or slug of its domain."""

    def releases(self) -> list[ReleaseSummary]:
        """All releases in the order of learning."""

    def serve_release(self, release: str, *, dry_run: bool) -> ServeOutcome:
        """Let searches use a release, and return the effects; a dry run only returns them."""

    def create_webhook(self, spec: WebhookSpec) -> WebhookSecret:
        """Register an endpoint of webhooks, and return its secret."""

    def webhooks(self) -> list[WebhookDetails]:
        """All webhooks, oldest first."""

    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook with its messages."""

    def edit_webhook(self, webhook_id: str, patch: WebhookPatch) -> WebhookDetails:
        """Change the events of a webhook, or whether it is enabled."""

    def deliveries(self, webhook_id: str, limit: int) -> list[DeliveryDetails]:
        """The newest messages of a webhook, newest first."""

    def resend_delivery(self, webhook_id: str, delivery_id: int) -> DeliveryDetails:
        """Send a message of a webhook again."""

    def alerts(self) -> AlertPage:
        """Open and earlier alerts."""

    def dismiss_alert(self, alert_id: int) -> AlertDetails:
        """Hide an alert."""

    def snapshots(self) -> list[SnapshotDetails]:
        """Stored snapshots, newest first."""

    def download_snapshot(self, name: str, target: BinaryIO) -> None:
        """Write a stored snapshot to an open file."""

    def delete_snapshot(self, name: str) -> None:
        """Delete a stored snapshot."""

    def start_job(self, spec: JobSpec) -> JobDetails:
        """Let a worker compact shards or write a snapshot."""

    def jobs(self) -> list[JobDetails]:
        """The last maintenance jobs, newest first."""

    def test_webhook(self, webhook_id: str) -> DeliveryDetails:
        """Send a test message now, and return its result."""

    def delete(self, videos: list[str]) -> DeletionResult:
        """Delete videos permanently."""

    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete all videos of a task permanently."""

    def search(
        self, query: str, k: int, task: list[str] | None, mode: QueryMode | None, **fields: Any
    ) -> SearchResponse:
        """Search with a text; ``fields`` are the other fields of ``SearchQuery``."""

    def similar(self, video_id: str, k: int, scope: SearchScope) -> SimilarVideosResponse:
        """Videos similar to a video."""

    def audit(self, **parameters: Any) -> AuditPage:
        """A page of the audit log; ``parameters`` are those of ``GET /audit`` that are set."""

    def playback_address(self, video_id: str) -> str:
        """Address of a video that a browser or a player opens."""

    def forgetting(self) -> RecallMatrix:
        """The recall matrix and the measures of forgetting."""
