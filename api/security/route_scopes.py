"""Route scopes: each endpoint declares with ``@requires("…")`` the scope that its requests need.

A route of the class ``ScopedRoute`` checks the scope before it reads the body, and the OpenAPI description states it.
The application does not start if a route lacks a declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from asgi_correlation_id import correlation_id
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import Mount

from api.security.authentication import SESSION_COOKIE, client_address
from cinestrata_schemas.choice_types import AccessScope
from service.access.audit_log import Actor, acting_as
from service.access.credentials import OPEN_PRINCIPAL, SCOPES, Principal
from service.core.errors import CinestrataError, Unauthorized

RouteScope = AccessScope | Literal["public"]
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])

_PUBLIC_MOUNTS = {"/static"}
_PRINCIPAL_KEY = "cinestrata.principal"

SECURITY_SCHEMES: dict[str, dict[str, str]] = {
    "api_key": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "Scopes: `search` reads, `ingest` also changes videos and domains, `admin` permits all.",
    },
    "bearer": {"type": "http", "scheme": "bearer", "description": "The same API key as a bearer token."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "Session of a browser signed in at `/login`; on HTTPS, the name starts with `__Host-`.",
    },
}


class Forbidden(CinestrataError, status=403, title="Forbidden"):
    """The sender of the request lacks permission."""


def requires(scope: RouteScope, *, page: bool = False) -> Callable[[_Endpoint], _Endpoint]:
    """Declare the scope that requests to an endpoint need: each of the scopes includes the previous ones.

    ``public`` needs no credentials. A browser without any is redirected from a ``page`` to the sign-in page.
    """

    def declare(endpoint: _Endpoint) -> _Endpoint:
        endpoint.__required_scope__ = scope  # type: ignore[attr-defined]
        endpoint.__is_page__ = page  # type: ignore[attr-defined]
        return endpoint

    return declare


def declared_scope(endpoint: Callable[..., Any] | None) -> RouteScope | None:
    """Return the scope that an endpoint declares; None if it declares none."""
    scope: RouteScope | None = getattr(endpoint, "__required_scope__", None)
    return scope


def current_principal(request: Request) -> Principal | None:
    """Return the authenticated sender of a request; None on a public route."""
    principal: Principal | None = request.scope.get(_PRINCIPAL_KEY)
    return principal


def request_actor(request: Request, principal: Principal | None) -> Actor:
    """Return the actor to record for a request's changes."""
    sender = principal or OPEN_PRINCIPAL
    return Actor(sender.kind, sender.name, client_address(request) or None, correlation_id.get())


class ScopedRoute(APIRoute):
    """A route that refuses requests without the scope that its endpoint declares.

    The OpenAPI description has the scope, the endpoint's name as the operation's ID, and the first sentence of its
    docstring as a summary.
    """

    # Added to the operation in the OpenAPI description.
    described: Mapping[str, Any] = {}

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        scope = declared_scope(endpoint)
        # Since OpenAPI 3.1, the requirement for any scheme can list scopes.
        security = [] if scope == "public" else [{scheme: [scope]} for scheme in SECURITY_SCHEMES]
        described = {**self.described, "security": security, "x-required-scope": scope}
        options["openapi_extra"] = {**(options.get("openapi_extra") or {}), **described}
        summary = (endpoint.__doc__ or "").partition("\n\n")[0].partition(". ")[0]
        options["summary"] = " ".join(summary.split()).removesuffix(".")
        options["operation_id"] = endpoint.__name__
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that checks the scope before the body is read."""
        handle = self.permitted_handler()
        scope = declared_scope(self.endpoint)
        is_page = getattr(self.endpoint, "__is_page__", False)

        async def handle_permitted(request: Request) -> Response:
            if scope == "public":  # works even while the catalog is unreachable
                return await handle(request)
            principal = await request.app.state.authenticator.identify(request, scope or "admin")
            if principal is None and is_page:
                return _redirect_to_sign_in(request)
            if principal is None:
                raise Unauthorized(
                    "The request needs an API key.", headers={"WWW-Authenticate": 'Bearer realm="Cinestrata"'}
                )
            if SCOPES.index(principal.scope) < SCOPES.index(scope or "admin"):
                raise Forbidden(
                    f"The request needs the scope {scope!r}; {principal.name!r} has the scope {principal.scope!r}."
                )
            request.scope[_PRINCIPAL_KEY] = principal
            with acting_as(request_actor(request, principal)):
                return await handle(request)

        return handle_permitted

    def permitted_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler for requests with the declared scope."""
        return super().get_route_handler()


def check_declarations(app: FastAPI) -> None:
    """Check that every route declares and enforces its scope; raises TypeError."""
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, Mount) and route.path in _PUBLIC_MOUNTS:
            continue
        if not isinstance(route, ScopedRoute):
            raise TypeError(
                f"The route {context.path} does not enforce scopes: give its router route_class=ScopedRoute."
            )
        if declared_scope(context.endpoint) is None:
            raise TypeError(
                f"The route {context.path} declares no scope: decorate its endpoint with @requires(…)."
            )


def _redirect_to_sign_in(request: Request) -> Response:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    root = request.scope["root_path"]
    query = "" if target == f"{root}/" else f"?next={quote(target, safe='/')}"
    return RedirectResponse(f"{root}/login{query}", status_code=303)
