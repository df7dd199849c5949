"""The header that links to the next page of a list."""

from __future__ import annotations

from typing import Annotated, Protocol, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Request, Response

__all__ = ["PageLink", "PageLinkDep"]


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


_PageT = TypeVar("_PageT", bound=_Page)


class PageLink:
    """Header ``Link`` of a response (RFC 8288).

    Args:
        request: Request of a page.
        response: Response with this page.
    """

    def __init__(self, request: Request, response: Response) -> None:
        self._request = request
        self._response = response

    def add(self, page: _PageT) -> _PageT:
        """Add the header with the page after this page, if there is one; returns the page.

        The link contains the query only, so that it is also valid behind a proxy that changes the path.
        """
        self._response.headers.update(self.headers(page))
        return page

    def headers(self, page: _Page) -> dict[str, str]:
        """The header with the page after this page; empty on the last page."""
        if page.next_cursor is None:
            return {}
        given = self._request.query_params.multi_items()
        parameters = [(name, value) for name, value in given if name != "cursor"]
        return {"Link": f'<?{urlencode([*parameters, ("cursor", page.next_cursor)])}>; rel="next"'}


async def _page_link(request: Request, response: Response) -> PageLink:
    return PageLink(request, response)


PageLinkDep = Annotated[PageLink, Depends(_page_link)]
