"""Search requests: queries parsed and validated once, before any snapshot is involved, and pagination cursors."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from cinestrata_schemas.search import SearchQuery
from index.words.text_analysis import split_words
from index.words.video_columns import TypedValue
from service.core import request_limits
from service.core.errors import FieldError, InvalidInput
from service.core.settings import Settings
from service.core.text_rules import UNSTORABLE

Routes = Literal["auto", "all"] | int

_MAX_ERRORS = 20
_MAX_MOMENTS = 100  # per video
_MAX_CONDITIONS = 16  # per filter
_MAX_VALUES = 64  # per list of values
_MAX_VALUE_CHARS = 1000  # per text value
_CONDITION_HINT = (
    'Give a value ("night", 3, true), {"min": 1, "max": 5} with one end or both, {"any": ["red", "blue"]} or '
    '{"all": ["red", "blue"]}.'
)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

_CHECKSUM_BYTES = 8
_MAX_CHARS = 2000
_VALUE_ENCODER = json.JSONEncoder(sort_keys=True)  # every response with a next page encodes several values


@dataclass(frozen=True)
class ValueRange:
    """A condition: a number in a closed range; None leaves an end open."""

    low: float | None
    high: float | None


@dataclass(frozen=True)
class ValueList:
    """A condition: one of some values, or a list that has all of them."""

    values: tuple[TypedValue, ...]
    all_of: bool


Condition = ValueRange | ValueList


@dataclass(frozen=True)
class VideoFilter:
    """Conditions on videos, all of which must hold. Hashable, so that a batch evaluates equal filters once."""

    duration: ValueRange | None = None  # range in seconds
    arrived_after: datetime | None = None  # earliest creation time of the video's task, inclusive
    arrived_before: datetime | None = None  # latest creation time of the video's task, exclusive
    where: tuple[tuple[str, Condition], ...] = ()  # conditions by metadata field


NO_FILTER = VideoFilter()


@dataclass(frozen=True)
class SearchRequest:
    """A valid query with parsed values. Checks that depend on a release follow when it runs."""

    query: SearchQuery  # the query as sent; echoed in the response
    text: str  # query text, stripped of surrounding white space
    tasks: tuple[str, ...] | None  # names or IDs of the tasks to search; None searches all tasks
    filter: VideoFilter
    cursor: Cursor | None
    mode: str | None  # requested query mode, or the cursor's on later pages; None: the release's default
    routes: Routes  # selection of tasks, with the server's default applied
    field_prefix: str  # prefix for field names in errors: "queries[3]." in a batch
    # Digests of the parameters, apart from the release, that determine the results and their order.
    parameter_digests: Mapping[str, str]


def parse_requests(
    queries: Sequence[SearchQuery], settings: Settings, *, is_batch: bool = False
) -> list[SearchRequest]:
    """Parse and validate queries, which have valid types but unchecked values.

    Raises InvalidInput with up to 20 invalid fields, in a batch with their position.
    """
    requests: list[SearchRequest] = []
    errors: list[FieldError] = []
    for number, query in enumerate(queries):
        requests.append(_parse(query, settings, f"queries[{number}]." if is_batch else "", errors))
        if len(errors) >= _MAX_ERRORS:
            break
    if errors:
        raise InvalidInput.of(errors[:_MAX_ERRORS])
    return requests


def parse_routes(value: object) -> Routes | None:
    """Parse a task selection: ``auto``, ``all`` or a positive number; None if the value is invalid."""
    if value in ("auto", "all"):
        return value
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal()) or len(text) > 9:
        return None
    return int(text) or None


def find_count_errors(count: int, field: str, noun: str, most: int, *, least: int = 1) -> list[FieldError]:
    """Check a requested number of results, given their plural noun, without echoing an absurdly long one."""
    if least <= count <= most:
        return []
    shown = f"{count} {noun}" if abs(count) < 10**9 else f"That many {noun}"
    return [FieldError(field, f"{shown} can't be returned.", f"Request {least} to {most}.")]


def _parse(
    query: SearchQuery, settings: Settings, field_prefix: str, all_errors: list[FieldError]
) -> SearchRequest:
    """Parse a query and append its errors to the list. The request is meaningful only if there are none."""
    errors: list[FieldError] = []

    def report_error(field: str, message: str, hint: str) -> None:
        errors.append(FieldError(field_prefix + field, message, hint))

    text, max_chars = query.q.strip(), request_limits.MAX_QUERY_CHARS
    if not text:
        report_error("q", "The query is empty.", "Describe the scene in a few words.")
    elif len(query.q) > max_chars:
        report_error(
            "q", f"The query has {len(query.q)} characters.", f"Use at most {max_chars}; a sentence is best."
        )
    elif UNSTORABLE.search(query.q):
        report_error("q", "The query contains characters that are not text.", "Send valid Unicode text.")
    elif not split_words(text):
        report_error("q", "There are no words in this query.", "Describe the scene in a few words.")
    errors += find_count_errors(query.k, f"{field_prefix}k", "results", request_limits.MAX_RESULTS)
    errors += find_count_errors(
        query.moments, f"{field_prefix}moments", "moments per video", _MAX_MOMENTS, least=0
    )
    if query.min_score is not None and not math.isfinite(query.min_score):
        report_error("min_score", "The value is not a score.", "Give a number, such as 5.")
    if query.min_confidence is not None and not 0 <= query.min_confidence <= 1:
        report_error("min_confidence", "The value is not a probability.", "Give a number from 0 to 1.")
    routes = settings.routes if query.routes is None else parse_routes(query.routes)
    if routes is None:
        report_error(
            "routes", "The value is not a selection of tasks.", "Give auto, all, or a number of 1 or more."
        )
    if query.task == []:
        report_error(
            "task", "The list of tasks is empty.", "Give a task, or leave the parameter out to search all."
        )
    task = [query.task] if isinstance(query.task, str) else query.task
    tasks = None if task is None else sorted(set(task))
    video_filter = _parse_filter(query, report_error)
    digests = _digest_parameters(query, text, tasks, video_filter, routes or "auto")
    cursor = None
    if query.cursor is not None and not errors:
        cursor = parse_cursor(query.cursor)
        if cursor is None:
            report_error(
                "cursor",
                "The value is not an intact cursor of this service.",
                "Send the previous page's next_cursor unchanged, or leave it out for the first page.",
            )
    if cursor and (differing := sorted({name for name, _ in cursor.parameters.items() ^ digests.items()})):
        if "routes" in differing:  # it overrides the setting, so the setting cannot be what changed
            differing = [name for name in differing if name != "CINESTRATA_ROUTES"]
        verb = "differ" if len(differing) > 1 else "differs"
        report_error(
            "cursor",
            f"The cursor belongs to another search: {' and '.join(differing)} {verb}.",
            "Repeat the first page's parameters (except k and moments), or leave the cursor out.",
        )
    all_errors += errors
    return SearchRequest(
        query=query,
        text=text,
        tasks=None if tasks is None else tuple(tasks),
        filter=video_filter,
        cursor=cursor,
        mode=cursor.mode if cursor else query.mode,
        routes=routes or "auto",
        field_prefix=field_prefix,
        parameter_digests=digests,
    )


def _parse_filter(query: SearchQuery, report_error: Callable[[str, str, str], None]) -> VideoFilter:
    """Parse a query's filter fields, and report the field, message and hint of invalid ones."""
    ends = query.min_duration, query.max_duration, query.arrived_after, query.arrived_before
    if not query.where and all(end is None for end in ends):
        return NO_FILTER
    for name in ("min_duration", "max_duration"):
        seconds = getattr(query, name)
        if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
            report_error(name, "The value is not a duration.", "Give seconds, 0 or more.")
    low, high = query.min_duration, query.max_duration
    if low is not None and high is not None and low > high:
        report_error(
            "min_duration", "The value exceeds max_duration, so no video can pass.", "Swap the two values."
        )
    # A time without a zone is in UTC.
    after, before = (
        time.replace(tzinfo=UTC) if time is not None and time.tzinfo is None else time
        for time in (query.arrived_after, query.arrived_before)
    )
    if after is not None and before is not None and after >= before:
        report_error(
            "arrived_after",
            "The time is not earlier than arrived_before, so no video can pass.",
            "Swap the two values.",
        )
    where = query.where or {}
    conditions: list[tuple[str, Condition]] = []
    if len(where) > _MAX_CONDITIONS:
        report_error(
            "where",
            f"The filter names {len(where)} fields.",
            f"Name at most {_MAX_CONDITIONS}; all must match.",
        )
        where = {}
    for name, value in where.items():
        try:
            conditions.append((name, _parse_condition(value)))
        except _InvalidCondition as error:
            report_error(f"where.{name[:100]}", *error.args)
    return VideoFilter(
        duration=None if low is None and high is None else ValueRange(low, high),
        arrived_after=after,
        arrived_before=before,
        where=tuple(sorted(conditions, key=lambda condition: condition[0])),
    )


class _InvalidCondition(ValueError):
    """An invalid condition; the arguments are message and hint."""


def _parse_condition(value: Any) -> Condition:
    if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
        raise _InvalidCondition(f"The text has {len(value)} characters.", f"Use at most {_MAX_VALUE_CHARS}.")
    if not isinstance(value, dict):
        if not _is_value(value):
            raise _InvalidCondition("The value is not a valid metadata value.", _CONDITION_HINT)
        return ValueList(((isinstance(value, bool), value),), all_of=False)
    keys = set(value)
    if keys and keys <= {"min", "max"}:
        if not all(_is_number(end) for end in value.values()):
            raise _InvalidCondition("An end of the range is not a number.", _CONDITION_HINT)
        if len(value) == 2 and value["min"] > value["max"]:
            raise _InvalidCondition("min exceeds max, so no video can pass.", "Swap the two values.")
        return ValueRange(value.get("min"), value.get("max"))
    if keys not in ({"any"}, {"all"}):
        raise _InvalidCondition("The object is not a valid condition.", _CONDITION_HINT)
    ((kind, values),) = value.items()
    if not isinstance(values, list) or not 1 <= len(values) <= _MAX_VALUES:
        raise _InvalidCondition(f"'{kind}' is not a list of 1 to {_MAX_VALUES} values.", _CONDITION_HINT)
    if not all(_is_value(item) and (kind == "any" or isinstance(item, str)) for item in values):
        expected = "value" if kind == "any" else "text"
        raise _InvalidCondition(f"'{kind}' contains an item that is not a {expected}.", _CONDITION_HINT)
    return ValueList(tuple((isinstance(item, bool), item) for item in values), all_of=kind == "all")


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63  # as stored metadata


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_VALUE_CHARS
    return isinstance(value, bool) or (_is_number(value) and value not in (math.inf, -math.inf))


def _digest_parameters(
    query: SearchQuery, text: str, tasks: Sequence[str] | None, video_filter: VideoFilter, routes: Routes
) -> dict[str, str]:
    """Digest each parameter of a query that is not None."""
    # Seconds, because a conversion to UTC fails at either end of the range.
    after, before = (
        None if time is None else (time - _EPOCH).total_seconds()
        for time in (video_filter.arrived_after, video_filter.arrived_before)
    )
    parameters = {
        "q": text,
        "task": tasks,
        "mode": query.mode,
        "min_duration": query.min_duration,
        "max_duration": query.max_duration,
        "arrived_after": after,
        "arrived_before": before,
        "where": query.where or None,
        "min_score": query.min_score,
        "min_confidence": query.min_confidence,
        "CINESTRATA_ROUTES" if query.routes is None else "routes": routes,
    }
    return {
        name: hashlib.sha256(_VALUE_ENCODER.encode(value).encode()).hexdigest()[:12]
        for name, value in parameters.items()
        if value is not None
    }


Count = Annotated[int, Field(ge=0, lt=2**31)]


class Cursor(BaseModel, frozen=True, strict=True, extra="forbid"):
    """Where in a result list the next page starts, and the release that produced the list.

    Clients treat it as opaque, and the server keeps no state for it. A checksum reveals damage. It is neither secret
    nor signed: a forged cursor gives access to nothing new.
    """

    release: str
    generation: Count
    mode: str
    hit_offset: Count  # number of hits on previous pages
    # Number of results on previous pages; less if the catalog no longer had some of the videos.
    result_offset: Count
    parameters: dict[str, str]  # digests, by name, of all parameters that determine the list
    # Number of likeliest tasks that the first page considered; see RoundPlanner.
    tasks_in_first_page: Count
    # Task, ID and score of the previous page's last hit. The score leaves out the parts that change when other videos
    # are deleted.
    last: tuple[str, int, float]

    def __str__(self) -> str:
        body = self.model_dump_json().encode()
        return base64.urlsafe_b64encode(_checksum(body) + body).rstrip(b"=").decode()


def parse_cursor(text: str) -> Cursor | None:
    """Decode a cursor; None if the text is not an intact one."""
    if len(text) > _MAX_CHARS:
        return None
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        body = raw[_CHECKSUM_BYTES:]
        return Cursor.model_validate_json(body) if raw[:_CHECKSUM_BYTES] == _checksum(body) else None
    except ValueError:
        return None


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"cinestrata cursor " + body).digest()[:_CHECKSUM_BYTES]
