"""Cookies of browsers, which scripts cannot read.

On HTTPS, their names have the prefix ``__Host-``, with which browsers accept a cookie from this host only: another
subdomain cannot set it, and so cannot sign a browser in as another user. Such cookies are ``Secure`` and have the path
``/``.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response


def read_cookie(request: Request, name: str) -> str:
    """The content of a cookie; empty without one."""
    return request.cookies.get(_sent_name(request, name), "")


def set_cookie(request: Request, response: Response, name: str, content: str, max_age: int) -> None:
    """Set a cookie in the browser that has sent a request, for ``max_age`` seconds."""
    response.set_cookie(
        _sent_name(request, name),
        content,
        max_age=max_age,
        httponly=True,
        samesite="lax",  # links from other sites open pages; their unsafe requests are refused by origin
        secure=_is_https(request),
    )


def delete_cookie(request: Request, response: Response, name: str) -> None:
    """Delete a cookie in the browser that has sent a request."""
    response.delete_cookie(
        _sent_name(request, name), httponly=True, samesite="lax", secure=_is_https(request)
    )


def _sent_name(request: Request, name: str) -> str:
    return f"__Host-{name}" if _is_https(request) else name


def _is_https(request: Request) -> bool:
    return request.scope.get("scheme") == "https"
