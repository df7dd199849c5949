"""Dependencies shared by several routes: search engine, settings, caller, page links and JSON bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Header, Request, Response
from pydantic import BaseModel, ValidationError

from api.security.route_scopes import current_principal
from service.core.errors import InvalidInput
from service.core.settings import Settings

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


async def _settings(request: Request) -> Settings:
    configured: Settings = request.app.state.settings
    return configured


async def _caller(request: Request) -> str:
    principal = current_principal(request)
    return principal.caller if principal else ""


# The engine imports torch, which an application on a data folder needs only for searches.
if TYPE_CHECKING:
    QueryDep = Annotated[SearchEngine, Depends(_query_service)]
else:
    QueryDep = Annotated[Any, Depends(_query_service)]
SettingsDep = Annotated[Settings, Depends(_settings)]
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
    """Parse a JSON body, which may be large: call this outside the event loop.

    Raises:
        InvalidInput: the body is not JSON, or a field is invalid.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            reason = str(first["ctx"]["error"])
            raise InvalidInput.at("body", f"The body is not JSON: {reason}.", "Send a JSON object.") from None
        raise InvalidInput.from_pydantic(error.errors(include_url=False), model) from None
