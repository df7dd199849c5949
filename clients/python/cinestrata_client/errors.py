"""Client errors: problem documents from the service (RFC 9457), and failed connections."""

from __future__ import annotations

from typing import ClassVar

import httpx
from pydantic import ValidationError

from cinestrata_schemas.problems import Problem, ProblemField


class ServiceError(Exception):
    """An error response; the attributes are those of the problem document and its headers."""

    _classes: ClassVar[dict[int, type[ServiceError]]] = {}

    def __init_subclass__(cls, statuses: tuple[int, ...] = ()) -> None:
        cls._classes.update(dict.fromkeys(statuses, cls))

    def __init__(
        self, problem: Problem, request_id: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(problem.detail)
        self.status = problem.status
        self.type = problem.type  # such as urn:cinestrata:problem:not-found; it never changes
        self.title = problem.title
        self.detail = problem.detail
        self.errors: list[ProblemField] = list(problem.errors or [])  # each with a message and a hint
        self.remedy = problem.remedy  # what the caller may do next; None if the service recommends nothing
        self.request_id = request_id  # as in the service's log lines
        self.retry_after = retry_after  # seconds; None if the service doesn't say


class InvalidInputError(ServiceError, statuses=(400, 422)):
    """Fields of the request are invalid; ``errors`` names each of them."""


class UnauthorizedError(ServiceError, statuses=(401,)):
    """The API key is missing, wrong or expired."""


class ForbiddenError(ServiceError, statuses=(403,)):
    """The API key lacks the scope that the operation needs."""


class NotFoundError(ServiceError, statuses=(404,)):
    """The resource does not exist."""


class ConflictError(ServiceError, statuses=(409,)):
    """The request contradicts the stored state."""


class GoneError(ServiceError, statuses=(410,)):
    """The cursor's release is no longer available; start at the first page."""


class PreconditionFailedError(ServiceError, statuses=(412,)):
    """The resource has changed since it was read."""


class TooLargeError(ServiceError, statuses=(413,)):
    """The request exceeds a limit of the service."""


class TooManyRequestsError(ServiceError, statuses=(429,)):
    """The service, or this key or user, has reached a limit, even after all retries."""


class UnavailableError(ServiceError, statuses=(503,)):
    """Part of the service is temporarily unavailable, even after all retries."""


class UnreachableError(Exception):
    """No response: the connection failed or timed out."""

    def __init__(self, base_url: httpx.URL, method: str, path: str, cause: Exception) -> None:
        self.base_url = str(base_url.copy_with(userinfo=b"")).rstrip("/")  # without name and password
        self.reason = str(cause) or type(cause).__name__
        super().__init__(f"{method} {self.base_url}{path}: {self.reason}")


class TaskFailedError(Exception):
    """A task has failed, or was cancelled."""

    def __init__(self, task_id: str, state: str, error: str | None, hint: str | None) -> None:
        super().__init__(
            f"Task {task_id} {'failed' if state == 'failed' else 'was cancelled'}: {error or 'no reason'}"
        )
        self.task_id = task_id
        self.state = state  # failed or cancelled
        self.hint = hint  # how to remedy the failure; None if unknown


def error_of(response: httpx.Response) -> ServiceError:
    """Convert a response to an error; without a problem document, the status describes it."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        status = f"{response.status_code} {response.reason_phrase}"
        problem = Problem(
            type="about:blank",
            title=response.reason_phrase,
            status=response.status_code,
            detail=f"The server answered {status} without a problem document.",
            instance=response.url.path,
        )
    kind = ServiceError._classes.get(response.status_code, ServiceError)
    pause = response.headers.get("Retry-After", "")
    retry_after = float(pause) if pause.isascii() and pause.isdecimal() else None
    return kind(problem, response.headers.get("X-Request-ID"), retry_after)
