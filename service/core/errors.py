"""The service's errors, each with its HTTP status, and pydantic's errors in the same words.

An ``Unavailable`` has changed nothing, so it can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, get_args

from pydantic import BaseModel

from cinestrata_schemas.problems import Action

_MAX_SHOWN = 60  # characters of a rejected value to show
_MAX_LISTED_ERRORS = 100  # a URL may have 10,000 unknown parameters


@dataclass(frozen=True)
class FieldError:
    """What is wrong with a field such as ``videos[3].captions[0]``, as a sentence, and how the caller can fix it."""

    field: str
    message: str
    hint: str = ""


class CinestrataError(Exception):
    """Base of all service errors. ``str(error)`` is one sentence for the user."""

    status: ClassVar[int] = 500  # of the response
    title: ClassVar[str] = "Internal error"  # short name of the error class
    hint: str = ""  # what the caller can do about it, if the sentence lacks it

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
        self.remedy = remedy  # what the caller may do next


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

        An item of ``ValidationError.errors()`` may also have a ``hint``; the model's fields are the hints for unknown
        ones.
        """
        listed = islice(errors, _MAX_LISTED_ERRORS)
        return cls.of(
            [FieldError(field_path(error["loc"]), *_describe(error, model)) for error in listed]
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
    """The data folder's disk, less its reserve, has no space for a request's videos or files."""

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


class UpgradeUnfinished(SourceUnavailable, title="Upgrade unfinished"):
    """The index has the new release of an upgraded domain, and the catalog not yet."""

    awaited = "the domain's upgrade"


class VectorStoreOutage(SourceUnavailable, title="Vector store unavailable"):
    """The server that stores the vectors does not respond, or refuses."""

    awaited = "the vector store"


class DataFolderNotWritable(CinestrataError, status=503, title="Data folder not writable"):
    """Part of the data folder cannot be written: wrong owner, read-only, or full disk."""

    def __init__(self, folder: Path, cause: OSError) -> None:
        detail = f"The folder {folder} cannot be written ({cause.strerror or cause})."
        super().__init__(detail, headers={"Retry-After": "30"})
        self.hint = "Give this process's user write access, and check the disk's free space."


class TaskInterruption(CinestrataError, title="TaskInterruption"):
    """A job must stop before its task is finished."""


class LeaseLost(TaskInterruption, status=409, title="Lease lost"):
    """Another worker owns the task; this one must not write."""


class TaskCancelled(TaskInterruption, status=409, title="Cancelled"):
    """The user cancelled the task."""


class WorkerStopping(TaskInterruption, status=503, title="Worker is stopping"):
    """The worker process must stop."""


class DomainChanged(TaskInterruption, status=409, title="Domain was changed"):
    """Videos were added to a task's domain or deleted from it, or it was upgraded; the task starts again."""


def problem_type(title: str) -> str:
    """Build the URI of a title, such as ``urn:cinestrata:problem:not-found`` (RFC 9457, member ``type``)."""
    return f"urn:cinestrata:problem:{title.lower().replace(' ', '-')}"


def field_path(location: Sequence[str | int]) -> str:
    """Format a pydantic location as a path: ``("videos", 3, "captions", 0)`` → ``videos[3].captions[0]``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "body"


# Message and hint by the type of pydantic's error.
_DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    "missing": ("The field is missing.", "Send it."),
    **dict.fromkeys(
        ("int_parsing", "int_type", "int_from_float", "int_parsing_size"),
        ("{value} is not an integer.", "Send a whole number."),
    ),
    **dict.fromkeys(("float_parsing", "float_type"), ("{value} is not a number.", "Send a number.")),
    **dict.fromkeys(("bool_parsing", "bool_type"), ("{value} is not a boolean.", "Send true or false.")),
    **dict.fromkeys(
        ("datetime_parsing", "datetime_from_date_parsing", "datetime_type"),
        (
            "{value} is not a time.",
            "Send a date or time in ISO 8601, such as 2026-01-31T08:00:00Z. In an address, write + as %2B.",
        ),
    ),
    "string_type": ("{value} is not a text.", "Send a string."),
    "list_type": ("{value} is not a list.", "Send a list."),
    "dict_type": ("{value} is not an object.", "Send a JSON object."),
    "literal_error": ("{value} is not a known value.", "{guess}Send one of {expected}."),
    "greater_than_equal": ("{number} is below the minimum {ge}.", "Send at least {ge}."),
    "greater_than": ("{number} is not above {gt}.", "Send more than {gt}."),
    "less_than_equal": ("{number} is above the maximum {le}.", "Send at most {le}."),
    "less_than": ("{number} is not below {lt}.", "Send less than {lt}."),
    "string_empty": ("The text is empty.", "Send a string, or omit the field."),
    "string_too_short": (
        "The text is too short.",
        "Send at least {min_length} characters, or omit the field.",
    ),
    "string_too_long": ("The text is too long.", "Send at most {max_length} characters."),
    "too_long": ("The list is too long.", "Send at most {max_length} items."),
}


def _describe(error: Mapping[str, Any], model: Any) -> tuple[str, str]:
    """Word an item of ``ValidationError.errors()`` as message and hint, unless it or its context has a hint."""
    kind, context = error["type"], error.get("ctx", {})
    hint = str(error.get("hint") or context.get("hint", ""))
    if kind == "extra_forbidden" and not hint:
        return "This field does not exist.", _unknown_field_hint(model, error["loc"])
    if kind == "string_too_short" and context["min_length"] == 1:
        kind = "string_empty"
    if hint or kind not in _DESCRIPTIONS:
        message = str(error["msg"]).removeprefix("Value error, ")
        return (message if message.endswith((".", "!", "?")) else f"{message}."), hint
    value = _shown(error.get("input"))
    number, guess = value.strip("'"), ""
    if kind == "literal_error":
        choices = [part.strip(" '") for part in context["expected"].replace(" or ", ",").split(",")]
        if closest := get_close_matches(number, choices, n=1):
            guess = f"Did you mean {closest[0]!r}? "
    message, hint = (
        text.format(value=value, number=number, guess=guess, **context) for text in _DESCRIPTIONS[kind]
    )
    return message, hint


def _unknown_field_hint(model: Any, location: Sequence[str | int]) -> str:
    """Suggest the known name closest to an unknown field, or list all known names."""
    *parents, unknown = location
    for name in parents:
        if isinstance(name, str):
            field = _fields_of(model).get(name)
            model = None if field is None else field.annotation
    names = sorted(_fields_of(model))
    if closest := get_close_matches(str(unknown)[:100], names, n=1):
        return f"Did you mean {closest[0]!r}?"
    return f"Known fields: {', '.join(names)}." if names else ""


def _fields_of(annotation: Any) -> dict[str, Any]:
    """Get the fields of the first model in an annotation such as ``Annotated[list[Model], …] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return dict(annotation.model_fields)
    return next(filter(None, map(_fields_of, get_args(annotation))), {})


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool) or value is None else "The value"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
