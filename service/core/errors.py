"""The service's errors, each with its HTTP status. An ``Unavailable`` has changed nothing, so it can be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from cinestrata_schemas.problems import Action
from service.core.validation_messages import describe_validation_error

_MAX_LISTED_ERRORS = 100  # a URL may have 10,000 unknown parameters


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field.

    Attributes:
        field: Path of the field, such as ``videos[3].captions[0]``.
        message: What is wrong, as a sentence.
        hint: How the caller can fix it.
    """

    field: str
    message: str
    hint: str = ""


class CinestrataError(Exception):
    """Base of all service errors. ``str(error)`` is one sentence for the user.

    Attributes:
        status: HTTP status of the response.
        title: Short name of the error class.
        detail: Description of this error.
        errors: Errors in single fields.
        remedy: What the caller may do next.
    """

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init_subclass__(cls, status: int | None = None, title: str | None = None) -> None:
        super().__init_subclass__()
        cls.status, cls.title = status or cls.status, title or cls.title

    def __init__(
        self,
        detail: str,
        errors: Iterable[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        remedy: Action | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors: list[FieldError] = list(errors)
        self.headers: dict[str, str] = dict(headers or {})
        self.remedy = remedy

    @classmethod
    def problem_type(cls) -> str:
        """Build the URI that identifies this error class in responses (RFC 9457, member ``type``)."""
        return problem_type(cls.title)


class InvalidInput(CinestrataError, status=422, title="Invalid input"):
    """A request with invalid fields."""

    @classmethod
    def at(cls, field: str, message: str, hint: str = "") -> InvalidInput:
        """Create the error for a single field."""
        return cls.of([FieldError(field, message, hint)])

    @classmethod
    def of(cls, errors: Sequence[FieldError]) -> InvalidInput:
        """Create the error for several fields; its detail describes the first."""
        first = errors[0]
        detail = f"{first.field}: {first.message}" + (f" {first.hint}" if first.hint else "")
        if len(errors) > 1:
            detail += f" ({len(errors) - 1} more)"
        return cls(detail, errors)

    @classmethod
    def from_pydantic(cls, errors: Iterable[Mapping[str, Any]], model: Any = None) -> InvalidInput:
        """Create the error for a failed validation, with at most 100 fields.

        Args:
            errors: The result of ``ValidationError.errors()``; items may also have a ``hint``.
            model: Model of the body; its field names serve as hints for unknown ones.
        """
        listed = islice(errors, _MAX_LISTED_ERRORS)
        return cls.of(
            [
                FieldError(field_path(error["loc"]), *describe_validation_error(error, model))
                for error in listed
            ]
            or [FieldError("body", "The request is not valid.")]
        )


class IdempotencyMismatch(InvalidInput, title="Idempotency-Key was used for another request"):
    """The Idempotency-Key was already used with another body."""


class Unauthorized(CinestrataError, status=401, title="Unauthorized"):
    """The API key is missing or wrong."""


class NotFound(CinestrataError, status=404, title="Not found"):
    """The task, video or file does not exist."""


class Conflict(CinestrataError, status=409, title="Conflict"):
    """The request contradicts the stored state."""


class IdempotencyInFlight(Conflict, title="Request is still running"):
    """The first request with this Idempotency-Key is still running."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"Retry-After": "1"})


class Gone(CinestrataError, status=410, title="Gone"):
    """The requested state is no longer kept."""


class PreconditionFailed(CinestrataError, status=412, title="Precondition failed"):
    """The resource has changed since the client read it; nothing was changed."""


class TooLarge(CinestrataError, status=413, title="Too large"):
    """An upload exceeds a limit."""


class UnsupportedMediaType(CinestrataError, status=415, title="Unsupported media type"):
    """The type or the encoding of the body is not supported."""


class TooManyRequests(CinestrataError, status=429, title="Too many requests"):
    """Too many requests are waiting in the process."""

    def __init__(self, detail: str, retry_after: int = 1) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after)})
        self.retry_after = retry_after


class Unavailable(CinestrataError, status=503, title="Temporarily unavailable"):
    """A required component is unreachable; nothing was changed."""

    def __init__(self, detail: str, retry_after: int = 1, remedy: Action | None = None) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after)}, remedy=remedy)
        self.retry_after = retry_after


class InsufficientStorage(Unavailable, title="Insufficient storage"):
    """The data folder's disk has no space for a request's videos or files.

    Attributes:
        needed_bytes: Estimated number of bytes needed.
        free_bytes: Free space, less the reserve for the catalog and the index.
    """

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"The request needs about {needed_bytes:,} bytes in the data folder, which has {free_bytes:,} bytes free; "
            "nothing was stored. Free some space, or send fewer videos.",
            60,
        )
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


class InDoubt(Unavailable, title="Commit not confirmed"):
    """The database did not confirm a commit. Files that belong to its rows must not be deleted."""


class SourceUnavailable(Unavailable, title="Video source unavailable"):
    """A video's source is unreachable at the moment, which says nothing about the video."""

    awaited: ClassVar[str] = "the source"  # as the task's progress names it


class DecoderOutage(SourceUnavailable, title="Decoder unavailable"):
    """A worker's decoder does not work. That says nothing about the video, and other workers may decode it."""

    awaited = "a decoder"


class DataFolderNotWritable(CinestrataError, status=503, title="Data folder not writable"):
    """Part of the data folder cannot be written: wrong owner, read-only, or full disk.

    Attributes:
        hint: How the operator can fix it.
    """

    def __init__(self, folder: Path, cause: OSError) -> None:
        super().__init__(
            f"The folder {folder} cannot be written ({cause.strerror or cause}).",
            headers={"Retry-After": "30"},
        )
        self.hint = "Give this process's user write access, and check the disk's free space."


class TaskInterruption(CinestrataError, title="TaskInterruption"):
    """A job must stop before its task is finished."""


class LeaseLost(TaskInterruption, status=409, title="Lease lost"):
    """Another worker owns the task; this one must not write."""


class TaskCancelled(TaskInterruption, status=409, title="Cancelled"):
    """The user cancelled the task."""


class WorkerStopping(TaskInterruption, status=503, title="Worker is stopping"):
    """The worker process must stop."""


class VideosDeleted(TaskInterruption, status=409, title="Videos were deleted"):
    """Videos were deleted from the task during training."""


def problem_type(title: str) -> str:
    """Build the problem type URI for a title, such as ``urn:cinestrata:problem:not-found``."""
    return f"urn:cinestrata:problem:{title.lower().replace(' ', '-')}"


def field_path(location: Sequence[str | int]) -> str:
    """Format a pydantic location as a path: ``("videos", 3, "captions", 0)`` → ``videos[3].captions[0]``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "body"
