"""API keys, dashboard users, browser sessions and the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.dependencies import NoParameters, page_links
from api.security.route_scopes import ScopedRoute, current_principal, requires
from cinestrata_schemas import access
from service.access import audit_log, credentials, users
from service.core.list_parameters import AuditFilters

router = APIRouter(tags=["access"], route_class=ScopedRoute)


@router.get("/access/current")
@requires("search")
def get_current_access(request: Request) -> access.CurrentAccess:
    """Return the caller's name and scope."""
    principal = current_principal(request)
    if principal is None:
        raise AssertionError("the middleware identifies the sender of every request")
    return access.CurrentAccess(kind=principal.kind, name=principal.name, scope=principal.scope)


@router.get("/keys")
@requires("admin")
def list_keys(_parameters: NoParameters) -> list[access.KeyDetails]:
    """List API keys with scope, expiry and last use, newest first. The key in the environment is not listed."""
    return credentials.list_keys()


@router.post("/keys", status_code=201)
@requires("admin")
def create_key(spec: access.KeySpec) -> access.KeySecret:
    """Create an API key. Only this response contains the key; the catalog stores its hash."""
    return credentials.create_key(spec)


@router.delete("/keys/{key_id}")
@requires("admin")
def revoke_key(key_id: str) -> access.KeyDetails:
    """Revoke an API key and end the sessions started with it. Idempotent.

    Other API processes refuse the key within five seconds.
    """
    return credentials.revoke_key(key_id)


@router.get("/users")
@requires("admin")
def list_users(_parameters: NoParameters) -> list[access.UserDetails]:
    """List dashboard users by name."""
    return users.list_users()


@router.post("/users", status_code=201)
@requires("admin")
def create_user(spec: access.UserSpec) -> access.UserDetails:
    """Create a user who signs in with a password. OpenID users are created when they sign in."""
    return users.create_user(spec)


@router.patch("/users/{user_id}")
@requires("admin")
def edit_user(user_id: str, patch: access.UserPatch) -> access.UserDetails:
    """Change a user's role or password. A new password ends all of the user's sessions."""
    return users.edit_user(user_id, patch)


@router.delete("/users/{user_id}")
@requires("admin")
def remove_user(user_id: str) -> access.UserDetails:
    """Remove a user and end their sessions."""
    return users.remove_user(user_id)


@router.get("/sessions")
@requires("admin")
def list_sessions(request: Request, _parameters: NoParameters) -> list[access.SessionDetails]:
    """List active browser sessions, newest first."""
    principal = current_principal(request)
    return credentials.list_sessions(principal.session_id if principal else None)


@router.delete("/sessions/{session_id}", status_code=204)
@requires("admin")
def end_session(session_id: str) -> None:
    """End a browser session."""
    credentials.end_session(session_id)


@router.get("/audit")
@requires("admin")
def list_audit_entries(
    request: Request, response: Response, parameters: Annotated[AuditFilters, Query()]
) -> access.AuditPage:
    """List the audit log in pages, newest first by default.

    An entry is a change to the library or to its access, with actor, time and address. Sign-ins and refused keys are
    included, searches are not.
    """
    page = audit_log.list_entries(parameters)
    response.headers.update(page_links(request, page.next_cursor))
    return page
