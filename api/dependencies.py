"""Dependencies and parameters of routes: search engine, settings, caller, page links, JSON bodies and queries.

Unknown query parameters are refused: ignoring a misspelled filter would return rows that the client meant to exclude.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args
from urllib.parse import urlencode

from fastapi import Depends, Header, Query, Request
from pydantic import BaseModel, Field, ValidationError

from api.openapi import WHERE_EXAMPLES
from api.security.route_scopes import current_principal
from cinestrata_schemas import choice_types
from cinestrata_schemas.model_types import optional
from cinestrata_schemas.search import AT_LEAST_ONE, SearchFilters, SearchQuery, TextQuery
from service.core.errors import InvalidInput
from service.core.list_parameters import StrictParameters
from service.core.request_limits import MAX_WORST_QUERIES

if TYPE_CHECKING:
    from service.search.engine import SearchEngine

_Model = TypeVar("_Model", bound=BaseModel)


def page_links(request: Request, next_cursor: str | None) -> dict[str, str]:
    """Return a page's ``Link`` header (RFC 8288): a query only, because proxies change paths; {} on the last page."""
    if next_cursor is None:
        return {}
    given = request.query_params.multi_items()
    parameters = [(name, value) for name, value in given if name != "cursor"]
    return {"Link": f'<?{urlencode([*parameters, ("cursor", next_cursor)])}>; rel="next"'}


# These functions are async because FastAPI runs plain functions in a thread, which costs more than the work itself.


async def _query_service(request: Request) -> Any:
    return request.app.state.query_service


async def _caller(request: Request) -> str:
    principal = current_principal(request)
    return principal.caller if principal else ""


# An application on a data folder spends the time to import the engine only for searches.
if TYPE_CHECKING:
    QueryDep = Annotated[SearchEngine, Depends(_query_service)]
else:
    QueryDep = Annotated[Any, Depends(_query_service)]
CallerDep = Annotated[str, Depends(_caller)]
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


NoParameters = Annotated[StrictParameters, Query()]


class CaptionsParameters(StrictParameters):
    k: int = Field(default=10, description="Maximum number of captions.", json_schema_extra=AT_LEAST_ONE)
    scope: str = Field(
        default="task",
        description="'task': captions from the video's own domain; 'all': captions from all domains.",
        json_schema_extra={"enum": [*get_args(choice_types.SearchScope)]},
    )


class SuggestionParameters(StrictParameters):
    q: str = Field(description="Query so far, whose last word is completed.", examples=["a bir"])
    k: int = Field(default=8, description="Maximum number of words.", json_schema_extra=AT_LEAST_ONE)


class SimilarParameters(StrictParameters):
    k: int = Field(default=10, description="Maximum number of results.", json_schema_extra=AT_LEAST_ONE)
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
            from service.search.video_filters import parse_where_json  # with the engine

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
