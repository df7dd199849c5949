"""Client of a running service over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import httpx

from cinestrata_client import NotFoundError
from cinestrata_schemas.access import AuditPage
from cinestrata_schemas.alerts import AlertDetails, AlertPage
from cinestrata_schemas.choice_types import SearchScope
from cinestrata_schemas.library import RecallMatrix
from cinestrata_schemas.operations import JobDetails, JobSpec, Readiness, SnapshotDetails
from cinestrata_schemas.releases import ReleaseSummary, ServeOutcome, ServeSpec
from cinestrata_schemas.search import SearchResponse, SimilarVideosResponse
from cinestrata_schemas.syncs import SyncDetails, SyncSpec
from cinestrata_schemas.tasks import AppendSpec, RelearnSpec, RetrySpec, TaskDetails, TaskSpec
from cinestrata_schemas.videos import DeletionResult, VideoDetails, VideoPage, VideoPatch, VideoSummary
from cinestrata_schemas.webhooks import (
    DeliveryDetails,
    WebhookDetails,
    WebhookPatch,
    WebhookSecret,
    WebhookSpec,
)
from cli.api_client import open_client
from cli.service_client import MethodSettings

if TYPE_CHECKING:
    from cinestrata_schemas.choice_types import QueryMode

__all__ = ["HttpServiceClient"]

_PAGE = 1000  # videos, releases


class HttpServiceClient:
    """Calls the HTTP API with :class:`cinestrata_client.Client`, whose errors it raises.

    Args:
        url: Base URL of the service.
        transport: Transport of httpx, for tests; None opens network connections.
    """

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self._url = url.rstrip("/")
        self._client = open_client(url, transport)

    def create_task(self, spec: TaskSpec, key: str | None = None) -> TaskDetails:
        """Create a task. Requests with the same idempotency key create one task."""
        return self._client.create_task(spec, idempotency_key=key)

    def create_task_from_archive(
        self, archive: BinaryIO, filename: str, name: str, method: str | None, settings: MethodSettings
    ) -> TaskDetails:
        """Create a task from an archive of videos with a manifest."""
        return self._client.create_task_from_archive(
            archive, name, filename=filename, method=method, settings=settings or None
        )

    def append_videos(self, task_id: str, spec: AppendSpec, key: str | None = None) -> TaskDetails:
        """Append videos to a learned domain. Requests with the same idempotency key create one append."""
        return self._client.append_videos(task_id, spec, idempotency_key=key)

    def append_archive(self, task_id: str, archive: BinaryIO, filename: str) -> TaskDetails:
        """Append the videos of an archive with a manifest to a learned domain."""
        return self._client.append_archive(task_id, archive, filename=filename)

    def tasks(self) -> list[TaskDetails]:
        """All tasks, oldest first."""
        return self._client.list_tasks()

    def task(self, task_id: str) -> TaskDetails:
        """The current state of a task."""
        return self._client.get_task(task_id)

    def task_videos(self, task_id: str) -> Iterator[VideoSummary]:
        """All videos of a domain and of the appends to it, in the order of their arrival."""
        return self._client.iter_videos_of_task(task_id, limit=_PAGE)

    def cancel(self, task_id: str) -> TaskDetails:
        """Request that a task stops."""
        return self._client.cancel_task(task_id)

    def retry(self, task_id: str, spec: RetrySpec) -> TaskDetails:
        """Queue a failed or cancelled task again."""
        return self._client.retry_task(task_id, body=spec)

    def relearn(self, task_id: str, name: str | None = None) -> TaskDetails:
        """Learn the appended videos of a domain as a new domain."""
        body = RelearnSpec(name=name)
        return self._client.relearn_task(task_id, body=body)

    def videos(self, **parameters: Any) -> VideoPage:
        """A page of videos; ``parameters`` are those of ``GET /videos`` that are set."""
        return self._client.list_videos(**parameters)

    def edit_video(self, video_id: str, patch: VideoPatch) -> VideoDetails:
        """Change captions and metadata of a video; only fields of the patch that are set apply."""
        return self._client.edit_video(video_id, patch)

    def register_sync(self, spec: SyncSpec) -> SyncDetails:
        """Let a domain follow a folder of videos."""
        return self._client.register_sync(spec)

    def syncs(self) -> list[SyncDetails]:
        """All registered syncs by name."""
        return self._client.list_syncs()

    def remove_sync(self, name_or_id: str) -> None:
        """Remove a registered sync by its id, or by the name or slug of its domain."""
        self._client.remove_sync(name_or_id)

    def releases(self) -> list[ReleaseSummary]:
        """All releases in the order of learning."""
        return list(self._client.iter_releases(limit=_PAGE))

    def serve_release(self, release: str, *, dry_run: bool) -> ServeOutcome:
        """Let searches use a release, and return the effects; a dry run only returns them."""
        body = ServeSpec(dry_run=dry_run)
        return self._client.serve_release(release, body=body)

    def create_webhook(self, spec: WebhookSpec) -> WebhookSecret:
        """Register an endpoint of webhooks, and return its secret."""
        return self._client.create_webhook(spec)

    def webhooks(self) -> list[WebhookDetails]:
        """All webhooks, oldest first."""
        return self._client.list_webhooks()

    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook with its messages."""
        self._client.remove_webhook(webhook_id)

    def test_webhook(self, webhook_id: str) -> DeliveryDetails:
        """Send a test message now, and return its result."""
        return self._client.test_webhook(webhook_id)

    def edit_webhook(self, webhook_id: str, patch: WebhookPatch) -> WebhookDetails:
        """Change the events of a webhook, or whether it is enabled."""
        return self._client.edit_webhook(webhook_id, patch)

    def deliveries(self, webhook_id: str, limit: int) -> list[DeliveryDetails]:
        """The newest messages of a webhook, newest first."""
        page = self._client.list_deliveries(webhook_id, limit=limit)
        return page.deliveries

    def resend_delivery(self, webhook_id: str, delivery_id: int) -> DeliveryDetails:
        """Send a message of a webhook again."""
        return self._client.resend_delivery(webhook_id, delivery_id)

    def alerts(self) -> AlertPage:
        """Open and earlier alerts."""
        return self._client.list_alerts()

    def dismiss_alert(self, alert_id: int) -> AlertDetails:
        """Hide an alert."""
        return self._client.dismiss_alert(alert_id)

    def snapshots(self) -> list[SnapshotDetails]:
        """Stored snapshots, newest first."""
        return self._client.list_snapshots()

    def download_snapshot(self, name: str, target: BinaryIO) -> None:
        """Write a stored snapshot to an open file."""
        self._client.download_snapshot(name, target)

    def delete_snapshot(self, name: str) -> None:
        """Delete a stored snapshot."""
        self._client.delete_snapshot(name)

    def start_job(self, spec: JobSpec) -> JobDetails:
        """Let a worker compact shards or write a snapshot."""
        return self._client.start_job(spec)

    def jobs(self) -> list[JobDetails]:
        """The last maintenance jobs, newest first."""
        return self._client.get_operations().jobs

    def delete(self, videos: list[str]) -> DeletionResult:
        """Delete videos permanently."""
        deleted, not_found = [], []
        for video in videos:
            try:
                self._client.delete_video(video)
                deleted.append(video)
            except NotFoundError:
                not_found.append(video)
        return DeletionResult(deleted=deleted, not_found=not_found)

    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete all videos of a task permanently."""
        return self._client.delete_task(task_id)

    def search(
        self, query: str, k: int, task: list[str] | None, mode: QueryMode | None, **fields: Any
    ) -> SearchResponse:
        """Search with a text; ``fields`` are the other fields of ``SearchQuery``."""
        return self._client.search(query, k=k, task=task, mode=mode, **fields)

    def video(self, video_id: str) -> VideoDetails:
        """A video with its split."""
        return self._client.get_video(video_id)

    def similar(self, video_id: str, k: int, scope: SearchScope) -> SimilarVideosResponse:
        """Videos similar to a video."""
        return self._client.find_similar(video_id, k=k, scope=scope)

    def playback_address(self, video_id: str) -> str:
        """Address of the video's page."""
        return f"{self._url}/watch/{quote(video_id, safe='')}"

    def forgetting(self) -> RecallMatrix:
        """The recall matrix and the measures of forgetting."""
        return self._client.get_forgetting()

    def audit(self, **parameters: Any) -> AuditPage:
        """A page of the audit log; ``parameters`` are those of ``GET /audit`` that are set."""
        return self._client.list_audit_entries(**parameters)

    def ready(self) -> Readiness:
        """Readiness and the release that answers searches; not an error if the service is not ready."""
        return self._client.readyz()
