"""Which videos a search may find: by duration, by time of arrival, by metadata.

A filter never changes a score: what is found is what the search without it would find, with what does not pass left
out, and looked for so far that k results come back wherever k pass.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from service.core.errors import FieldError, InvalidInput
from service.core.schemas import SearchQuery
from service.search.video_metadata_cache import Column, Value, VideoMetadata, VideoMetadataCache

__all__ = ["VideoFilter", "allowed", "find_filter_errors", "parse_filter", "parse_where_json"]

Ids = npt.NDArray[np.int64]

_MAX_FIELDS = 16  # of one filter
_MAX_VALUES = 64  # of one list
_MAX_CHARS = 1000  # of one text
_HOW = (
    'Give a value ("night", 3, true), {"min": 1, "max": 5} with one end or both, {"any": ["red", "blue"]} or '
    '{"all": ["red", "blue"]}.'
)


@dataclass(frozen=True)
class _Range:
    low: float | None
    high: float | None

    def rows(self, column: Column) -> Ids:
        return column.between(self.low, self.high)


@dataclass(frozen=True)
class _AnyOf:
    values: tuple[
        tuple[bool, Value], ...
    ]  # whether it is a truth value comes first, lest 1 be taken for true

    def rows(self, column: Column) -> Ids:
        return np.unique(np.concatenate([column.equal(value) for _, value in self.values]))


@dataclass(frozen=True)
class _AllOf:
    values: tuple[str, ...]

    def rows(self, column: Column) -> Ids:
        return reduce(np.intersect1d, [column.equal(value) for value in self.values])


_Condition = _Range | _AnyOf | _AllOf


@dataclass(frozen=True)
class VideoFilter:
    """What a video must be like.

    Attributes:
        duration: in seconds.
        after, before: its task was posted at or after, and before.
        where: conditions on fields of metadata, all of which must hold.
    """

    duration: _Range | None = None
    after: datetime | None = None
    before: datetime | None = None
    where: tuple[tuple[str, _Condition], ...] = ()

    @property
    def looks_at_videos(self) -> bool:
        """Whether it tells videos of one task apart."""
        return self.duration is not None or bool(self.where)

    def admits(self, arrived: datetime | None) -> bool:
        """Whether a task that was posted then may be searched; None: nobody knows when."""
        if self.after is None and self.before is None:
            return True
        return (
            arrived is not None
            and (self.after is None or arrived >= self.after)
            and (self.before is None or arrived < self.before)
        )

    def ids(self, facts: VideoMetadata) -> Ids:
        """Vector ids of the videos that pass, ascending."""
        rows = [] if self.duration is None else [self.duration.rows(facts.durations)]
        nothing = Column(())
        rows += [condition.rows(facts.fields.get(name, nothing)) for name, condition in self.where]
        passing = reduce(np.intersect1d, rows)
        return facts.ids[np.sort(passing)]


def allowed(
    chosen: VideoFilter, shards: Mapping[str, str], reader: VideoMetadataCache, at: str = ""
) -> dict[str, Ids | None]:
    """Task id → vector ids that may be found there, None for all. Tasks where nothing passes are left out.

    Args:
        shards: task id → shard id, of the tasks to search.
        at: what stands before the name of a wrong field.

    Raises:
        InvalidInput: a field that no video has, or a range of a field without numbers; names it.
    """
    tasks: Sequence[str] = list(shards)
    if chosen.where:
        _require_known(chosen, [reader.facts(task, shards[task]) for task in tasks], at)
    if chosen.after is not None or chosen.before is not None:
        arrivals = reader.arrivals(tasks)
        tasks = [task for task in tasks if chosen.admits(arrivals.get(task))]
    if not chosen.looks_at_videos:
        return dict.fromkeys(tasks)
    passing = {task: chosen.ids(reader.facts(task, shards[task])) for task in tasks}
    return {task: ids for task, ids in passing.items() if len(ids)}


def parse_where_json(text: str) -> dict[str, Any]:
    """Conditions on metadata as they are written in a URL. Raises InvalidInput."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise InvalidInput.at(
            "where",
            "This is no JSON object.",
            'Send fields and what they must be, for example {"place": "kitchen"}.',
        )
    return read


def parse_filter(query: SearchQuery) -> VideoFilter:
    """The filter of a query in which :func:`find_filter_errors` found nothing."""
    wanted = query.min_duration, query.max_duration
    return VideoFilter(
        duration=None if wanted == (None, None) else _Range(*wanted),
        after=_aware(query.arrived_after),
        before=_aware(query.arrived_before),
        where=tuple((name, _condition(value)) for name, value in sorted((query.where or {}).items())),
    )


def find_filter_errors(query: SearchQuery, at: str) -> Iterator[FieldError]:
    """What is wrong with the filter of a query, as far as can be known without the videos."""
    for name in ("min_duration", "max_duration"):
        seconds = getattr(query, name)
        if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
            yield FieldError(f"{at}{name}", "This is no duration.", "Give seconds, 0 or more.")
    if (
        query.min_duration is not None
        and query.max_duration is not None
        and query.min_duration > query.max_duration
    ):
        yield FieldError(
            f"{at}min_duration", "It is longer than max_duration, so nothing can pass.", "Swap them."
        )
    after, before = _aware(query.arrived_after), _aware(query.arrived_before)
    if after is not None and before is not None and after >= before:
        yield FieldError(
            f"{at}arrived_after", "It is not earlier than arrived_before, so nothing can pass.", "Swap them."
        )
    where = query.where or {}
    if len(where) > _MAX_FIELDS:
        yield FieldError(
            f"{at}where", f"It names {len(where)} fields.", f"Name at most {_MAX_FIELDS}; they must all hold."
        )
        return
    for name, value in where.items():
        wrong = _wrong(value)
        if wrong:
            yield FieldError(f"{at}where.{name[:100]}", *wrong)


def _aware(at: datetime | None) -> datetime | None:
    """A time without a zone is UTC."""
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


def _condition(value: Any) -> _Condition:
    if isinstance(value, dict):
        if "any" in value:
            return _AnyOf(tuple((isinstance(one, bool), one) for one in value["any"]))
        if "all" in value:
            return _AllOf(tuple(value["all"]))
        return _Range(value.get("min"), value.get("max"))
    return _AnyOf(((isinstance(value, bool), value),))


def _wrong(value: Any) -> tuple[str, str] | None:
    """What is wrong with a condition, and the hint."""
    if isinstance(value, str) and len(value) > _MAX_CHARS:
        return f"The text has {len(value)} characters.", f"Use at most {_MAX_CHARS}."
    if not isinstance(value, dict):
        return None if _is_value(value) else ("This is nothing that a field can be.", _HOW)
    keys = set(value)
    if keys and keys <= {"min", "max"}:
        ends = list(value.values())
        if not all(_is_number(end) for end in ends):
            return "An end of the range is no number.", _HOW
        if len(ends) == 2 and value["min"] > value["max"]:
            return "min is above max, so nothing can pass.", "Swap them."
        return None
    if keys not in ({"any"}, {"all"}):
        return "This is no condition.", _HOW
    ((kind, values),) = value.items()
    if not isinstance(values, list) or not 1 <= len(values) <= _MAX_VALUES:
        return f"'{kind}' must be a list of 1 to {_MAX_VALUES} values.", _HOW
    if not all(_is_value(one) and (kind == "any" or isinstance(one, str)) for one in values):
        return f"'{kind}' holds something that is no {'value' if kind == 'any' else 'text'}.", _HOW
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _MAX_CHARS
    return isinstance(value, bool) or (_is_number(value) and value not in (math.inf, -math.inf))


def _require_known(chosen: VideoFilter, searched: Sequence[VideoMetadata], at: str) -> None:
    for name, condition in chosen.where:
        columns = [facts.fields[name] for facts in searched if name in facts.fields]
        field = f"{at}where.{name[:100]}"
        if not columns:
            known = sorted({field for facts in searched for field in facts.fields})
            raise InvalidInput.at(
                field,
                f"No video of the searched tasks has a field {name[:100]!r}.",
                f"Known: {', '.join(map(repr, known[:20]))}{' …' if len(known) > 20 else ''}."
                if known
                else "They carry no metadata; it is sent with the videos, in POST /tasks.",
            )
        if isinstance(condition, _Range) and not any(column.has_numbers for column in columns):
            raise InvalidInput.at(
                field,
                "No video of the searched tasks has a number there, so it has no range.",
                "Ask for a value. Cells of a CSV manifest are texts; a JSONL manifest keeps numbers.",
            )
