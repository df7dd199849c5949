"""Query parameters of lists and searches, declared as models.

Unknown parameters are refused: ignoring a misspelled filter would return rows that the client meant to exclude.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, get_args

from fastapi import Query
from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints
from pydantic_core import PydanticCustomError

from api.openapi import WHERE_EXAMPLES
from cinestrata_schemas.choice_types import (
    ActorKind,
    EffectiveSplit,
    QueryMode,
    ReleaseSort,
    SearchScope,
    ShardSort,
    TaskKind,
    TaskSort,
    TaskState,
    TimeSort,
    Verdict,
    VideoSort,
    VideoStatus,
)
from cinestrata_schemas.search import SearchQuery
from service.core.request_limits import MAX_WORST_QUERIES


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "The value contains a NUL character", {"hint": "Remove it."})
    return text


_Text = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_without_nul)]


class StrictParameters(BaseModel):
    """Query parameters; unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid")


NoParameters = Annotated[StrictParameters, Query()]


class _PageParameters(StrictParameters):
    cursor: Annotated[
        _Text | None, Query(description="`next_cursor` from the previous page, with the same parameters.")
    ] = None


class _LimitedPageParameters(_PageParameters):
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries on the page.")] = 100


class SyncedFileListParameters(_LimitedPageParameters):
    task: Annotated[_Text | None, Query(description="Only files of this domain (name or ID).")] = None
    sha256: Annotated[list[_Text], Query(max_length=100, description="Only these contents.")] = []


class VideoListParameters(_LimitedPageParameters):
    task: Annotated[_Text | None, Query(description="Only videos of this domain (name or ID).")] = None
    status: Annotated[VideoStatus | None, Query(description="Only videos with this status.")] = None
    split: Annotated[EffectiveSplit | None, Query(description="Only videos of this effective split.")] = None
    text: Annotated[
        _Text | None, Query(description="Only videos with this text in ID, URI, captions or reason.")
    ] = None
    sort: Annotated[VideoSort, Query(description="A leading `-` reverses it. `added`: by arrival.")] = "added"


class TaskListParameters(_PageParameters):
    state: Annotated[list[TaskState] | None, Query(description="Only in this state; repeatable.")] = None
    kind: Annotated[TaskKind | None, Query(description="Only domains, or only appends to domains.")] = None
    into: Annotated[_Text | None, Query(description="Only appends to this domain (name or ID).")] = None
    method: Annotated[_Text | None, Query(description="Only tasks with this learning method.")] = None
    text: Annotated[
        _Text | None, Query(description="Only tasks with this text in name or ID, and appends to them.")
    ] = None
    searched: Annotated[
        bool | None, Query(description="true: only domains that can be searched; false: the others.")
    ] = None
    sort: Annotated[
        TaskSort, Query(description="A leading `-` reverses the order. `position`: in the queue.")
    ] = "position"
    limit: Annotated[int | None, Query(ge=1, le=1000, description="Maximum number; default: all.")] = None


class ReleaseListParameters(_LimitedPageParameters):
    task: Annotated[_Text | None, Query(description="Only the release of this domain (name or ID).")] = None
    kind: Annotated[
        _Text | None, Query(description="Only releases with this kind of encoder.", examples=["low_rank"])
    ] = None
    method: Annotated[
        _Text | None, Query(description="Only releases with this learning method.", examples=["analytic"])
    ] = None
    current: Annotated[bool | None, Query(description="true: the served release; false: the others.")] = None
    sort: Annotated[
        ReleaseSort, Query(description="A leading `-` reverses the order. `learned`: of learning.")
    ] = "learned"


class ShardListParameters(_LimitedPageParameters):
    text: Annotated[_Text | None, Query(description="Only with this text in the domain's name or ID.")] = None
    sort: Annotated[ShardSort, Query(description="A leading `-` reverses the order.")] = "created"


class AuditListParameters(_LimitedPageParameters):
    actor: Annotated[_Text | None, Query(description="Only entries by this user, key or process.")] = None
    kind: Annotated[list[ActorKind] | None, Query(description="Only this kind of actor; repeatable.")] = None
    action: Annotated[
        list[_Text] | None,
        Query(
            max_length=20,
            description="Only this action, such as `task.cancel`, or all of a resource, such as `task`; "
            "may be repeated.",
        ),
    ] = None
    target: Annotated[_Text | None, Query(description="Only changes to the resource with this ID.")] = None
    address: Annotated[_Text | None, Query(description="Only requests from this network address.")] = None
    request_id: Annotated[_Text | None, Query(description="Only changes made by this request.")] = None
    text: Annotated[
        _Text | None, Query(description="Only entries with this text in actor, action, target or details.")
    ] = None
    after: Annotated[datetime | None, Query(description="Earliest time; UTC unless it has a zone.")] = None
    before: Annotated[datetime | None, Query(description="End, exclusive; UTC unless it has a zone.")] = None

    sort: Annotated[TimeSort, Query(description="`-time`: newest first.")] = "-time"


class FeedbackListParameters(_LimitedPageParameters):
    video_id: Annotated[_Text | None, Query(description="Only feedback on this video.")] = None
    text: Annotated[_Text | None, Query(description="Only feedback for queries with this text.")] = None
    verdict: Annotated[Verdict | None, Query(description="Only feedback with this verdict.")] = None
    caller: Annotated[_Text | None, Query(description="Only feedback from this user or key.")] = None
    own: Annotated[bool, Query(description="Only your own feedback, for administrators too.")] = False
    sort: Annotated[TimeSort, Query(description="`-time`: newest first.")] = "-time"


class WebhookDeliveryParameters(_LimitedPageParameters):
    """Parameters of ``GET /webhooks/{webhook_id}/deliveries``."""


# Stated in the OpenAPI document only: the service checks the values, for batches as well, with its own hints. Upper
# limits are those of service.core.request_limits.
_AT_LEAST_ONE: dict[str, Any] = {"minimum": 1}
_NOT_NEGATIVE: dict[str, Any] = {"minimum": 0}


class CaptionsParameters(StrictParameters):
    k: Annotated[int, Query(description="Maximum number of captions.", json_schema_extra=_AT_LEAST_ONE)] = 10
    scope: Annotated[
        str,
        Query(
            description="'task': captions from the video's own domain; 'all': captions from all domains.",
            json_schema_extra={"enum": [*get_args(SearchScope)]},
        ),
    ] = "task"


class SuggestionParameters(StrictParameters):
    q: Annotated[str, Query(description="Query so far, whose last word is completed.", examples=["a bir"])]
    k: Annotated[int, Query(description="Maximum number of words.", json_schema_extra=_AT_LEAST_ONE)] = 8


class SimilarParameters(StrictParameters):
    k: Annotated[int, Query(description="Maximum number of results.", json_schema_extra=_AT_LEAST_ONE)] = 10
    scope: Annotated[
        str,
        Query(
            description="'task': videos in the same domain; 'all': videos in all domains with the same encoder.",
            json_schema_extra={"enum": [*get_args(SearchScope)]},
        ),
    ] = "task"
    min_score: Annotated[float | None, Query(description="Minimum cosine similarity of a result.")] = None


class _FilterParameters(StrictParameters):
    """Filters of all searches. The service checks their values."""

    k: Annotated[int, Query(description="Maximum number of results.", json_schema_extra=_AT_LEAST_ONE)] = 10
    task: Annotated[
        list[str] | None, Query(description="Domain to search (name or ID); repeatable. Default: all.")
    ] = None
    min_duration: Annotated[
        float | None, Query(description="Minimum duration in seconds.", json_schema_extra=_NOT_NEGATIVE)
    ] = None
    max_duration: Annotated[
        float | None, Query(description="Maximum duration in seconds.", json_schema_extra=_NOT_NEGATIVE)
    ] = None
    arrived_after: Annotated[
        datetime | None, Query(description="Added since this time; UTC unless it has a zone.")
    ] = None
    arrived_before: Annotated[
        datetime | None, Query(description="Added before this time; UTC unless it has a zone.")
    ] = None
    where: str | None = Query(
        None,
        description=(
            "Conditions on metadata as a JSON object: for each field a value, {min, max}, {any: [values]} or "
            "{all: [texts]}."
        ),
        openapi_examples=WHERE_EXAMPLES,
    )
    min_score: Annotated[float | None, Query(description="Minimum score of a result.")] = None

    def service_arguments(self) -> dict[str, Any]:
        """Return the parameters as arguments of the query service.

        Raises:
            InvalidInput: ``where`` is not a JSON object.
        """
        arguments = dict(self)
        if self.where is not None:
            from service.search.video_filters import parse_where_json  # imports torch

            arguments["where"] = parse_where_json(self.where)
        return arguments


class ClipParameters(_FilterParameters):
    captions: Annotated[int | None, Query(description="Number of captions that describe the clip.")] = None


class _TextParameters(_FilterParameters):
    q: Annotated[
        str,
        Query(
            description="Description of the video, in words.",
            examples=["eggs are whisked"],
            json_schema_extra={"minLength": 1},
        ),
    ]
    mode: Annotated[
        str | None,
        Query(
            description="'pinned' or 'latest'; default: 'pinned' if offered.",
            json_schema_extra={"enum": [*get_args(QueryMode), None]},
        ),
    ] = None
    routes: Annotated[
        str | None,
        Query(
            description=(
                "Domains to search: 'all', 'auto' (likely domains that can still contribute to the top k), or a number "
                "of the likeliest domains."
            )
        ),
    ] = None
    moments: Annotated[int, Query(description="Maximum number of moments per long video, best first.")] = 3

    def query(self) -> SearchQuery:
        """Return the query, without a second validation."""
        return SearchQuery.model_construct(**self.service_arguments())


class ExplanationParameters(_TextParameters):
    k: Annotated[
        int | None, Query(description="Number of ranked results; default: the maximum of a search.")
    ] = None  # type: ignore[assignment]


class QueryReportParameters(StrictParameters):
    worst: Annotated[int, Query(ge=0, le=MAX_WORST_QUERIES, description="Maximum number of them.")] = 10


class SearchParameters(_TextParameters):
    min_confidence: Annotated[
        float | None,
        Query(
            description="Minimum confidence of a result, 0..1.",
            json_schema_extra={"minimum": 0, "maximum": 1},
        ),
    ] = None
    facets: Annotated[bool, Query(description="Whether to count domains and metadata values.")] = False
    cursor: Annotated[
        str | None,
        Query(
            description="`next_cursor` from the previous page; parameters other than k and moments must not change."
        ),
    ] = None
