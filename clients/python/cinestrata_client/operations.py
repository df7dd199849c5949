"""The API's operations as methods of both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cinestrata_client.requests import Pages, operation
from cinestrata_schemas import access, choice_types, library, operations, syncs, tasks, videos, webhooks
from cinestrata_schemas import search as searches

# mypy: disable-error-code="empty-body"


class Operations:
    """Methods named by ``operationId``; the OpenAPI document describes their parameters."""

    # --- Tasks ---

    @operation("POST", "/tasks")
    def create_task(self, body: tasks.TaskSpec, *, idempotency_key: str | None = None) -> tasks.TaskDetails:
        """Create a task that learns a domain of videos."""

    @operation("GET", "/tasks")
    def list_tasks(
        self,
        *,
        cursor: str | None = None,
        state: Sequence[choice_types.TaskState] | None = None,
        kind: choice_types.TaskKind | None = None,
        into: str | None = None,
        method: str | None = None,
        text: str | None = None,
        searched: bool | None = None,
        sort: choice_types.TaskSort | None = None,
        limit: int | None = None,
    ) -> list[tasks.TaskDetails]:
        """List tasks, by default in queue order."""

    @operation("POST", "/tasks/{task_id}/videos")
    def append_videos(
        self, task_id: str, body: tasks.AppendSpec, *, idempotency_key: str | None = None
    ) -> tasks.TaskDetails:
        """Append videos to a learned domain."""

    @operation("DELETE", "/tasks/{task_id}/videos")
    def delete_videos(self, task_id: str, body: videos.DeletionRequest) -> videos.DeletionResult:
        """Delete videos of a task."""

    @operation("GET", "/tasks/{task_id}")
    def get_task(self, task_id: str) -> tasks.TaskDetails:
        """Return a task with its state, progress and first rejected videos."""

    @operation("DELETE", "/tasks/{task_id}")
    def delete_task(self, task_id: str) -> videos.DeletionResult:
        """Delete a task with all of its videos and its evaluation."""

    @operation("POST", "/tasks/{task_id}/cancel")
    def cancel_task(self, task_id: str) -> tasks.TaskDetails:
        """Cancel a task: immediately if it is queued, otherwise at the worker's next step."""

    @operation("POST", "/tasks/{task_id}/retry")
    def retry_task(self, task_id: str, *, body: tasks.RetrySpec | None = None) -> tasks.TaskDetails:
        """Queue a failed or cancelled task again, after all waiting tasks."""

    @operation("POST", "/tasks/{task_id}/relearn")
    def relearn_task(
        self, task_id: str, *, idempotency_key: str | None = None, body: tasks.RelearnSpec | None = None
    ) -> tasks.TaskDetails:
        """Learn a domain's appended videos as a new domain."""

    @operation("POST", "/tasks/{task_id}/upgrade")
    def upgrade_task(self, task_id: str, *, body: tasks.UpgradeSpec | None = None) -> tasks.TaskDetails:
        """Learn a domain again with another backbone or method."""

    @operation("POST", "/tasks/{task_id}/upgrade/undo")
    def undo_upgrade(self, task_id: str) -> tasks.TaskDetails:
        """Undo a domain's upgrade."""

    @operation("POST", "/tasks/{task_id}/upgrade/accept")
    def accept_upgrade(self, task_id: str) -> tasks.TaskDetails:
        """Keep a domain's upgrade for good."""

    @operation("GET", "/tasks/{task_id}/reading")
    def get_reading(self, task_id: str) -> tasks.ReadingDetails:
        """Return what is read from a domain's videos besides their pictures, and how far that is."""

    @operation("POST", "/tasks/{task_id}/reading")
    def start_reading(self, task_id: str, *, body: tasks.ReadingSpec | None = None) -> tasks.ReadingDetails:
        """Read the videos of a domain that were not read yet: files, speech, and text in the picture."""

    @operation("DELETE", "/tasks/{task_id}/reading")
    def cancel_reading(self, task_id: str) -> tasks.ReadingDetails:
        """Stop reading the videos of a domain."""

    @operation("POST", "/samples")
    def create_sample_task(self) -> tasks.TaskDetails:
        """Add the sample domain `street`, whose videos the service draws, for a first search."""

    # --- Videos ---

    @operation("GET", "/videos")
    def list_videos(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        status: choice_types.VideoStatus | None = None,
        split: choice_types.EffectiveSplit | None = None,
        text: str | None = None,
        sort: choice_types.VideoSort | None = None,
        task: str | None = None,
    ) -> videos.VideoPage:
        """List videos in pages."""

    @operation("GET", "/videos/{video_id}")
    def get_video(self, video_id: str) -> videos.VideoDetails:
        """Return a video with its captions, metadata and transcript."""

    @operation("PATCH", "/videos/{video_id}")
    def edit_video(
        self, video_id: str, body: videos.VideoPatch, *, if_match: str | None = None
    ) -> videos.VideoDetails:
        """Change captions, metadata or transcript with a JSON Merge Patch (RFC 7396)."""

    @operation("GET", "/videos/{video_id}/transcript")
    def get_transcript(
        self,
        video_id: str,
        *,
        format: choice_types.SubtitleFormat | None = None,
        source: Sequence[choice_types.TextSource] | None = None,
    ) -> str:
        """Return a video's timed texts as subtitles."""

    @operation("PATCH", "/videos/{video_id}/transcript/{cue_id}")
    def edit_cue(self, video_id: str, cue_id: str, body: videos.CuePatch) -> videos.VideoDetails:
        """Correct a timed text of a video, named by its `id`."""

    @operation("DELETE", "/videos/{video_id}/transcript/{cue_id}")
    def delete_cue(self, video_id: str, cue_id: str) -> videos.VideoDetails:
        """Delete a timed text of a video."""

    @operation("DELETE", "/videos/{video_id}")
    def delete_video(self, video_id: str) -> videos.DeletionResult:
        """Delete a video."""

    @operation("GET", "/videos/{video_id}/similar")
    def find_similar(
        self,
        video_id: str,
        *,
        k: int | None = None,
        scope: choice_types.SearchScope | None = None,
        min_score: float | None = None,
    ) -> searches.SimilarVideosResponse:
        """Find the videos most similar to a library video, by their stored vectors."""

    @operation("GET", "/videos/{video_id}/explanation")
    def explain_result(
        self,
        video_id: str,
        q: str,
        *,
        k: int | None = None,
        task: Sequence[str] | None = None,
        min_duration: float | None = None,
        max_duration: float | None = None,
        arrived_after: datetime | None = None,
        arrived_before: datetime | None = None,
        where: Mapping[str, Any] | str | None = None,
        min_score: float | None = None,
        mode: choice_types.QueryMode | None = None,
        routes: str | None = None,
        moments: int | None = None,
    ) -> searches.ResultExplanation:
        """Explain a video's score for a query: cosine, routing evidence, confidence and rank."""

    @operation("GET", "/videos/{video_id}/thumbnail")
    def get_thumbnail(self, video_id: str) -> bytes:
        """Return a JPEG image from the middle of the video, at most 320 pixels wide."""

    # --- Searches ---

    @operation("GET", "/search")
    def search(
        self,
        q: str,
        *,
        k: int | None = None,
        task: Sequence[str] | None = None,
        min_duration: float | None = None,
        max_duration: float | None = None,
        arrived_after: datetime | None = None,
        arrived_before: datetime | None = None,
        where: Mapping[str, Any] | str | None = None,
        min_score: float | None = None,
        mode: choice_types.QueryMode | None = None,
        routes: str | None = None,
        moments: int | None = None,
        min_confidence: float | None = None,
        facets: bool | None = None,
        cursor: str | None = None,
    ) -> searches.SearchResponse:
        """Search videos by text, in all domains or some of them, best first."""

    @operation("POST", "/search")
    def search_many(self, body: searches.SearchBatch) -> searches.SearchBatchResponse:
        """Run up to 256 searches in one request, all on one release except those with a cursor."""

    @operation("GET", "/suggestions")
    def suggest_words(self, q: str, *, k: int | None = None) -> searches.SuggestionsResponse:
        """Suggest words that complete the last word of a query, most frequent first."""

    @operation("GET", "/videos/{video_id}/captions")
    def describe_video(
        self, video_id: str, *, k: int | None = None, scope: choice_types.SearchScope | None = None
    ) -> searches.CaptionsResponse:
        """Find the library captions that describe a video best, each with the video it belongs to."""

    # --- Feedback ---

    @operation("POST", "/feedback")
    def give_feedback(self, body: videos.FeedbackSpec) -> videos.FeedbackDetails:
        """Mark a video right or wrong for a query."""

    @operation("GET", "/feedback")
    def list_feedback(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        video_id: str | None = None,
        text: str | None = None,
        verdict: choice_types.Verdict | None = None,
        caller: str | None = None,
        own: bool | None = None,
        sort: choice_types.TimeSort | None = None,
    ) -> videos.FeedbackPage:
        """List feedback in pages, newest first by default."""

    @operation("DELETE", "/feedback/{feedback_id}")
    def take_back_feedback(self, feedback_id: int) -> None:
        """Take back feedback."""

    # --- Library and measures ---

    @operation("GET", "/tasks/{task_id}/queries")
    def get_query_report(self, task_id: str, *, worst: int | None = None) -> searches.QueryReport:
        """Measure how well search finds a domain's videos by their captions."""

    @operation("GET", "/forgetting")
    def get_forgetting(
        self,
        *,
        rows: int | None = None,
        first_release: int | None = None,
        first_domain: int | None = None,
        limit: int | None = None,
    ) -> library.RecallMatrix:
        """Return the recall matrix A[i, t] and measures of forgetting."""

    @operation("GET", "/library")
    def get_library(self) -> library.LibraryStatus:
        """Summarize the library: counts, unfinished tasks, workers and faults."""

    @operation("GET", "/shards")
    def list_shards(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        text: str | None = None,
        sort: choice_types.ShardSort | None = None,
    ) -> library.ShardPage:
        """List published shards in pages, with domain, size and faults."""

    @operation("GET", "/releases")
    def list_releases(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        task: str | None = None,
        kind: str | None = None,
        method: str | None = None,
        current: bool | None = None,
        sort: choice_types.ReleaseSort | None = None,
    ) -> library.ReleasePage:
        """List releases in pages, with method, kind and size."""

    @operation("POST", "/releases/{release_id}/serve")
    def serve_release(
        self, release_id: str, *, body: library.ServeSpec | None = None
    ) -> library.ServeOutcome:
        """Serve another release, and return the domains that become searchable or unsearchable."""

    # --- Uploads ---

    @operation("POST", "/uploads/preview")
    def preview_upload(self, body: tasks.PreviewRequest) -> tasks.UploadPreview:
        """Preview the task that selected files would become: its videos, captions and problems."""

    @operation("DELETE", "/uploads/{upload_id}", headers={"Tus-Resumable": "1.0.0"})
    def delete_upload(self, upload_id: str) -> None:
        """Delete an upload and its bytes (tus extension termination)."""

    # --- Syncs ---

    @operation("GET", "/syncs")
    def list_syncs(self) -> list[syncs.SyncDetails]:
        """List syncs by domain name, with their last and next run."""

    @operation("POST", "/syncs")
    def register_sync(self, body: syncs.SyncSpec) -> syncs.SyncDetails:
        """Let a domain follow a folder of videos, or a manifest."""

    @operation("GET", "/syncs/files")
    def list_synced_files(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        task: str | None = None,
        sha256: Sequence[str] | None = None,
    ) -> syncs.StoredFilePage:
        """List the files that domains follow, as the last sync saw them."""

    @operation("PUT", "/syncs/files")
    def record_synced_files(self, body: syncs.SyncedFilesPatch) -> None:
        """Record what a sync saw, and rename videos whose file has another name."""

    @operation("GET", "/syncs/sources")
    def list_synced_sources(self) -> list[syncs.FollowedSource]:
        """List the sources that domains follow, or have followed."""

    @operation("DELETE", "/syncs/{sync}")
    def remove_sync(self, sync: str) -> None:
        """Remove a sync."""

    # --- Operation ---

    @operation("GET", "/operations")
    def get_operations(self) -> operations.OperationsStatus:
        """Return the state of operation: workers, queue, running tasks, jobs and disk space."""

    @operation("POST", "/maintenance")
    def start_job(self, body: operations.JobSpec) -> operations.JobDetails:
        """Start a maintenance job: compact shards, or write a backup."""

    @operation("GET", "/snapshots")
    def list_snapshots(self) -> list[operations.SnapshotDetails]:
        """List the backups that workers have written, newest first."""

    @operation("DELETE", "/snapshots/{name}")
    def delete_snapshot(self, name: str) -> None:
        """Delete a backup."""

    # --- Webhooks ---

    @operation("GET", "/webhooks")
    def list_webhooks(self) -> list[webhooks.WebhookDetails]:
        """List the registered endpoints, oldest first."""

    @operation("POST", "/webhooks")
    def create_webhook(self, body: webhooks.WebhookSpec) -> webhooks.WebhookSecret:
        """Register an endpoint that receives events as signed messages (Standard Webhooks)."""

    @operation("PATCH", "/webhooks/{webhook_id}")
    def edit_webhook(self, webhook_id: str, body: webhooks.WebhookPatch) -> webhooks.WebhookDetails:
        """Change a webhook's events, or enable or disable it."""

    @operation("DELETE", "/webhooks/{webhook_id}")
    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook and its messages."""

    @operation("POST", "/webhooks/{webhook_id}/test")
    def test_webhook(self, webhook_id: str) -> webhooks.DeliveryDetails:
        """Send one `webhook.test` message now, and return the result."""

    @operation("GET", "/webhooks/{webhook_id}/deliveries")
    def list_deliveries(
        self, webhook_id: str, *, cursor: str | None = None, limit: int | None = None
    ) -> webhooks.DeliveryPage:
        """List a webhook's messages in pages, newest first, with attempts and last responses."""

    @operation("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/resend")
    def resend_delivery(self, webhook_id: str, delivery_id: int) -> webhooks.DeliveryDetails:
        """Resend a message that was delivered or given up."""

    # --- Access and audit ---

    @operation("GET", "/access/current")
    def get_current_access(self) -> access.CurrentAccess:
        """Return the caller's name and scope."""

    @operation("GET", "/keys")
    def list_keys(self) -> list[access.KeyDetails]:
        """List API keys with scope, expiry and last use, newest first."""

    @operation("POST", "/keys")
    def create_key(self, body: access.KeySpec) -> access.KeySecret:
        """Create an API key."""

    @operation("DELETE", "/keys/{key_id}")
    def revoke_key(self, key_id: str) -> access.KeyDetails:
        """Revoke an API key and end the sessions started with it."""

    @operation("GET", "/users")
    def list_users(self) -> list[access.UserDetails]:
        """List dashboard users by name."""

    @operation("POST", "/users")
    def create_user(self, body: access.UserSpec) -> access.UserDetails:
        """Create a user who signs in with a password."""

    @operation("PATCH", "/users/{user_id}")
    def edit_user(self, user_id: str, body: access.UserPatch) -> access.UserDetails:
        """Change a user's role or password."""

    @operation("DELETE", "/users/{user_id}")
    def remove_user(self, user_id: str) -> access.UserDetails:
        """Remove a user and end their sessions."""

    @operation("GET", "/sessions")
    def list_sessions(self) -> list[access.SessionDetails]:
        """List active browser sessions, newest first."""

    @operation("DELETE", "/sessions/{session_id}")
    def end_session(self, session_id: str) -> None:
        """End a browser session."""

    @operation("GET", "/audit")
    def list_audit_entries(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        actor: str | None = None,
        kind: Sequence[choice_types.ActorKind] | None = None,
        action: Sequence[str] | None = None,
        target: str | None = None,
        address: str | None = None,
        request_id: str | None = None,
        text: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        sort: choice_types.TimeSort | None = None,
    ) -> access.AuditPage:
        """List the audit log in pages, newest first by default."""

    @operation("GET", "/livez")
    def livez(self) -> dict[str, str]:
        """Check that the process is running."""

    @operation("GET", "/readyz", accepted=(503,))
    def readyz(self) -> operations.Readiness:
        """Check that the process can answer searches."""

    @operation("GET", "/metrics")
    def metrics(self) -> str:
        """Return metrics in the Prometheus text format."""

    # --- Lists over all their pages ---

    iter_tasks = Pages(list_tasks, tasks.TaskDetails)
    iter_videos = Pages(list_videos, videos.VideoSummary)
    iter_synced_files = Pages(list_synced_files, syncs.StoredFile)
    iter_releases = Pages(list_releases, library.ReleaseSummary)
    iter_shards = Pages(list_shards, library.ShardSummary)
    iter_audit_entries = Pages(list_audit_entries, access.AuditRecord)
    iter_feedback = Pages(list_feedback, videos.FeedbackDetails)
    iter_search = Pages(search, searches.SearchResult)
