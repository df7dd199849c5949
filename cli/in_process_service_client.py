"""Client that runs the service's functions in this process, on a data folder."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import structlog

from cinestrata_schemas.choice_types import SearchScope
from cinestrata_schemas.tasks import RelearnSpec, RetrySpec
from cli.embedded.data_folder import data_folder_settings
from cli.service_client import MethodSettings
from service.audit.actor import command_line_actor, set_process_actor
from service.audit.audit_log import AuditFilter, list_entries, record_event
from service.backups import stored_snapshots
from service.catalog.migrations import upgrade
from service.library import (
    alerts,
    deletion,
    release_listing,
    release_serving,
    video_details,
    video_editing,
    video_listing,
)
from service.library.recall import recall_matrix
from service.operations import maintenance_jobs
from service.syncs import registered_syncs
from service.tasks import commands, relearning
from service.webhooks import endpoints

if TYPE_CHECKING:
    from cinestrata_schemas.access import AuditPage
    from cinestrata_schemas.alerts import AlertDetails, AlertPage
    from cinestrata_schemas.choice_types import QueryMode
    from cinestrata_schemas.library import RecallMatrix
    from cinestrata_schemas.operations import JobDetails, JobSpec, SnapshotDetails
    from cinestrata_schemas.releases import ReleaseSummary, ServeOutcome
    from cinestrata_schemas.search import SearchResponse, SimilarVideosResponse
    from cinestrata_schemas.syncs import SyncDetails, SyncSpec
    from cinestrata_schemas.tasks import AppendSpec, TaskDetails, TaskSpec
    from cinestrata_schemas.videos import DeletionResult, VideoDetails, VideoPage, VideoPatch, VideoSummary
    from cinestrata_schemas.webhooks import (
        DeliveryDetails,
        WebhookDetails,
        WebhookPatch,
        WebhookSecret,
        WebhookSpec,
    )
    from service.search.engine import SearchEngine

__all__ = ["InProcessServiceClient"]

_PAGE = 1000  # videos
_ALL = 2**31  # rows
_BLOCK_BYTES = 1024**2


class InProcessServiceClient:
    """Works on the catalog, the broker and the index of a data folder, without a running API.

    Args:
        data: Data folder; None takes it from the environment.
    """

    def __init__(self, data: Path | None) -> None:
        self._settings = data_folder_settings(data)
        # The command prints successes itself.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        upgrade(self._settings)
        set_process_actor(command_line_actor())

    def create_task(self, spec: TaskSpec, key: str | None = None) -> TaskDetails:
        """Create a task. Requests with the same idempotency key create one task."""
        return commands.create_task(spec, idempotency_key=key, caller="cli").task

    def create_task_from_archive(
        self, archive: BinaryIO, filename: str, name: str, method: str | None, settings: MethodSettings
    ) -> TaskDetails:
        """Create a task from an archive of videos with a manifest."""
        outcome = commands.create_task_from_archive(
            archive, filename, name=name, method=method, settings=settings, caller="cli"
        )
        return outcome.task

    def append_videos(self, task_id: str, spec: AppendSpec, key: str | None = None) -> TaskDetails:
        """Append videos to a learned domain. Requests with the same idempotency key create one append."""
        return commands.append_videos(task_id, spec, idempotency_key=key, caller="cli").task

    def append_archive(self, task_id: str, archive: BinaryIO, filename: str) -> TaskDetails:
        """Append the videos of an archive with a manifest to a learned domain."""
        return commands.append_archive(task_id, archive, filename, caller="cli").task

    def tasks(self) -> list[TaskDetails]:
        """All tasks, oldest first."""
        return commands.list_tasks()

    def task(self, task_id: str) -> TaskDetails:
        """The current state of a task."""
        return commands.get_task(task_id)

    def task_videos(self, task_id: str) -> Iterator[VideoSummary]:
        """All videos of a domain and of the appends to it, in the order of their arrival."""
        cursor: str | None = None
        while True:
            page = video_listing.list_videos(task_id, cursor=cursor, limit=_PAGE)
            yield from page.videos
            if (cursor := page.next_cursor) is None:
                return

    def cancel(self, task_id: str) -> TaskDetails:
        """Request that a task stops."""
        return commands.cancel_task(task_id)

    def retry(self, task_id: str, spec: RetrySpec) -> TaskDetails:
        """Queue a failed or cancelled task again."""
        return commands.retry_task(task_id, spec)

    def relearn(self, task_id: str, name: str | None = None) -> TaskDetails:
        """Learn the appended videos of a domain as a new domain."""
        return relearning.relearn_appended_videos(task_id, RelearnSpec(name=name)).task

    def videos(self, **parameters: Any) -> VideoPage:
        """A page of videos; ``parameters`` are those of ``GET /videos`` that are set."""
        return video_listing.list_videos(**parameters)

    def edit_video(self, video_id: str, patch: VideoPatch) -> VideoDetails:
        """Change captions and metadata of a video; only fields of the patch that are set apply."""
        return video_editing.edit_video(video_id, patch, caller="cli")

    def register_sync(self, spec: SyncSpec) -> SyncDetails:
        """Let a domain follow a folder of videos."""
        return registered_syncs.register_sync(spec)

    def syncs(self) -> list[SyncDetails]:
        """All registered syncs by name."""
        return registered_syncs.list_syncs()

    def remove_sync(self, name_or_id: str) -> None:
        """Remove a registered sync by its id, or by the name or slug of its domain."""
        registered_syncs.remove_sync(name_or_id)

    def releases(self) -> list[ReleaseSummary]:
        """All releases in the order of learning."""
        return release_listing.list_releases(limit=_ALL).releases

    def serve_release(self, release: str, *, dry_run: bool) -> ServeOutcome:
        """Let searches use a release, and return the effects; a dry run only returns them."""
        return release_serving.serve_release(release, dry_run=dry_run)

    def create_webhook(self, spec: WebhookSpec) -> WebhookSecret:
        """Register an endpoint of webhooks, and return its secret."""
        return endpoints.create_webhook(spec)

    def webhooks(self) -> list[WebhookDetails]:
        """All webhooks, oldest first."""
        return endpoints.list_webhooks()

    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook with its messages."""
        endpoints.remove_webhook(webhook_id)

    def test_webhook(self, webhook_id: str) -> DeliveryDetails:
        """Send a test message now, and return its result."""
        return endpoints.send_test(webhook_id)

    def edit_webhook(self, webhook_id: str, patch: WebhookPatch) -> WebhookDetails:
        """Change the events of a webhook, or whether it is enabled."""
        return endpoints.edit_webhook(webhook_id, patch)

    def deliveries(self, webhook_id: str, limit: int) -> list[DeliveryDetails]:
        """The newest messages of a webhook, newest first."""
        return endpoints.list_deliveries(webhook_id, limit=limit).deliveries

    def resend_delivery(self, webhook_id: str, delivery_id: int) -> DeliveryDetails:
        """Send a message of a webhook again."""
        return endpoints.resend(webhook_id, delivery_id)

    def alerts(self) -> AlertPage:
        """Open and earlier alerts."""
        return alerts.list_alerts()

    def dismiss_alert(self, alert_id: int) -> AlertDetails:
        """Hide an alert."""
        return alerts.dismiss_alert(alert_id)

    def snapshots(self) -> list[SnapshotDetails]:
        """Stored snapshots, newest first."""
        return stored_snapshots.list_snapshots()

    def download_snapshot(self, name: str, target: BinaryIO) -> None:
        """Write a stored snapshot to an open file."""
        with stored_snapshots.snapshot_path(name).open("rb") as file:
            record_event("snapshot.download", name)
            shutil.copyfileobj(file, target, _BLOCK_BYTES)

    def delete_snapshot(self, name: str) -> None:
        """Delete a stored snapshot."""
        stored_snapshots.delete_snapshot(name)

    def start_job(self, spec: JobSpec) -> JobDetails:
        """Let a worker compact shards or write a snapshot."""
        return maintenance_jobs.start_job(spec)

    def jobs(self) -> list[JobDetails]:
        """The last maintenance jobs, newest first."""
        return maintenance_jobs.list_jobs()

    def delete(self, videos: list[str]) -> DeletionResult:
        """Delete videos permanently."""
        return deletion.delete_videos(videos)

    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete all videos of a task permanently."""
        return deletion.delete_task(task_id)

    def search(
        self, query: str, k: int, task: list[str] | None, mode: QueryMode | None, **fields: Any
    ) -> SearchResponse:
        """Search with a text; ``fields`` are the other fields of ``SearchQuery``."""
        return self._query_service().search(query, k, task, mode, **fields)

    def similar(self, video_id: str, k: int, scope: SearchScope) -> SimilarVideosResponse:
        """Videos similar to a video."""
        return self._query_service().search_similar(video_id, k, scope)

    def playback_address(self, video_id: str) -> str:
        """Address of the video's file."""
        return video_details.stream_path(video_id).as_uri()

    def forgetting(self) -> RecallMatrix:
        """The recall matrix and the measures of forgetting."""
        return recall_matrix.read_recall_matrix()

    def audit(self, **parameters: Any) -> AuditPage:
        """A page of the audit log; ``parameters`` are those of ``GET /audit`` that are set."""
        paging = {name: parameters.pop(name) for name in ("sort", "cursor", "limit") if name in parameters}
        return list_entries(AuditFilter(**parameters), **paging)

    def _query_service(self) -> SearchEngine:
        # Imported here because only searches need torch.
        from service.search.engine import SearchEngine

        service = SearchEngine(self._settings)
        service.snapshots.refresh()
        return service
