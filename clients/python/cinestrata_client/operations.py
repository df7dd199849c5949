"""The API's operations as methods of both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from cinestrata_client.methods import Pages, operation
from cinestrata_client.shown_answers import SearchResponse, SimilarVideosResponse, VideoPage
from cinestrata_schemas.access import (
    AuditPage,
    AuditRecord,
    CurrentAccess,
    KeyDetails,
    KeySecret,
    KeySpec,
    SessionDetails,
    UserDetails,
    UserPatch,
    UserSpec,
)
from cinestrata_schemas.alerts import AlertDetails, AlertPage
from cinestrata_schemas.choice_types import (
    ActorKind,
    EffectiveSplit,
    QueryMode,
    SearchScope,
    TaskKind,
    TaskState,
    Verdict,
    VideoStatus,
)
from cinestrata_schemas.explanations import QueryReport, ResultExplanation
from cinestrata_schemas.feedback import FeedbackDetails, FeedbackPage, FeedbackSpec
from cinestrata_schemas.library import (
    LibraryStatus,
    RecallMatrix,
    ShardPage,
    ShardSummary,
)
from cinestrata_schemas.operations import JobDetails, JobSpec, OperationsStatus, Readiness, SnapshotDetails
from cinestrata_schemas.releases import ReleasePage, ReleaseSummary, ServeOutcome, ServeSpec
from cinestrata_schemas.search import (
    CaptionsResponse,
    SearchBatch,
    SearchBatchResponse,
    SearchResult,
    SuggestionsResponse,
)
from cinestrata_schemas.syncs import (
    FollowedSource,
    StoredFile,
    StoredFilePage,
    SyncDetails,
    SyncedFilesPatch,
    SyncSpec,
)
from cinestrata_schemas.tasks import (
    AppendSpec,
    RelearnSpec,
    RetrySpec,
    TaskDetails,
    TaskSpec,
)
from cinestrata_schemas.uploads import PreviewRequest, UploadPreview
from cinestrata_schemas.videos import (
    DeletionRequest,
    DeletionResult,
    VideoDetails,
    VideoPatch,
    VideoSummary,
)
from cinestrata_schemas.webhooks import (
    DeliveryDetails,
    DeliveryPage,
    WebhookDetails,
    WebhookPatch,
    WebhookSecret,
    WebhookSpec,
)

# mypy: disable-error-code="empty-body"

TaskSort = Literal["position", "-position", "name", "-name", "created", "-created", "learned", "-learned"]
VideoSort = Literal["added", "-added", "id", "-id", "duration", "-duration", "bytes", "-bytes"]
ShardSort = Literal["created", "-created", "count", "-count", "bytes", "-bytes"]
ReleaseSort = Literal["learned", "-learned", "created", "-created", "bytes", "-bytes"]
AuditSort = Literal["time", "-time"]
FeedbackSort = Literal["time", "-time"]


class Operations:
    """Methods named by ``operationId``; the OpenAPI document describes their parameters."""

    # --- Tasks ---

    @operation("POST", "/tasks")
    def create_task(self, body: TaskSpec, *, idempotency_key: str | None = None) -> TaskDetails:
        """Create a task that learns a domain of videos. Training and indexing run in the background."""

    @operation("GET", "/tasks")
    def list_tasks(
        self,
        *,
        cursor: str | None = None,
        state: Sequence[TaskState] | None = None,
        kind: TaskKind | None = None,
        into: str | None = None,
        method: str | None = None,
        text: str | None = None,
        searched: bool | None = None,
        sort: TaskSort | None = None,
        limit: int | None = None,
    ) -> list[TaskDetails]:
        """List tasks, by default in queue order. `into` is null for domains, and set for appends.

        With `limit`, the `Link` header points to the next page as `rel="next"`.
        """

    @operation("POST", "/tasks/{task_id}/videos")
    def append_videos(
        self, task_id: str, body: AppendSpec, *, idempotency_key: str | None = None
    ) -> TaskDetails:
        """Append videos to a learned domain. The response is a separate task; its `into` is the ID of the domain.

        Workers embed the videos with the release pinned by the domain's shard, and add them to the shard as a new
        segment. Nothing is trained, and no stored vector changes. Unusable videos, and files that the domain already
        has, are listed in `rejected`.
        """

    @operation("DELETE", "/tasks/{task_id}/videos")
    def delete_videos(self, task_id: str, body: DeletionRequest) -> DeletionResult:
        """Delete videos of a task. Videos of other tasks are kept, and reported as not found."""

    @operation("GET", "/tasks/{task_id}")
    def get_task(self, task_id: str) -> TaskDetails:
        """Return a task with its state, progress, estimated remaining time and first rejected videos."""

    @operation("DELETE", "/tasks/{task_id}")
    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete a task with all of its videos and its evaluation. A waiting or running task gives 409: cancel it
        first.

        A task that was never published is removed. A learned task stays in the sequence without videos, because later
        releases build on it; its name becomes available. The next `cinestrata compact` removes its vectors.
        """

    @operation("POST", "/tasks/{task_id}/cancel")
    def cancel_task(self, task_id: str) -> TaskDetails:
        """Cancel a task: immediately if it is queued, otherwise at the worker's next step."""

    @operation("POST", "/tasks/{task_id}/retry")
    def retry_task(self, task_id: str, *, body: RetrySpec | None = None) -> TaskDetails:
        """Queue a failed or cancelled task again, after all waiting tasks.

        If the method or settings don't fit the library, the task has a `remedy` with a `body`: send that.
        """

    @operation("POST", "/tasks/{task_id}/relearn")
    def relearn_task(
        self, task_id: str, *, idempotency_key: str | None = None, body: RelearnSpec | None = None
    ) -> TaskDetails:
        """Learn a domain's appended videos as a new domain.

        The response is the new domain's task; its `relearns` is the ID of the original domain. Its videos have
        temporary IDs until it is ready. It then takes over the appended videos with their IDs, captions and metadata,
        and the original domain keeps the videos that it was learned from. While that task is unfinished, a repeated
        request returns it.
        """

    @operation("POST", "/samples")
    def create_sample_task(self) -> TaskDetails:
        """Add the sample domain `street`, whose videos the service draws, for a first search.

        The request takes a few seconds. The videos belong to the service and are deleted with the domain.
        """

    # --- Videos ---

    @operation("GET", "/videos")
    def list_videos(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        status: VideoStatus | None = None,
        split: EffectiveSplit | None = None,
        text: str | None = None,
        sort: VideoSort | None = None,
        task: str | None = None,
    ) -> VideoPage:
        """List videos in pages. `next_cursor` and the `Link` header continue with the next page."""

    @operation("GET", "/videos/{video_id}")
    def get_video(self, video_id: str) -> VideoDetails:
        """Return a video with its captions, metadata and transcript.

        Send the `ETag` of the response as `If-Match` to edit only this version.
        """

    @operation("PATCH", "/videos/{video_id}")
    def edit_video(self, video_id: str, body: VideoPatch, *, if_match: str | None = None) -> VideoDetails:
        """Change captions, metadata or transcript with a JSON Merge Patch (RFC 7396). Idempotent.

        The next search in every process finds the new words. Results and filters change at once, and the domain's
        routing profile within about a second. The video's vector and the encoder stay the same: edits are not learned.
        """

    @operation("DELETE", "/videos/{video_id}")
    def delete_video(self, video_id: str) -> DeletionResult:
        """Delete a video. Searches, training and evaluation no longer use it; repeating the request gives 404.

        Captions, metadata, thumbnail, sampled frames and the uploaded file are deleted immediately; a file below the
        media root is kept.
        """

    @operation("GET", "/videos/{video_id}/similar")
    def find_similar(
        self,
        video_id: str,
        *,
        k: int | None = None,
        scope: SearchScope | None = None,
        min_score: float | None = None,
    ) -> SimilarVideosResponse:
        """Find the videos most similar to a library video, by their stored vectors.

        Vectors from different encoders cannot be compared; `not_compared` names the affected domains. If no comparable
        domain is left, the status is 409.
        """

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
        mode: QueryMode | None = None,
        routes: str | None = None,
        moments: int | None = None,
    ) -> ResultExplanation:
        """Explain a video's score for a query: cosine, routing evidence, confidence and rank.

        The video need not be among the results; `rank` is null if it isn't.
        """

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
        mode: QueryMode | None = None,
        routes: str | None = None,
        moments: int | None = None,
        min_confidence: float | None = None,
        facets: bool | None = None,
        cursor: str | None = None,
    ) -> SearchResponse:
        """Search videos by text, in all domains or some of them, best first.

        Each shard is searched with its own query vector. Filters apply before ranking: k results are returned whenever
        k videos pass them. `next_cursor` continues with the next page from the same release, even after a newer one is
        published.
        """

    @operation("POST", "/search")
    def search_many(self, body: SearchBatch) -> SearchBatchResponse:
        """Run up to 256 searches in one request, all on one release except those with a cursor.

        If a query is invalid, `errors` names its position and field, and no query runs.
        """

    @operation("GET", "/suggestions")
    def suggest_words(self, q: str, *, k: int | None = None) -> SuggestionsResponse:
        """Suggest words that complete the last word of a query, most frequent first.

        They come from captions, metadata and file names.
        """

    @operation("GET", "/videos/{video_id}/captions")
    def describe_video(
        self, video_id: str, *, k: int | None = None, scope: SearchScope | None = None
    ) -> CaptionsResponse:
        """Find the library captions that describe a video best, each with the video it belongs to."""

    # --- Feedback ---

    @operation("POST", "/feedback")
    def give_feedback(self, body: FeedbackSpec) -> FeedbackDetails:
        """Mark a video right or wrong for a query. Idempotent: each caller has one verdict per video and query.

        The next search in every process counts it: a confirmed query becomes a text of the video, weaker than a
        caption, and a refused one is evidence against the video for the same words. When appended videos are relearned,
        their confirmed queries are learned like captions.
        """

    @operation("GET", "/feedback")
    def list_feedback(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        video_id: str | None = None,
        text: str | None = None,
        verdict: Verdict | None = None,
        caller: str | None = None,
        own: bool | None = None,
        sort: FeedbackSort | None = None,
    ) -> FeedbackPage:
        """List feedback in pages, newest first by default. Administrators see everyone's feedback, others their own."""

    @operation("DELETE", "/feedback/{feedback_id}")
    def take_back_feedback(self, feedback_id: int) -> None:
        """Take back feedback. The next search no longer counts it.

        Administrators can take back any feedback, others their own.
        """

    # --- Library and measures ---

    @operation("GET", "/tasks/{task_id}/queries")
    def get_query_report(self, task_id: str, *, worst: int | None = None) -> QueryReport:
        """Measure how well search finds a domain's videos by their captions.

        The report has the share of captions that find their video, the worst of them, and the domains that come first
        instead. The whole library is searched with at most 128 captions, from held-out videos if there are any
        (`split`). The searches run on the first request after the library changes; later requests reuse their results.
        """

    @operation("GET", "/forgetting")
    def get_forgetting(
        self,
        *,
        rows: int | None = None,
        first_release: int | None = None,
        first_domain: int | None = None,
        limit: int | None = None,
    ) -> RecallMatrix:
        """Return the recall matrix A[i, t] and measures of forgetting. Rows are releases, columns are domains.

        The matrix has at most `rows` releases, by default the newest, and at most `limit` domains from `first_domain`
        on; `domains` is the total.
        """

    @operation("GET", "/library")
    def get_library(self) -> LibraryStatus:
        """Summarize the library: counts, unfinished tasks, workers and faults.

        The response has bounded size. A change of `versions` tells a polling client which lists to read again.
        """

    @operation("GET", "/shards")
    def list_shards(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        text: str | None = None,
        sort: ShardSort | None = None,
    ) -> ShardPage:
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
        sort: ReleaseSort | None = None,
    ) -> ReleasePage:
        """List releases in pages, with method, kind and size. `current` marks the served release."""

    @operation("POST", "/releases/{release_id}/serve")
    def serve_release(self, release_id: str, *, body: ServeSpec | None = None) -> ServeOutcome:
        """Serve another release, and return the domains that become searchable or unsearchable.

        `release_id` is a release ID or its first 8 characters, the name of the domain that it learned last, or
        `newest`. The change takes effect within a second in running servers; nothing is deleted or re-indexed. Domains
        learned after the release are not searched. Videos appended to earlier domains stay searchable, and deleted
        videos stay deleted. An earlier release stays pinned while it is served: tasks continue the newest release and
        are published, but not searched until you serve a later release. With `dry_run`, nothing changes.
        """

    # --- Uploads ---

    @operation("POST", "/uploads/preview")
    def preview_upload(self, body: PreviewRequest) -> UploadPreview:
        """Preview the task that selected files would become: its videos, captions and problems. Nothing is stored.

        Send the path and size of each file, and the content of caption tables and sidecar files. Then upload the files
        that `videos` in the response names, and post these videos to `/tasks` or `/tasks/{task_id}/videos` with
        `upload://<upload ID>` as their `uri`.
        """

    @operation("DELETE", "/uploads/{upload_id}", headers={"Tus-Resumable": "1.0.0"})
    def delete_upload(self, upload_id: str) -> None:
        """Delete an upload and its bytes (tus extension termination)."""

    # --- Syncs ---

    @operation("GET", "/syncs")
    def list_syncs(self) -> list[SyncDetails]:
        """List syncs by domain name, with their last and next run."""

    @operation("POST", "/syncs")
    def register_sync(self, body: SyncSpec) -> SyncDetails:
        """Let a domain follow a folder of videos, or a manifest.

        Workers compare the two immediately and then at the interval: new files are appended, changed files replace
        their old version, captions are updated, and videos whose file is gone are kept or deleted. The domain is
        created if it does not exist. A domain follows one source: registering another replaces the sync.
        """

    @operation("GET", "/syncs/files")
    def list_synced_files(
        self,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        task: str | None = None,
        sha256: Sequence[str] | None = None,
    ) -> StoredFilePage:
        """List the files that domains follow, as the last sync saw them. `next_cursor` continues with the next page."""

    @operation("PUT", "/syncs/files")
    def record_synced_files(self, body: SyncedFilesPatch) -> None:
        """Record what a sync saw, and rename videos whose file has another name. Idempotent.

        `cinestrata sync` calls this for a folder that only the client can read.
        """

    @operation("GET", "/syncs/sources")
    def list_synced_sources(self) -> list[FollowedSource]:
        """List the sources that domains follow, or have followed."""

    @operation("DELETE", "/syncs/{sync}")
    def remove_sync(self, sync: str) -> None:
        """Remove a sync. Its domain and videos stay."""

    # --- Operation ---

    @operation("GET", "/operations")
    def get_operations(self) -> OperationsStatus:
        """Return the state of operation: workers, queue, running tasks, jobs, disk space and search load.

        The search load is that of the responding process; `/metrics` covers every process.
        """

    @operation("POST", "/maintenance")
    def start_job(self, body: JobSpec) -> JobDetails:
        """Start a maintenance job: compact shards, or write a backup. A worker runs it.

        Backups are written to `backups` in the data folder. If a job of the same kind is unfinished, it is returned
        instead. Searches continue.
        """

    @operation("GET", "/snapshots")
    def list_snapshots(self) -> list[SnapshotDetails]:
        """List the backups that workers have written, newest first. `POST /maintenance` writes another."""

    @operation("DELETE", "/snapshots/{name}")
    def delete_snapshot(self, name: str) -> None:
        """Delete a backup. Downloads in progress complete."""

    # --- Alerts ---

    @operation("GET", "/alerts")
    def list_alerts(self) -> AlertPage:
        """List open alerts and the last earlier ones. Workers check the thresholds every 30 seconds."""

    @operation("POST", "/alerts/{alert_id}/dismiss")
    def dismiss_alert(self, alert_id: int) -> AlertDetails:
        """Dismiss an alert. It is raised again only after its measure has recovered."""

    # --- Webhooks ---

    @operation("GET", "/webhooks")
    def list_webhooks(self) -> list[WebhookDetails]:
        """List the registered endpoints, oldest first."""

    @operation("POST", "/webhooks")
    def create_webhook(self, body: WebhookSpec) -> WebhookSecret:
        """Register an endpoint that receives events as signed messages (Standard Webhooks).

        Only this response contains the secret that verifies the signatures. A message is a `POST` with a JSON body of
        `type`, `timestamp` and `data`, and the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`. A
        status from 200 to 299 accepts it. After any other response, or none within 15 seconds, the message is sent up
        to nine more times within three days; 410 disables the webhook. Redirects are not followed.
        """

    @operation("PATCH", "/webhooks/{webhook_id}")
    def edit_webhook(self, webhook_id: str, body: WebhookPatch) -> WebhookDetails:
        """Change a webhook's events, or enable or disable it."""

    @operation("DELETE", "/webhooks/{webhook_id}")
    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook and its messages."""

    @operation("POST", "/webhooks/{webhook_id}/test")
    def test_webhook(self, webhook_id: str) -> DeliveryDetails:
        """Send one `webhook.test` message now, and return the result."""

    @operation("GET", "/webhooks/{webhook_id}/deliveries")
    def list_deliveries(
        self, webhook_id: str, *, cursor: str | None = None, limit: int | None = None
    ) -> DeliveryPage:
        """List a webhook's messages in pages, newest first, with attempts and last responses.

        Messages are kept for 7 days.
        """

    @operation("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/resend")
    def resend_delivery(self, webhook_id: str, delivery_id: int) -> DeliveryDetails:
        """Resend a message that was delivered or given up. It keeps its `webhook-id`."""

    # --- Access and audit ---

    @operation("GET", "/access/current")
    def get_current_access(self) -> CurrentAccess:
        """Return the caller's name and scope."""

    @operation("GET", "/keys")
    def list_keys(self) -> list[KeyDetails]:
        """List API keys with scope, expiry and last use, newest first. The key in the environment is not listed."""

    @operation("POST", "/keys")
    def create_key(self, body: KeySpec) -> KeySecret:
        """Create an API key. Only this response contains the key; the catalog stores its hash."""

    @operation("DELETE", "/keys/{key_id}")
    def revoke_key(self, key_id: str) -> KeyDetails:
        """Revoke an API key and end the sessions started with it. Idempotent.

        Other API processes refuse the key within five seconds.
        """

    @operation("GET", "/users")
    def list_users(self) -> list[UserDetails]:
        """List dashboard users by name."""

    @operation("POST", "/users")
    def create_user(self, body: UserSpec) -> UserDetails:
        """Create a user who signs in with a password. OpenID users are created when they sign in."""

    @operation("PATCH", "/users/{user_id}")
    def edit_user(self, user_id: str, body: UserPatch) -> UserDetails:
        """Change a user's role or password. A new password ends all of the user's sessions."""

    @operation("DELETE", "/users/{user_id}")
    def remove_user(self, user_id: str) -> UserDetails:
        """Remove a user and end their sessions."""

    @operation("GET", "/sessions")
    def list_sessions(self) -> list[SessionDetails]:
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
        kind: Sequence[ActorKind] | None = None,
        action: Sequence[str] | None = None,
        target: str | None = None,
        address: str | None = None,
        request_id: str | None = None,
        text: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        sort: AuditSort | None = None,
    ) -> AuditPage:
        """List the audit log in pages, newest first by default.

        An entry is a change to the library or to its access, with actor, time and address. Sign-ins and refused keys
        are included, searches are not.
        """

    @operation("GET", "/livez")
    def livez(self) -> dict[str, str]:
        """Check that the process is running."""

    @operation("GET", "/readyz", accepted=(503,))
    def readyz(self) -> Readiness:
        """Check that the process can answer searches.

        If it can't, the status is 503, and `checks` and `degraded` name the faults. While the catalog database is
        unreachable, a process with a copy of its result rows stays ready.
        """

    @operation("GET", "/metrics")
    def metrics(self) -> str:
        """Return metrics in the Prometheus text format."""

    # --- Lists over all their pages ---

    iter_tasks = Pages(list_tasks, TaskDetails)
    iter_videos = Pages(list_videos, VideoSummary)
    iter_synced_files = Pages(list_synced_files, StoredFile)
    iter_releases = Pages(list_releases, ReleaseSummary)
    iter_shards = Pages(list_shards, ShardSummary)
    iter_audit_entries = Pages(list_audit_entries, AuditRecord)
    iter_feedback = Pages(list_feedback, FeedbackDetails)
    iter_search = Pages(search, SearchResult)
