"""Client of a running service over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

import httpx

from cli.service_client import MethodSettings
from service.core.errors import CinestrataError, FieldError, InvalidInput, NotFound, Unauthorized
from service.core.schemas import (
    AppendSpec,
    AuditPage,
    DeletionResult,
    DeliveryDetails,
    Readiness,
    RecallMatrix,
    RelearnSpec,
    ReleasePage,
    ReleaseSummary,
    SearchResponse,
    ServeOutcome,
    SimilarVideosResponse,
    SyncDetails,
    SyncSpec,
    TaskDetails,
    TaskMove,
    TaskSpec,
    VideoDetails,
    VideoPage,
    VideoPatch,
    VideoSummary,
    WebhookDetails,
    WebhookSecret,
    WebhookSpec,
)

if TYPE_CHECKING:
    from service.core.settings import QueryMode

__all__ = ["HttpServiceClient"]

_PAGE = 1000  # videos
_SECONDS_PER_VIDEO = 0.005


class HttpServiceClient:
    """Calls the HTTP API. Problem responses are raised as the errors of the service.

    Args:
        url: Base URL of the service.
        timeout: Seconds until a request fails.
        transport: Transport of httpx; the default opens network connections.
    """

    def __init__(self, url: str, timeout: float = 60, transport: httpx.BaseTransport | None = None) -> None:
        key = os.environ.get("CINESTRATA_API_KEY")
        headers = {"X-API-Key": key} if key else {}
        # A proxy from the environment cannot reach a service on this machine.
        is_local = httpx.URL(url).host in ("127.0.0.1", "::1", "localhost")
        self._timeout = timeout
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=timeout,
            trust_env=not is_local,
            transport=transport,
        )

    def create_task(self, spec: TaskSpec, key: str | None = None) -> TaskDetails:
        """Create a task. Requests with the same idempotency key create one task."""
        body = spec.model_dump(mode="json", exclude_none=True)
        headers = {"Idempotency-Key": key} if key else {}
        timeout = self._write_timeout(len(spec.videos))
        answer = self.request("POST", "/tasks", json=body, headers=headers, timeout=timeout)
        return TaskDetails.model_validate(answer)

    def create_task_from_archive(
        self, archive: BinaryIO, filename: str, name: str, method: str | None, settings: MethodSettings
    ) -> TaskDetails:
        """Create a task from an archive of videos with a manifest."""
        fields = {"name": name} | ({"method": method} if method else {})
        if settings:
            fields["settings"] = json.dumps(settings)
        files = {"archive": (filename, archive)}
        return TaskDetails.model_validate(
            self.request("POST", "/tasks", data=fields, files=files, timeout=None)
        )

    def append_videos(self, task_id: str, spec: AppendSpec, key: str | None = None) -> TaskDetails:
        """Append videos to a learned domain. Requests with the same idempotency key create one append."""
        body = spec.model_dump(mode="json", exclude_none=True)
        headers = {"Idempotency-Key": key} if key else {}
        timeout = self._write_timeout(len(spec.videos))
        answer = self.request("POST", f"/tasks/{task_id}/videos", json=body, headers=headers, timeout=timeout)
        return TaskDetails.model_validate(answer)

    def append_archive(self, task_id: str, archive: BinaryIO, filename: str) -> TaskDetails:
        """Append the videos of an archive with a manifest to a learned domain."""
        files = {"archive": (filename, archive)}
        answer = self.request("POST", f"/tasks/{task_id}/videos", files=files, timeout=None)
        return TaskDetails.model_validate(answer)

    def tasks(self) -> list[TaskDetails]:
        """All tasks, oldest first."""
        return [TaskDetails.model_validate(task) for task in self.request("GET", "/tasks")]

    def task(self, task_id: str) -> TaskDetails:
        """The current state of a task."""
        return TaskDetails.model_validate(self.request("GET", f"/tasks/{task_id}"))

    def task_videos(self, task_id: str) -> Iterator[VideoSummary]:
        """All videos of a domain and of the appends to it, in the order of their arrival."""
        parameters: dict[str, Any] = {"limit": _PAGE}
        while True:
            answer = self.request("GET", f"/tasks/{task_id}/videos", params=parameters)
            page = VideoPage.model_validate(answer)
            yield from page.videos
            if page.next_cursor is None:
                return
            parameters["cursor"] = page.next_cursor

    def cancel(self, task_id: str) -> TaskDetails:
        """Request that a task stops."""
        return TaskDetails.model_validate(self.request("POST", f"/tasks/{task_id}/cancel"))

    def retry(self, task_id: str) -> TaskDetails:
        """Queue a failed or cancelled task again."""
        return TaskDetails.model_validate(self.request("POST", f"/tasks/{task_id}/retry"))

    def move_task(self, task_id: str, move: TaskMove) -> TaskDetails:
        """Move a waiting task in the queue."""
        body = move.model_dump(exclude_none=True)
        return TaskDetails.model_validate(self.request("POST", f"/tasks/{task_id}/move", json=body))

    def relearn(self, task_id: str, name: str | None = None) -> TaskDetails:
        """Learn the appended videos of a domain as a new domain."""
        body = RelearnSpec(name=name).model_dump(exclude_none=True)
        return TaskDetails.model_validate(self.request("POST", f"/tasks/{task_id}/relearn", json=body))

    def videos(self, **parameters: Any) -> VideoPage:
        """A page of videos; ``parameters`` are those of ``GET /videos`` that are set."""
        return VideoPage.model_validate(self.request("GET", "/videos", params=parameters))

    def edit_video(self, video_id: str, patch: VideoPatch) -> VideoDetails:
        """Change captions and metadata of a video; only fields of the patch that are set apply."""
        body = patch.model_dump(mode="json", exclude_unset=True)
        return VideoDetails.model_validate(
            self.request("PATCH", f"/videos/{quote(video_id, safe='')}", json=body)
        )

    def register_sync(self, spec: SyncSpec) -> SyncDetails:
        """Let a domain follow a folder of videos."""
        return SyncDetails.model_validate(self.request("POST", "/syncs", json=spec.model_dump()))

    def syncs(self) -> list[SyncDetails]:
        """All registered syncs by name."""
        return [SyncDetails.model_validate(sync) for sync in self.request("GET", "/syncs")]

    def remove_sync(self, name_or_id: str) -> None:
        """Remove a registered sync by its id, or by the name or slug of its domain."""
        self.request("DELETE", f"/syncs/{quote(name_or_id, safe='')}")

    def releases(self) -> list[ReleaseSummary]:
        """All releases in the order of learning."""
        releases: list[ReleaseSummary] = []
        parameters: dict[str, Any] = {"limit": _PAGE}
        while True:
            page = ReleasePage.model_validate(self.request("GET", "/releases", params=parameters))
            releases += page.releases
            if page.next_cursor is None:
                return releases
            parameters["cursor"] = page.next_cursor

    def serve_release(self, release: str, *, dry_run: bool) -> ServeOutcome:
        """Let searches use a release, and return the effects; a dry run only returns them."""
        path = f"/releases/{quote(release, safe='')}/serve"
        return ServeOutcome.model_validate(self.request("POST", path, json={"dry_run": dry_run}))

    def create_webhook(self, spec: WebhookSpec) -> WebhookSecret:
        """Register an endpoint of webhooks, and return its secret."""
        return WebhookSecret.model_validate(self.request("POST", "/webhooks", json=spec.model_dump()))

    def webhooks(self) -> list[WebhookDetails]:
        """All webhooks, oldest first."""
        return [WebhookDetails.model_validate(webhook) for webhook in self.request("GET", "/webhooks")]

    def remove_webhook(self, webhook_id: str) -> None:
        """Remove a webhook with its messages."""
        self.request("DELETE", f"/webhooks/{quote(webhook_id, safe='')}")

    def test_webhook(self, webhook_id: str) -> DeliveryDetails:
        """Send a test message now, and return its result."""
        path = f"/webhooks/{quote(webhook_id, safe='')}/test"
        return DeliveryDetails.model_validate(self.request("POST", path))

    def delete(self, videos: list[str]) -> DeletionResult:
        """Delete videos permanently."""
        deleted, not_found = [], []
        for video in videos:
            try:
                self.request("DELETE", f"/videos/{quote(video, safe='')}")
                deleted.append(video)
            except NotFound:
                not_found.append(video)
        return DeletionResult(deleted=deleted, not_found=not_found)

    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete all videos of a task permanently."""
        return DeletionResult.model_validate(self.request("DELETE", f"/tasks/{task_id}"))

    def search(
        self, query: str, k: int, task: list[str] | None, mode: QueryMode | None, **fields: Any
    ) -> SearchResponse:
        """Search with a text; ``fields`` are the other fields of ``SearchQuery``."""
        values = {"q": query, "k": k, "task": task, "mode": mode, **fields}
        parameters = {name: _query_value(value) for name, value in values.items() if value is not None}
        return SearchResponse.model_validate(self.request("GET", "/search", params=parameters))

    def video(self, video_id: str) -> VideoDetails:
        """A video with its split."""
        return VideoDetails.model_validate(self.request("GET", f"/videos/{quote(video_id, safe='')}"))

    def similar(self, video_id: str, k: int, scope: str) -> SimilarVideosResponse:
        """Videos similar to a video."""
        parameters = {"k": k, "scope": scope}
        return SimilarVideosResponse.model_validate(
            self.request("GET", f"/videos/{quote(video_id)}/similar", params=parameters)
        )

    def playback_address(self, video_id: str) -> str:
        """Address of the video's page."""
        return str(self._http.base_url.join(f"/watch/{quote(video_id, safe='')}"))

    def forgetting(self, mode: QueryMode | None = None) -> RecallMatrix:
        """The recall matrix and the measures of forgetting."""
        return RecallMatrix.model_validate(
            self.request("GET", "/forgetting", params={"mode": mode} if mode else None)
        )

    def audit(self, **parameters: Any) -> AuditPage:
        """A page of the audit log; ``parameters`` are those of ``GET /audit`` that are set."""
        query = {name: _query_value(value) for name, value in parameters.items()}
        return AuditPage.model_validate(self.request("GET", "/audit", params=query))

    def ready(self) -> Readiness:
        """Readiness and the release that answers searches; not an error if the service is not ready."""
        return Readiness.model_validate_json(self._http.get("/readyz").content)

    def _write_timeout(self, videos: int) -> float:
        """Seconds until a request with so many videos fails; the service looks for the file of each."""
        return self._timeout + videos * _SECONDS_PER_VIDEO

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Send a request, and return the JSON document of the answer. Raises the error of a problem response."""
        response = self._http.request(method, path, **options)
        if response.is_error:
            raise _error_from(response)
        return response.json() if response.content else None


def _query_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value) if isinstance(value, dict) else value


def _error_from(response: httpx.Response) -> CinestrataError:
    """The error that a problem response describes."""
    try:
        problem = response.json()
        fields = [FieldError(e["field"], e["message"], e.get("hint", "")) for e in problem.get("errors", [])]
        detail = str(problem.get("detail") or problem["title"])
    except (ValueError, KeyError, TypeError, AttributeError):
        fields, detail = [], f"The service answered {response.status_code} {response.reason_phrase}."
    kind = {401: Unauthorized, 404: NotFound, 422: InvalidInput}.get(response.status_code, CinestrataError)
    return kind(detail, fields)
