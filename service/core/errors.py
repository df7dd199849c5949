"""The one tree of errors that a caller of the product can meet.

::

    CinestrataError
    ├── InvalidInput            422  a field is wrong; each FieldError names it and the hint
    │   └── IdempotencyMismatch 422  the same Idempotency-Key came with another body
    ├── Unauthorized            401
    ├── NotFound                404
    ├── Conflict                409  the request contradicts what is stored
    │   └── IdempotencyInFlight 409  the first request with this Idempotency-Key is still running
    ├── Gone                    410  it was there once, and will not come back
    ├── TooLarge                413
    ├── TooManyRequests         429
    ├── Unavailable             503  try again later; nothing was changed
    │   └── InDoubt             503  the commit was not answered: all of it was changed, or nothing
    ├── DataFolderNotWritable   503  wrong owner, read-only or full disk; an operator must repair it
    └── TaskInterruption                  never leaves a worker: why a job stops working on its task
        ├── LeaseLost                another worker owns the task now, nothing may be written any more
        ├── TaskCancelled            the user asked for it
        ├── WorkerStopping           this process is shutting down, the task goes on elsewhere
        └── VideosDeleted            videos of the task were deleted, it begins again without them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

__all__ = [
    "CinestrataError",
    "Conflict",
    "DataFolderNotWritable",
    "FieldError",
    "Gone",
    "IdempotencyInFlight",
    "IdempotencyMismatch",
    "InDoubt",
    "InvalidInput",
    "LeaseLost",
    "NotFound",
    "TaskCancelled",
    "TaskInterruption",
    "TooLarge",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "VideosDeleted",
    "WorkerStopping",
    "field_path",
]


@dataclass(frozen=True)
class FieldError:
    """One wrong field.

    Attributes:
        field: where, as a reader would write it: ``videos[3].captions[0]``.
        message: what is wrong with it.
        hint: what to do instead.
    """

    field: str
    message: str
    hint: str = ""


class CinestrataError(Exception):
    """Root of the tree. ``str(error)`` is one sentence for the person who asked.

    Attributes:
        status: the HTTP status it maps to.
        title: short name of the kind of problem, the same for every instance.
        detail: what happened this time.
        errors: the wrong fields, if it is about fields.
        headers: response headers that belong to it.
    """

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(
        self, detail: str, errors: Iterable[FieldError] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors: list[FieldError] = list(errors)
        self.headers: dict[str, str] = dict(headers or {})


class InvalidInput(CinestrataError):
    """A request that cannot be carried out as it was written."""

    status = 422
    title = "Invalid input"

    @classmethod
    def at(cls, field: str, message: str, hint: str = "") -> InvalidInput:
        """The error of a single field."""
        return cls.of([FieldError(field, message, hint)])

    @classmethod
    def of(cls, errors: Sequence[FieldError]) -> InvalidInput:
        """The error of one or more fields; the detail is the first of them."""
        first = errors[0]
        detail = f"{first.field}: {first.message}" + (f" {first.hint}" if first.hint else "")
        if len(errors) > 1:
            detail += f" ({len(errors) - 1} more)"
        return cls(detail, errors)

    @classmethod
    def from_pydantic(cls, errors: Iterable[Mapping[str, Any]]) -> InvalidInput:
        """The error of a failed validation.

        Args:
            errors: The result of ``ValidationError.errors()``.
        """
        return cls.of(
            [FieldError(field_path(e["loc"]), _sentence(str(e["msg"]))) for e in errors]
            or [FieldError("body", "The request is not valid.")]
        )


class IdempotencyMismatch(InvalidInput):
    """The same Idempotency-Key was used before with another body."""

    title = "Idempotency-Key was used for another request"


class Unauthorized(CinestrataError):
    """No key, or a wrong one."""

    status = 401
    title = "Unauthorized"


class NotFound(CinestrataError):
    """There is no such task, video or file."""

    status = 404
    title = "Not found"


class Conflict(CinestrataError):
    """The request contradicts what is stored."""

    status = 409
    title = "Conflict"


class IdempotencyInFlight(Conflict):
    """The first request with this Idempotency-Key has not been answered yet."""

    title = "Request is still being carried out"

    def __init__(self, detail: str, retry_after: int = 1) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after)})
        self.retry_after = retry_after


class Gone(CinestrataError):
    """What the request builds on is no longer kept."""

    status = 410
    title = "Gone"


class TooLarge(CinestrataError):
    """An upload above a limit."""

    status = 413
    title = "Too large"


class TooManyRequests(CinestrataError):
    """More requests than can be answered in time."""

    status = 429
    title = "Too many requests"

    def __init__(self, detail: str, retry_after: int = 1) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after)})
        self.retry_after = retry_after


class Unavailable(CinestrataError):
    """A part that is needed cannot be reached; nothing was changed."""

    status = 503
    title = "Temporarily unavailable"

    def __init__(self, detail: str, retry_after: int = 1) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after)})
        self.retry_after = retry_after


class InDoubt(Unavailable):
    """The database was told to commit and did not answer; what belongs to the rows must stay where it is."""

    title = "Stored or not"


class DataFolderNotWritable(CinestrataError):
    """A folder of the data folder cannot be written: wrong owner, read-only, or a full disk.

    Attributes:
        hint: What the operator can do.
    """

    status = 503
    title = "Data folder not writable"

    def __init__(self, folder: Path, cause: OSError) -> None:
        super().__init__(
            f"The folder {folder} cannot be written ({cause.strerror or cause}).",
            headers={"Retry-After": "30"},
        )
        self.hint = "Give the user of this process write access to it, and check the free space of its disk."


class TaskInterruption(CinestrataError):
    """Why a job stops working on its task before the end."""

    title = "TaskInterruption"


class LeaseLost(TaskInterruption):
    """The task belongs to another worker now; this one must not write any more."""

    status = 409
    title = "Lease lost"


class TaskCancelled(TaskInterruption):
    """The user cancelled the task."""

    status = 409
    title = "Cancelled"


class WorkerStopping(TaskInterruption):
    """The worker process was asked to stop."""

    status = 503
    title = "Worker is stopping"


class VideosDeleted(TaskInterruption):
    """Videos of the task were deleted while it was learned."""

    status = 409
    title = "Videos were deleted"


def field_path(location: Sequence[str | int]) -> str:
    """A pydantic location as a path: ``("videos", 3, "captions", 0)`` → ``videos[3].captions[0]``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "body"


def _sentence(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message if message.endswith((".", "!", "?")) else f"{message}."
