"""The service as a command sees it: over HTTP, or the same functions in this process."""

from __future__ import annotations

import json
import logging
import os
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote

import httpx

from cli.embedded.data_folder_lock import data_folder_settings
from service.core.errors import CinestrataError, FieldError, InvalidInput
from service.core.schemas import (
    DeletionResult,
    Readiness,
    RecallMatrix,
    SearchResponse,
    SimilarVideosResponse,
    TaskDetails,
    TaskSpec,
)
from service.core.settings import QueryMode

__all__ = ["HttpServiceClient", "InProcessServiceClient", "ServiceClient", "TaskSettings", "connect"]

TaskSettings = dict[str, bool | int | float | str | None] | None  # of a task's method; None: its defaults


class ServiceClient(Protocol):
    """What commands ask of the service."""

    def create_task(self, spec: TaskSpec, key: str | None = None) -> TaskDetails:
        """Post a task; the same key twice gives the same task."""

    def create_task_from_archive(
        self, archive: BinaryIO, filename: str, name: str, method: str | None, settings: TaskSettings
    ) -> TaskDetails:
        """Post a task as an archive of videos with a manifest."""

    def tasks(self) -> list[TaskDetails]:
        """All tasks, oldest first."""

    def task(self, task_id: str) -> TaskDetails:
        """One task, as it stands."""

    def cancel(self, task_id: str) -> TaskDetails:
        """Ask for it to stop."""

    def retry(self, task_id: str) -> TaskDetails:
        """Put a failed or cancelled task back into the line."""

    def delete(self, videos: list[str]) -> DeletionResult:
        """Delete videos for good."""

    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete all videos of a task for good."""

    def search(
        self, query: str, k: int, task: list[str] | None, mode: QueryMode | None, **further: Any
    ) -> SearchResponse:
        """Find videos; ``further`` are the other fields of a ``SearchQuery``."""

    def similar(self, video_id: str, k: int, scope: str) -> SimilarVideosResponse:
        """Find videos that are like one."""

    def forgetting(self, mode: QueryMode | None = None) -> RecallMatrix:
        """The recall matrix and what follows from it."""


def connect(url: str | None, data: Path | None) -> ServiceClient:
    """The service at ``url``, or the one of the data folder in this process."""
    return HttpServiceClient(url) if url else InProcessServiceClient(data)


class HttpServiceClient:
    """Over HTTP. Problems come back as the errors they were made from."""

    def __init__(self, url: str, seconds: float = 60) -> None:
        key = os.environ.get("CINESTRATA_API_KEY")
        headers = {"X-API-Key": key} if key else {}
        here = httpx.URL(url).host in ("127.0.0.1", "::1", "localhost")  # no proxy lies in between
        self._http = httpx.Client(
            base_url=url.rstrip("/"), headers=headers, timeout=seconds, trust_env=not here
        )

    def create_task(self, spec: TaskSpec, key: str | None = None) -> TaskDetails:
        """Post a task; the same key twice gives the same task."""
        body = spec.model_dump(mode="json", exclude_none=True)
        headers = {"Idempotency-Key": key} if key else {}
        return TaskDetails.model_validate(self._ask("POST", "/tasks", json=body, headers=headers))

    def create_task_from_archive(
        self, archive: BinaryIO, filename: str, name: str, method: str | None, settings: TaskSettings
    ) -> TaskDetails:
        """Post a task as an archive of videos with a manifest."""
        fields = {"name": name} | ({"method": method} if method else {})
        if settings:
            fields["settings"] = json.dumps(settings)
        files = {"archive": (filename, archive)}
        return TaskDetails.model_validate(self._ask("POST", "/tasks", data=fields, files=files, timeout=None))

    def tasks(self) -> list[TaskDetails]:
        """All tasks, oldest first."""
        return [TaskDetails.model_validate(task) for task in self._ask("GET", "/tasks")]

    def task(self, task_id: str) -> TaskDetails:
        """One task, as it stands."""
        return TaskDetails.model_validate(self._ask("GET", f"/tasks/{task_id}"))

    def cancel(self, task_id: str) -> TaskDetails:
        """Ask for it to stop."""
        return TaskDetails.model_validate(self._ask("POST", f"/tasks/{task_id}/cancel"))

    def retry(self, task_id: str) -> TaskDetails:
        """Put a failed or cancelled task back into the line."""
        return TaskDetails.model_validate(self._ask("POST", f"/tasks/{task_id}/retry"))

    def delete(self, videos: list[str]) -> DeletionResult:
        """Delete videos for good."""
        told = [
            DeletionResult.model_validate(self._ask("DELETE", f"/videos/{quote(v, safe='')}")) for v in videos
        ]
        return DeletionResult(
            deleted=[video for one in told for video in one.deleted],
            not_found=[video for one in told for video in one.not_found],
        )

    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete all videos of a task for good."""
        return DeletionResult.model_validate(self._ask("DELETE", f"/tasks/{task_id}"))

    def search(
        self, query: str, k: int, task: list[str] | None, mode: QueryMode | None, **further: Any
    ) -> SearchResponse:
        """Find videos."""
        wanted = {"q": query, "k": k, "task": task, "mode": mode, **further}
        asked = {name: _in_url(value) for name, value in wanted.items() if value is not None}
        return SearchResponse.model_validate(self._ask("GET", "/search", params=asked))

    def similar(self, video_id: str, k: int, scope: str) -> SimilarVideosResponse:
        """Find videos that are like one."""
        asked = {"k": k, "scope": scope}
        return SimilarVideosResponse.model_validate(
            self._ask("GET", f"/videos/{quote(video_id)}/similar", params=asked)
        )

    def forgetting(self, mode: QueryMode | None = None) -> RecallMatrix:
        """The recall matrix and what follows from it."""
        return RecallMatrix.model_validate(
            self._ask("GET", "/forgetting", params={"mode": mode} if mode else None)
        )

    def ready(self) -> Readiness:
        """What searches are answered from now, whether or not all is in order."""
        return Readiness.model_validate_json(self._http.get("/readyz").content)

    def _ask(self, method: str, path: str, **how: Any) -> Any:
        answer = self._http.request(method, path, **how)
        if answer.is_error:
            raise _problem(answer)
        return answer.json()


class InProcessServiceClient:
    """In this process, on the catalog, the broker and the index of a data folder."""

    def __init__(self, data: Path | None) -> None:
        self._settings = data_folder_settings(data)
        import structlog

        from service.catalog.migrations import upgrade

        # What goes well is told by the command itself.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

        upgrade(self._settings)

    def create_task(self, spec: TaskSpec, key: str | None = None) -> TaskDetails:
        """Post a task; the same key twice gives the same task."""
        from service.tasks.commands import create_task

        return create_task(spec, idempotency_key=key, caller="cli").task

    def create_task_from_archive(
        self, archive: BinaryIO, filename: str, name: str, method: str | None, settings: TaskSettings
    ) -> TaskDetails:
        """Post a task as an archive of videos with a manifest."""
        from service.tasks.commands import create_task_from_archive

        outcome = create_task_from_archive(
            archive, filename, name=name, method=method, settings=settings, caller="cli"
        )
        return outcome.task

    def tasks(self) -> list[TaskDetails]:
        """All tasks, oldest first."""
        from service.tasks.commands import list_tasks

        return list_tasks()

    def task(self, task_id: str) -> TaskDetails:
        """One task, as it stands."""
        from service.tasks.commands import get_task

        return get_task(task_id)

    def cancel(self, task_id: str) -> TaskDetails:
        """Ask for it to stop."""
        from service.tasks.commands import cancel_task

        return cancel_task(task_id)

    def retry(self, task_id: str) -> TaskDetails:
        """Put a failed or cancelled task back into the line."""
        from service.tasks.commands import retry_task

        return retry_task(task_id)

    def delete(self, videos: list[str]) -> DeletionResult:
        """Delete videos for good."""
        from service.library.deletion import delete_videos

        return delete_videos(videos)

    def delete_task(self, task_id: str) -> DeletionResult:
        """Delete all videos of a task for good."""
        from service.library.deletion import delete_task

        return delete_task(task_id)

    def search(
        self, query: str, k: int, task: list[str] | None, mode: QueryMode | None, **further: Any
    ) -> SearchResponse:
        """Find videos."""
        from service.search.engine import SearchEngine

        service = SearchEngine(self._settings)
        service.refresh()
        return service.search(query, k, task, mode, **further)

    def similar(self, video_id: str, k: int, scope: str) -> SimilarVideosResponse:
        """Find videos that are like one."""
        from service.search.engine import SearchEngine

        service = SearchEngine(self._settings)
        service.refresh()
        return service.search_similar(video_id, k, scope)

    def forgetting(self, mode: QueryMode | None = None) -> RecallMatrix:
        """The recall matrix and what follows from it."""
        from service.library.recall_matrix import read_recall_matrix

        return read_recall_matrix(mode)


def _in_url(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value) if isinstance(value, dict) else value


def _problem(answer: httpx.Response) -> CinestrataError:
    try:
        told = answer.json()
        fields = [FieldError(e["field"], e["message"], e.get("hint", "")) for e in told.get("errors", [])]
        detail = str(told.get("detail") or told["title"])
    except (ValueError, KeyError, TypeError, AttributeError):
        fields, detail = [], f"The service answered {answer.status_code} {answer.reason_phrase}."
    kind = InvalidInput if answer.status_code == 422 else CinestrataError
    return kind(detail, fields)
