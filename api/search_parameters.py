"""Query parameters of searches, declared as models and validated in one step.

FastAPI finds, copies and validates each parameter of a route's signature separately, in Python. For searches, whose
many parameters are nearly all absent, this is a third of the cost of HTTP. :class:`ParameterModelRoute` validates the
model in one call; names, errors and the OpenAPI description stay those of FastAPI.

Unknown parameters are refused: ignoring a misspelled filter would return the whole library.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Annotated, Any, get_args, get_type_hints

from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from api.list_parameters import StrictParameters
from api.openapi import WHERE_EXAMPLES
from api.security.route_scopes import ScopedRoute
from cinestrata_schemas.choice_types import QueryMode, SearchScope
from cinestrata_schemas.search import SearchQuery
from service.core.request_limits import MAX_WORST_QUERIES

# Stated in the OpenAPI document only: the service checks the values, for batches as well, with its own hints. Upper
# limits are those of service.core.request_limits.
_AT_LEAST_ONE: dict[str, Any] = {"minimum": 1}
_NOT_NEGATIVE: dict[str, Any] = {"minimum": 0}


class CaptionsParameters(StrictParameters):
    """Parameters of ``GET /videos/{video_id}/captions``."""

    k: Annotated[int, Query(description="Maximum number of captions.", json_schema_extra=_AT_LEAST_ONE)] = 10
    scope: Annotated[
        str,
        Query(
            description="'task': captions from the video's own domain; 'all': captions from all domains.",
            json_schema_extra={"enum": [*get_args(SearchScope)]},
        ),
    ] = "task"


class SuggestionParameters(StrictParameters):
    """Parameters of ``GET /suggestions``. The service checks their values."""

    q: Annotated[
        str, Query(description="Query so far; suggestions complete its last word.", examples=["a bir"])
    ]
    k: Annotated[int, Query(description="Maximum number of words.", json_schema_extra=_AT_LEAST_ONE)] = 8


class SimilarParameters(StrictParameters):
    """Parameters of ``GET /videos/{video_id}/similar``."""

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
        list[str] | None,
        Query(description="Name or ID of a domain to search; may be repeated. Default: all domains."),
    ] = None
    min_duration: Annotated[
        float | None, Query(description="Minimum duration in seconds.", json_schema_extra=_NOT_NEGATIVE)
    ] = None
    max_duration: Annotated[
        float | None, Query(description="Maximum duration in seconds.", json_schema_extra=_NOT_NEGATIVE)
    ] = None
    arrived_after: Annotated[
        datetime | None, Query(description="Added at this time or later; UTC unless it has a time zone.")
    ] = None
    arrived_before: Annotated[
        datetime | None, Query(description="Added before this time; UTC unless it has a time zone.")
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
    """Parameters of ``POST /search/clip``."""

    captions: Annotated[
        int | None,
        Query(description="Number of captions from the library to return as descriptions of the clip."),
    ] = None


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
            description="Query mode: 'pinned' or 'latest'; default: 'pinned' if the release offers it.",
            json_schema_extra={"enum": [*get_args(QueryMode), None]},
        ),
    ] = None
    routes: Annotated[
        str | None,
        Query(
            description=(
                "Domains to search: 'all', 'auto' (likely domains that can still contribute to the top k), or a number "
                "of the likeliest domains."
            ),
        ),
    ] = None
    moments: Annotated[int, Query(description="Maximum number of moments per long video, best first.")] = 3

    def query(self) -> SearchQuery:
        """Return the query, without a second validation."""
        return SearchQuery.model_construct(**self.service_arguments())


class ExplanationParameters(_TextParameters):
    """Parameters of ``GET /videos/{video_id}/explanation``."""

    k: Annotated[
        int | None,
        Query(
            description="Number of results among which the video is ranked; default: the maximum of a search."
        ),
    ] = None  # type: ignore[assignment]


class QueryReportParameters(StrictParameters):
    """Parameters of ``GET /tasks/{task_id}/queries``."""

    worst: Annotated[
        int, Query(ge=0, le=MAX_WORST_QUERIES, description="Maximum number of worst queries.")
    ] = 10


class SearchParameters(_TextParameters):
    """Parameters of ``GET /search``."""

    min_confidence: Annotated[
        float | None,
        Query(
            description="Minimum confidence of a result, 0..1.",
            json_schema_extra={"minimum": 0, "maximum": 1},
        ),
    ] = None
    facets: Annotated[
        bool, Query(description="Whether to count the domains and metadata values of the results.")
    ] = False
    cursor: Annotated[
        str | None,
        Query(
            description="`next_cursor` from the previous page; parameters other than k and moments must not change."
        ),
    ] = None


class ParameterModelRoute(ScopedRoute):
    """A route whose endpoint takes the request and ``parameters``, a pydantic model, and returns a response."""

    def permitted_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that validates the model and calls the endpoint, without FastAPI's dependency resolution."""
        model: type[BaseModel] = get_type_hints(self.endpoint)["parameters"]
        list_fields = {
            name for name, field in model.model_fields.items() if field.annotation == list[str] | None
        }

        async def handle(request: Request) -> Response:
            query = request.query_params
            try:
                parameters = model.model_validate(
                    {name: query.getlist(name) if name in list_fields else query[name] for name in query}
                )
            except ValidationError as error:
                raise RequestValidationError(
                    [{**item, "loc": ("query", *item["loc"])} for item in error.errors()]
                ) from error
            response: Response = await self.endpoint(request, parameters)
            return response

        return handle
