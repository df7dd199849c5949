"""Dependencies and parameters of routes: search engine, settings, caller, page links, JSON bodies and queries.

Unknown query parameters are refused: ignoring a misspelled filter would return rows that the client meant to exclude.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, get_args
from urllib.parse import urlencode

from fastapi import Depends, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from api.openapi import WHERE_EXAMPLES
from api.security.route_scopes import current_principal
from cinestrata_schemas import choice_types
from cinestrata_schemas.model_types import optional
from cinestrata_schemas.search import SearchFilters, SearchQuery, TextQuery
from service.core.errors import InvalidInput
from service.core.request_limits import MAX_WORST_QUERIES

if TYPE_CHECKING:
    from service.search.engine import SearchEngine

_Model = TypeVar("_Model", bound=BaseModel)


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


_PageT = TypeVar("_PageT", bound=_Page)


class PageLink:
    """The ``Link`` header of a list page (RFC 8288)."""

    def __init__(self, request: Request, response: Response) -> None:
        self._request = request
        self._response = response

    def add(self, page: _PageT) -> _PageT:
        """Add a link to the next page, if there is one; returns the page.

        The link contains only the query, so that it stays valid behind a proxy that changes the path.
        """
        self._response.headers.update(self.headers(page))
        return page

    def headers(self, page: _Page) -> dict[str, str]:
        """Return the header with the next page; empty on the last page."""
        if page.next_cursor is None:
            return {}
        given = self._request.query_params.multi_items()
        parameters = [(name, value) for name, value in given if name != "cursor"]
        return {"Link": f'<?{urlencode([*parameters, ("cursor", page.next_cursor)])}>; rel="next"'}


# These functions are async because FastAPI runs plain functions in a thread, which costs more than the work itself.


async def _page_link(request: Request, response: Response) -> PageLink:
    return PageLink(request, response)


async def _query_service(request: Request) -> Any:
    return request.app.state.query_service


async def _caller(request: Request) -> str:
    principal = current_principal(request)
    return principal.caller if principal else ""


# The engine imports torch, which an application on a data folder needs only for searches.
if TYPE_CHECKING:
    QueryDep = Annotated[SearchEngine, Depends(_query_service)]
else:
    QueryDep = Annotated[Any, Depends(_query_service)]
CallerDep = Annotated[str, Depends(_caller)]
PageLinkDep = Annotated[PageLink, Depends(_page_link)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="Repeating a request with its key returns the task that it created.",
    ),
]


def parse_json(model: type[_Model], body: bytes) -> _Model:
    """Parse a JSON body; raises InvalidInput. It may be large: call this outside the event loop."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            reason = str(first["ctx"]["error"])
            raise InvalidInput.at("body", f"The body is not JSON: {reason}.", "Send a JSON object.") from None
        raise InvalidInput.from_pydantic(error.errors(include_url=False), model) from None


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "The value contains a NUL character", {"hint": "Remove it."})
    return text


_Text = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_without_nul)]


class StrictParameters(BaseModel):
    """Query parameters; unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid")


NoParameters = Annotated[StrictParameters, Query()]


class _CursorParameters(StrictParameters):
    cursor: _Text | None = optional("`next_cursor` from the previous page, with the same parameters.")


class PageParameters(_CursorParameters):
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of entries on the page.")


class SyncedFileListParameters(PageParameters):
    task: _Text | None = optional("Only files of this domain (name or ID).")
    sha256: list[_Text] = Field(default=[], max_length=100, description="Only these contents.")


class VideoListParameters(PageParameters):
    task: _Text | None = optional("Only videos of this domain (name or ID).")
    status: choice_types.VideoStatus | None = optional("Only videos with this status.")
    split: choice_types.EffectiveSplit | None = optional("Only videos of this effective split.")
    text: _Text | None = optional("Only videos with this text in ID, URI, captions or reason.")
    sort: choice_types.VideoSort = Field(
        default="added", description="A leading `-` reverses it. `added`: by arrival."
    )


class TaskListParameters(_CursorParameters):
    state: list[choice_types.TaskState] | None = optional("Only in this state; repeatable.")
    kind: choice_types.TaskKind | None = optional(
        "Only domains, only appends to domains, or only upgrades of domains."
    )
    into: _Text | None = optional("Only appends to this domain (name or ID).")
    method: _Text | None = optional("Only tasks with this learning method.")
    text: _Text | None = optional("Only tasks with this text in name or ID, and appends to them.")
    searched: bool | None = optional("true: only domains that can be searched; false: the others.")
    sort: choice_types.TaskSort = Field(
        default="position", description="A leading `-` reverses it. `position`: in queue."
    )
    limit: int | None = Field(default=None, ge=1, le=1000, description="Maximum number; default: all.")


class ReleaseListParameters(PageParameters):
    task: _Text | None = optional("Only the release of this domain (name or ID).")
    kind: _Text | None = Field(
        default=None, description="Only releases with this kind of encoder.", examples=["low_rank"]
    )
    method: _Text | None = Field(
        default=None, description="Only releases with this learning method.", examples=["analytic"]
    )
    current: bool | None = optional("true: the served release; false: the others.")
    sort: choice_types.ReleaseSort = Field(
        default="learned", description="A leading `-` reverses the order. `learned`: of learning."
    )


class ShardListParameters(PageParameters):
    text: _Text | None = optional("Only with this text in the domain's name or ID.")
    sort: choice_types.ShardSort = Field(default="created", description="A leading `-` reverses the order.")


class AuditListParameters(PageParameters):
    actor: _Text | None = optional("Only entries by this user, key or process.")
    kind: list[choice_types.ActorKind] | None = optional("Only this kind of actor; repeatable.")
    action: list[_Text] | None = Field(
        default=None,
        max_length=20,
        description="Only this action, such as `task.cancel`, or all of a resource, such as `task`; "
        "may be repeated.",
    )
    target: _Text | None = optional("Only changes to the resource with this ID.")
    address: _Text | None = optional("Only requests from this network address.")
    request_id: _Text | None = optional("Only changes made by this request.")
    text: _Text | None = optional("Only entries with this text in actor, action, target or details.")
    after: datetime | None = optional("Earliest time; UTC unless it has a zone.")
    before: datetime | None = optional("End, exclusive; UTC unless it has a zone.")
    sort: choice_types.TimeSort = Field(default="-time", description="`-time`: newest first.")


class FeedbackListParameters(PageParameters):
    video_id: _Text | None = optional("Only feedback on this video.")
    text: _Text | None = optional("Only feedback for queries with this text.")
    verdict: choice_types.Verdict | None = optional("Only feedback with this verdict.")
    caller: _Text | None = optional("Only feedback from this user or key.")
    own: bool = Field(default=False, description="Only your own feedback, for administrators too.")
    sort: choice_types.TimeSort = Field(default="-time", description="`-time`: newest first.")


# Stated in the OpenAPI document only: the service checks the values, with its own hints.
_AT_LEAST_ONE: dict[str, Any] = {"minimum": 1}


class CaptionsParameters(StrictParameters):
    k: int = Field(default=10, description="Maximum number of captions.", json_schema_extra=_AT_LEAST_ONE)
    scope: str = Field(
        default="task",
        description="'task': captions from the video's own domain; 'all': captions from all domains.",
        json_schema_extra={"enum": [*get_args(choice_types.SearchScope)]},
    )


class SuggestionParameters(StrictParameters):
    q: str = Field(description="Query so far, whose last word is completed.", examples=["a bir"])
    k: int = Field(default=8, description="Maximum number of words.", json_schema_extra=_AT_LEAST_ONE)


class SimilarParameters(StrictParameters):
    k: int = Field(default=10, description="Maximum number of results.", json_schema_extra=_AT_LEAST_ONE)
    scope: str = Field(
        default="task",
        description="'task': videos in the same domain; 'all': videos in all domains with the same encoder.",
        json_schema_extra={"enum": [*get_args(choice_types.SearchScope)]},
    )
    min_score: float | None = optional("Minimum cosine similarity of a result.")


class _UrlFilters(BaseModel):
    """Filters that a URL contains in other forms than a body. The service checks their values."""

    task: list[str] | None = optional("Domain to search (name or ID); repeatable. Default: all.")
    where: str | None = Query(
        None,
        description=(
            "Conditions on metadata as a JSON object: for each field a value, {min, max}, {any: [values]} or "
            "{all: [texts]}."
        ),
        openapi_examples=WHERE_EXAMPLES,
    )

    def service_arguments(self) -> dict[str, Any]:
        """Return the parameters as arguments of the query service; raises InvalidInput."""
        arguments = dict(self)
        if self.where is not None:
            from service.search.video_filters import parse_where_json  # imports torch

            arguments["where"] = parse_where_json(self.where)
        return arguments


class ClipParameters(_UrlFilters, SearchFilters):
    captions: int | None = optional("Number of captions that describe the clip.")


class ExplanationParameters(_UrlFilters, TextQuery):
    k: int | None = optional("Number of ranked results; default: the maximum of a search.")  # type: ignore[assignment]


class SearchParameters(_UrlFilters, SearchQuery):  # type: ignore[misc]
    """Parameters of ``GET /search``."""


class QueryReportParameters(StrictParameters):
    worst: int = Field(default=10, ge=0, le=MAX_WORST_QUERIES, description="Maximum number of them.")
