"""Query parameters of searches: declared once, and read at once.

The framework finds, copies and checks each parameter of a signature by itself, in Python. For the many that a search
can have, nearly all of them left out, that is a third of what HTTP costs. :class:`ParameterModelRoute` has the model check them in
one go; names, errors and the OpenAPI description stay those of the framework.

A name that is none of these is refused: a filter that is misspelt and passed over would give the whole library.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Annotated, Any, get_type_hints

from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, ValidationError

from api.openapi import WHERE_EXAMPLES
from service.core.schemas import SearchQuery
from service.search.requests.video_filters import parse_where_json

__all__ = [
    "CaptionsParameters",
    "ClipParameters",
    "ParameterModelRoute",
    "SearchParameters",
    "SimilarParameters",
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CaptionsParameters(_Strict):
    """Of ``GET /videos/{video_id}/captions``."""

    k: Annotated[int, Query(description="How many texts.")] = 10
    scope: Annotated[
        str,
        Query(description="'task': captions of its own domain; 'all': of all domains.", examples=["task"]),
    ] = "task"


class SimilarParameters(_Strict):
    """Of ``GET /videos/{video_id}/similar``."""

    k: Annotated[int, Query(description="How many results.")] = 10
    scope: Annotated[
        str,
        Query(
            description="'task': among the videos of its own task; 'all': of all that the same encoder embedded.",
            examples=["task"],
        ),
    ] = "task"
    min_score: Annotated[float | None, Query(description="Results below this cosine are left out.")] = None


class _Parameters(_Strict):
    """What every search can be narrowed down with. Values are checked by the service."""

    k: Annotated[int, Query(description="How many results.")] = 10
    task: Annotated[
        list[str] | None,
        Query(description="Name or id of a domain to search; may be repeated. All by default."),
    ] = None
    min_duration: Annotated[float | None, Query(description="Seconds.")] = None
    max_duration: Annotated[float | None, Query(description="Seconds.")] = None
    arrived_after: Annotated[
        datetime | None, Query(description="Posted then or later; UTC without a zone.")
    ] = None
    arrived_before: Annotated[datetime | None, Query(description="Posted earlier.")] = None
    where: str | None = Query(
        None,
        description=(
            "Metadata that a video must have, as a JSON object: by field a value, {min, max}, {any: [values]} or "
            "{all: [texts]}."
        ),
        openapi_examples=WHERE_EXAMPLES,
    )
    min_score: Annotated[float | None, Query(description="Results below this score are left out.")] = None

    def given(self) -> dict[str, Any]:
        """All of them, as the service takes them. Raises InvalidInput where ``where`` is no JSON object."""
        given = dict(self)
        if self.where is not None:
            given["where"] = parse_where_json(self.where)
        return given


class ClipParameters(_Parameters):
    """Of ``POST /search/clip``."""

    captions: Annotated[
        int | None, Query(description="How many texts of the library that describe the clip to add.")
    ] = None


class SearchParameters(_Parameters):
    """Of ``GET /search``."""

    q: Annotated[str, Query(description="What is seen, in words.", examples=["eggs are whisked"])]
    mode: Annotated[str | None, Query(description="'pinned', 'mapped' or 'latest' query encoders.")] = None
    min_confidence: Annotated[
        float | None,
        Query(description="Results that are less likely than this to be right are left out; 0..1."),
    ] = None
    routes: Annotated[
        str | None,
        Query(
            description=(
                "Which domains count: 'all', 'auto' (those that the words make likely and that can still matter), or "
                "how many of the likeliest."
            ),
        ),
    ] = None
    moments: Annotated[int, Query(description="How many moments of each long video, the best first.")] = 3
    cursor: Annotated[
        str | None,
        Query(description="`next_cursor` of the page before; everything but k and moments stays as it was."),
    ] = None

    def query(self) -> SearchQuery:
        """The query, not validated once more."""
        return SearchQuery.model_construct(**self.given())


class ParameterModelRoute(APIRoute):
    """A route whose function takes the request and ``parameters``, a model, and gives a response."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Reads the parameters and calls the function; the framework's would solve what it depends on first."""
        model: type[BaseModel] = get_type_hints(self.endpoint)["parameters"]
        repeated = {
            name for name, field in model.model_fields.items() if field.annotation == list[str] | None
        }

        async def handle(request: Request) -> Response:
            given = request.query_params
            try:
                parameters = model.model_validate(
                    {name: given.getlist(name) if name in repeated else given[name] for name in given}
                )
            except ValidationError as error:
                raise RequestValidationError(
                    [{**wrong, "loc": ("query", *wrong["loc"])} for wrong in error.errors()]
                ) from error
            response: Response = await self.endpoint(request, parameters)
            return response

        return handle
