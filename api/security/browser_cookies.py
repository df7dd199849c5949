"""Browser cookies, which scripts cannot read.

On HTTPS, their names start with ``__Host-``. Browsers accept such a cookie only from this host, so another subdomain
cannot set it and sign a browser in as another user. Such cookies are ``Secure`` and have the path ``/``, so the name
contains the prefix of a proxy: two services on one host would otherwise replace each other's cookies.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response


def read_cookie(request: Request, name: str) -> str:
    """Return a cookie's content; empty if there is none."""
    return request.cookies.get(_sent_name(request, name), "")


def set_cookie(request: Request, response: Response, name: str, content: str, max_age: int) -> None:
    """Set a cookie for ``max_age`` seconds in the browser that sent a request."""
    response.set_cookie(
        _sent_name(request, name),
        content,
        max_age=max_age,
        httponly=True,
        samesite="lax",  # links from other sites may open pages; unsafe requests are refused by origin
        secure=_is_https(request),
    )


def delete_cookie(request: Request, response: Response, name: str) -> None:
    """Delete a cookie in the browser that sent a request."""
    response.delete_cookie(
        _sent_name(request, name), httponly=True, samesite="lax", secure=_is_https(request)
    )


def _sent_name(request: Request, name: str) -> str:
    name += request.app.state.settings.root_path.replace("/", ".")
    return f"__Host-{name}" if _is_https(request) else name


def _is_https(request: Request) -> bool:
    return request.scope.get("scheme") == "https"
