"""The operations of the API as methods of both clients."""

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
from cinestrata_schemas.syncs import SyncDetails, SyncSpec
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
    """Methods with the names of the operations in the OpenAPI document, which describes their parameters."""

    # --- Tasks ---

    @operation("POST", "/tasks")
    def create_task(self, body: TaskSpec, *, idempotency_key: str | None = None) -> TaskDetails:
        """Create a task from the videos and captions of a domain. Training and indexing run in the background."""

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
        """Tasks in the order of the queue; `into` distinguishes appends from domains.

        With `limit`, the header `Link` contains the next page as `rel="next"`.
        """

    @operation("POST", "/tasks/{task_id}/videos")
    def append_videos(
        self, task_id: str, body: AppendSpec, *, idempotency_key: str | None = None
    ) -> TaskDetails:
        """Append videos to a learned domain. The response is a task of its own, whose `into` names the domain.

        Workers embed the videos with the release that the domain's shard pins and add them to the shard as a
        new segment. Nothing is trained, and no stored vector changes. Videos that cannot be used, and files
        that the domain already has, are listed in `rejected`.
        """

    @operation("DELETE", "/tasks/{task_id}/videos")
    def delete_videos(self, task_id: str, body: DeletionRequest) -> DeletionResult:
        """Delete several videos of a task. Ids of other tasks' videos are reported as not found and kept."""

    @operation("GET", "/tasks/{task_id}")
    def get_task(self, task_id: str) -> TaskDetails:
        """A task with its state, progress, estimated remaining time and first rejected videos."""

    @operation("DELETE", "/tasks/{task_id}")
    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete all videos of a task and its evaluation. A waiting or running task gives 409: cancel it first.

        A task that was never published is removed. A learned task stays in the sequence without videos,
        because later releases build on it; its name becomes available. The next `cinestrata compact` removes
        its vectors.
        """

    @operation("POST", "/tasks/{task_id}/cancel")
    def cancel_task(self, task_id: str) -> TaskDetails:
        """Cancel a task: immediately if it is queued, otherwise at the worker's next step."""

    @operation("POST", "/tasks/{task_id}/retry")
    def retry_task(self, task_id: str, *, body: RetrySpec | None = None) -> TaskDetails:
        """Queue a failed or cancelled task again, after all waiting tasks.

        A task whose method or settings do not fit the library has a `remedy` with a `body`: send that.
        """

    @operation("POST", "/tasks/{task_id}/relearn")
    def relearn_task(
        self, task_id: str, *, idempotency_key: str | None = None, body: RelearnSpec | None = None
    ) -> TaskDetails:
        """Learn the videos that were appended to a domain as a new domain.

        The response is the task of the new domain, whose `relearns` names the former one; its videos have
        ids of their own until it is ready. It then takes over the videos with their ids, captions and
        metadata, and the former domain keeps those that it was learned from. While that task is unfinished,
        a repeated request returns it.
        """

    @operation("POST", "/samples")
    def create_sample_task(self) -> TaskDetails:
        """Create a task from sample videos, which the service draws: a domain `street` for a first search.

        The request takes some seconds. The videos belong to the service and are deleted with the domain.
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
        """Videos in pages; `next_cursor`, and the header `Link`, continue with the next page."""

    @operation("GET", "/videos/{video_id}")
    def get_video(self, video_id: str) -> VideoDetails:
        """Details of a video. The header `ETag` is the condition of an edit; see `PATCH`."""

    @operation("PATCH", "/videos/{video_id}")
    def edit_video(self, video_id: str, body: VideoPatch, *, if_match: str | None = None) -> VideoDetails:
        """Change captions and metadata with a JSON Merge Patch (RFC 7396). Idempotent.

        The next search finds the words of the change, in every process. Results and filters show it at once,
        and the routing profile of the domain follows within about a second. The vector of the video and the
        encoder do not change: an edit is not learned.
        """

    @operation("DELETE", "/videos/{video_id}")
    def delete_video(self, video_id: str) -> DeletionResult:
        """Delete a video: searches, training and evaluation no longer use it. A repetition gives 404.

        Captions, metadata, thumbnail, sampled frames and an uploaded file are deleted immediately; a file
        below the media root is kept.
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
        """Videos with the nearest stored vectors, without the video itself.

        Vectors of different encoders cannot be compared; `not_compared` names the affected tasks. If no
        comparable task is left, the response is 409.
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
        """The parts of a video's score for a text: cosine, routing evidence and confidence, and its rank.

        The video need not be among the results; `rank` is then null.
        """

    @operation("GET", "/videos/{video_id}/thumbnail")
    def get_thumbnail(self, video_id: str) -> bytes:
        """A JPEG image from the middle of the video, at most 320 pixels wide."""

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
        """Search all shards, or those of some domains. Each shard is searched with its own query vector.

        Filters apply before ranking: k results are returned whenever k videos pass them. `next_cursor`
        continues with the next page of the same release, even if a newer release has been published.
        """

    @operation("POST", "/search")
    def search_many(self, body: SearchBatch) -> SearchBatchResponse:
        """Up to 256 searches in one request. All are answered by one release, except those with a cursor.

        If a query is invalid, `errors` names its position and field, and no query is answered.
        """

    @operation("GET", "/suggestions")
    def suggest_words(self, q: str, *, k: int | None = None) -> SuggestionsResponse:
        """Words of captions, metadata and file names that continue the last word of a query, most frequent first."""

    @operation("GET", "/videos/{video_id}/captions")
    def describe_video(
        self, video_id: str, *, k: int | None = None, scope: SearchScope | None = None
    ) -> CaptionsResponse:
        """Captions of the library that describe a video best, each with the video that it belongs to."""

    # --- Feedback ---

    @operation("POST", "/feedback")
    def give_feedback(self, body: FeedbackSpec) -> FeedbackDetails:
        """State whether a video is right or wrong for a text. Idempotent; each caller has one verdict on both.

        The next search in every process counts it: a confirmed text is a text of the video, below a caption,
        and a refused one is evidence against this video for the same words. When appended videos are learned
        again, their confirmed texts are learned like captions.
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
        sort: FeedbackSort | None = None,
    ) -> FeedbackPage:
        """Feedback of the caller, or, for an administrator, of all callers; in pages, newest first."""

    @operation("DELETE", "/feedback/{feedback_id}")
    def take_back_feedback(self, feedback_id: int) -> None:
        """Take feedback back: the next search no longer counts it. Callers delete their own, administrators any."""

    # --- Library and measures ---

    @operation("GET", "/tasks/{task_id}/queries")
    def get_query_report(self, task_id: str, *, worst: int | None = None) -> QueryReport:
        """Captions of a domain, searched like queries: share of found videos, worst queries, and confusion of
        domains.

        At most 128 captions are searched, of held-out videos where there are any (`split`), among all videos
        of the library. The searches run at the first request after a change of the library; later requests
        use their results.
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
        """The recall matrix A[i, t] and the measures of forgetting. Rows are releases, columns are domains.

        The answer has at most `rows` releases, by default the newest, and at most `limit` domains from
        `first_domain` on; `domains` is the number of all.
        """

    @operation("GET", "/library")
    def get_library(self) -> LibraryStatus:
        """State of the library in an answer of bounded size: counts, unfinished tasks, workers, faults.

        `versions` state which parts have changed, so that a client that polls with `If-None-Match` reads
        only those again.
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
        """Published shards with their domain, size and faults, in pages."""

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
        """Releases with their task, method, kind and size, in pages; `current` marks the release that answers
        searches.
        """

    @operation("POST", "/releases/{release_id}/serve")
    def serve_release(self, release_id: str, *, body: ServeSpec | None = None) -> ServeOutcome:
        """Let searches use an earlier or later release, and return the domains that become searchable or
        unsearchable.

        `release_id` is the id of a release or its first 8 characters, the name of the domain that it learned
        last, or `newest`. The change takes effect within a second in running servers; nothing is deleted or
        indexed again. Domains that were learned after the release are not searched. Videos that were
        appended to earlier domains stay searchable, and deleted videos stay deleted. While an earlier
        release is served, it is pinned: tasks continue the newest release and are published, but not
        searched until a later release is served. With `dry_run`, only the effects are returned.
        """

    # --- Uploads ---

    @operation("POST", "/uploads/preview")
    def preview_upload(self, body: PreviewRequest) -> UploadPreview:
        """Videos, captions and problems of a task that selected files would become. Nothing is stored.

        Clients send the names and sizes of the files, and the content of the caption table and the sidecar
        files. They upload the files of the `videos` in the response, and post these to `/tasks` or
        `/tasks/{id}/videos` with the URIs `upload://<upload id>`.
        """

    @operation("DELETE", "/uploads/{upload_id}", headers={"Tus-Resumable": "1.0.0"})
    def delete_upload(self, upload_id: str) -> None:
        """Delete an upload and its bytes (tus extension termination)."""

    # --- Syncs ---

    @operation("GET", "/syncs")
    def list_syncs(self) -> list[SyncDetails]:
        """All registered syncs by name, with their last and next run."""

    @operation("POST", "/syncs")
    def register_sync(self, body: SyncSpec) -> SyncDetails:
        """Let a domain follow a folder of videos below the media root, or a manifest there.

        Workers compare both at once and then at the interval: new files are appended, changed files replace
        their former version, captions are updated, and vanished files are kept or deleted. The domain is
        created if it does not exist. A domain follows one source: a former sync of the same domain is
        replaced.
        """

    @operation("DELETE", "/syncs/{sync}")
    def remove_sync(self, sync: str) -> None:
        """Remove a sync. Its domain and videos stay."""

    # --- Operation ---

    @operation("GET", "/operations")
    def get_operations(self) -> OperationsStatus:
        """Workers with their last errors, queue, running tasks with loss and throughput, jobs, disk, and
        searches.

        The searches are those of the process that answers; `/metrics` has those of every process.
        """

    @operation("POST", "/maintenance")
    def start_job(self, body: JobSpec) -> JobDetails:
        """Compact shards, or write a backup to the folder `backups` of the data folder. A worker runs the job.

        An unfinished job of the same kind is returned instead of a second one. Searches continue meanwhile.
        """

    @operation("GET", "/snapshots")
    def list_snapshots(self) -> list[SnapshotDetails]:
        """Backups in the folder `backups` of the data folder, newest first; `POST /maintenance` writes one."""

    @operation("DELETE", "/snapshots/{name}")
    def delete_snapshot(self, name: str) -> None:
        """Delete a backup. Downloads that have begun are completed."""

    # --- Alerts ---

    @operation("GET", "/alerts")
    def list_alerts(self) -> AlertPage:
        """Open alerts, the last earlier ones, and the thresholds. Workers compare the measures every 30
        seconds.
        """

    @operation("POST", "/alerts/{alert_id}/dismiss")
    def dismiss_alert(self, alert_id: int) -> AlertDetails:
        """Hide an alert. It is raised again only after its measure has recovered."""

    # --- Webhooks ---

    @operation("GET", "/webhooks")
    def list_webhooks(self) -> list[WebhookDetails]:
        """All registered endpoints, oldest first."""

    @operation("POST", "/webhooks")
    def create_webhook(self, body: WebhookSpec) -> WebhookSecret:
        """Register an endpoint that receives events as signed messages (Standard Webhooks).

        The answer contains the secret that verifies the signatures; no other answer contains it. A message
        is a `POST` with a JSON body of `type`, `timestamp` and `data`, and the headers `webhook-id`,
        `webhook-timestamp` and `webhook-signature`. An answer with a status from 200 to 299 accepts it.
        Other answers, and none within 15 seconds, are followed by up to nine further attempts within three
        days; 410 disables the webhook. Redirects are not followed.
        """

    @operation("PATCH", "/webhooks/{webhook_id}")
    def edit_webhook(self, webhook_id: str, body: WebhookPatch) -> WebhookDetails:
        """Change the events of a webhook, or enable or disable it."""

    @operation("DELETE", "/webhooks/{webhook_id}")
    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook with its messages."""

    @operation("POST", "/webhooks/{webhook_id}/test")
    def test_webhook(self, webhook_id: str) -> DeliveryDetails:
        """Send a message of the type `webhook.test` now, once, and return the result."""

    @operation("GET", "/webhooks/{webhook_id}/deliveries")
    def list_deliveries(
        self, webhook_id: str, *, cursor: str | None = None, limit: int | None = None
    ) -> DeliveryPage:
        """Messages of a webhook with their attempts and last answers, newest first, in pages; kept for 7 days."""

    @operation("POST", "/webhooks/{webhook_id}/deliveries/{delivery_id}/resend")
    def resend_delivery(self, webhook_id: str, delivery_id: int) -> DeliveryDetails:
        """Send a message again that was given up or delivered. It keeps its `webhook-id`."""

    # --- Access and audit ---

    @operation("GET", "/access/current")
    def get_current_access(self) -> CurrentAccess:
        """Name and scope of the key or user of the request."""

    @operation("GET", "/keys")
    def list_keys(self) -> list[KeyDetails]:
        """All API keys of the catalog with scope, expiry and last use, newest first, without the key of the
        environment.
        """

    @operation("POST", "/keys")
    def create_key(self, body: KeySpec) -> KeySecret:
        """Create an API key. Only this answer contains the key; the catalog stores its hash."""

    @operation("DELETE", "/keys/{key_id}")
    def revoke_key(self, key_id: str) -> KeyDetails:
        """Revoke a key (name or id), and end the sessions that were started with it. Idempotent.

        Other API processes refuse the key within five seconds.
        """

    @operation("GET", "/users")
    def list_users(self) -> list[UserDetails]:
        """All users of the dashboard by name."""

    @operation("POST", "/users")
    def create_user(self, body: UserSpec) -> UserDetails:
        """Create a user who signs in with a password. Users of an OpenID provider are created when they sign
        in.
        """

    @operation("PATCH", "/users/{user_id}")
    def edit_user(self, user_id: str, body: UserPatch) -> UserDetails:
        """Change the role or the password of a user (name or id). A new password ends all sessions of the user."""

    @operation("DELETE", "/users/{user_id}")
    def remove_user(self, user_id: str) -> UserDetails:
        """Remove a user (name or id) with all sessions."""

    @operation("GET", "/sessions")
    def list_sessions(self) -> list[SessionDetails]:
        """Sessions of signed-in browsers that have not ended, newest first."""

    @operation("DELETE", "/sessions/{session_id}")
    def end_session(self, session_id: str) -> None:
        """End a session of a browser."""

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
        """Changes of the library and of its access with actor, time and address, in pages; newest first by
        default.

        Sign-ins and refused keys are entries too. Searches are not.
        """

    @operation("GET", "/livez")
    def livez(self) -> dict[str, str]:
        """Liveness: the process runs."""

    @operation("GET", "/readyz", accepted=(503,))
    def readyz(self) -> Readiness:
        """Readiness: searches can be answered. Otherwise 503; `checks` and `degraded` name the faults.

        While the catalog database cannot be reached, a process with a copy of the rows of its results stays
        ready.
        """

    @operation("GET", "/metrics")
    def metrics(self) -> str:
        """Metrics in the Prometheus text format."""

    # --- Lists over all their pages ---

    iter_tasks = Pages(list_tasks, TaskDetails)
    iter_videos = Pages(list_videos, VideoSummary)
    iter_releases = Pages(list_releases, ReleaseSummary)
    iter_shards = Pages(list_shards, ShardSummary)
    iter_audit_entries = Pages(list_audit_entries, AuditRecord)
    iter_feedback = Pages(list_feedback, FeedbackDetails)
    iter_search = Pages(search, SearchResult)
