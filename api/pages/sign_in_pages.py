"""Sign-in of browsers at ``/login``, and sign-out."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated
from urllib.parse import urlencode

import anyio
from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from api.pages.html_pages import PAGE_METHODS, render_page
from api.request_middleware import api_link
from api.security.authentication import (
    SESSION_COOKIE,
    Authenticator,
    client_address,
    delete_cookie,
    read_cookie,
    set_cookie,
)
from api.security.route_scopes import ScopedRoute, request_actor, requires
from cinestrata_schemas.domain_names import normalize_name
from service.access import credentials
from service.access.audit_log import acting_as
from service.access.credentials import SESSION_SECONDS, SessionOwner
from service.access.failed_attempts import SIGN_IN_LIMIT
from service.access.users import find_password_hash, verify_password
from service.core.errors import NotFound, TooManyRequests
from service.core.process_setup import lower_thread_priority
from service.core.text_rules import name_key

router = APIRouter(include_in_schema=False, route_class=ScopedRoute)

MAX_PATH_CHARS = 2000
_MAX_NAME_CHARS = 256
_MAX_WAITING_HASHES = 16
_HASHING_NICE = 10
_REFUSAL_SECONDS = 0.2  # limits how fast a connection can repeat refused sign-ins
# Form fields may be longer than any credential, so an overlong one is wrong, not invalid.
_Text = Annotated[str, Form(max_length=4096)]
_Path = Annotated[str, Query(max_length=MAX_PATH_CHARS)]


@router.api_route("/login", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("public")
def login_page(request: Request, next: _Path = "") -> Response:
    """Show the sign-in page."""
    return show_login_page(request, next)


@router.post("/login")
@requires("public")
async def sign_in(
    request: Request, name: _Text = "", password: _Text = "", key: _Text = "", next: _Text = ""
) -> Response:
    """Start a session for a user's name and password, or for an API key."""
    authenticator: Authenticator = request.app.state.authenticator
    address = client_address(request)
    label = name_key(normalize_name(name[:_MAX_NAME_CHARS])) if not key else ""
    try:
        await run_in_threadpool(authenticator.limits.check, SIGN_IN_LIMIT, address, label)
        if key:
            owner = await _owner_of_key(authenticator, key, address)
        else:
            owner = await _owner_of_password(name, password)
    except TooManyRequests as error:
        authenticator.failures.add("session.fail", address, names=name, refused=True)
        await asyncio.sleep(_REFUSAL_SECONDS)
        return show_login_page(request, next, name=name, status=429, retry_after=error.retry_after)
    if owner is None:
        authenticator.failures.add("session.fail", address, names=name)
        await run_in_threadpool(authenticator.limits.count_failure, SIGN_IN_LIMIT, address, label)
        return show_login_page(request, next, name=name, status=401, wrong="key" if key else "password")
    await run_in_threadpool(authenticator.limits.forget_name, SIGN_IN_LIMIT, label)
    return await start_browser_session(request, owner, "key" if key else "password", next)


@router.post("/logout")
@requires("public")
async def sign_out(request: Request) -> Response:
    """End the session and delete its cookie."""
    authenticator: Authenticator = request.app.state.authenticator
    principal = await authenticator.identify_browser(request)
    if principal is not None and principal.session_id is not None:
        with acting_as(request_actor(request, principal)), suppress(NotFound):  # ended by another request
            await run_in_threadpool(credentials.end_session, principal.session_id)
    response = RedirectResponse(api_link(request, "/login"), status_code=303)
    delete_cookie(request, response, SESSION_COOKIE)
    return response


async def start_browser_session(request: Request, owner: SessionOwner, method: str, next: str) -> Response:
    """Start a session (``method`` is ``password``, ``key`` or ``oidc``), set its cookie, and redirect to a page."""
    agent, previous = request.headers.get("user-agent", ""), read_cookie(request, SESSION_COOKIE)
    token = await run_in_threadpool(credentials.start_session, owner, method, agent, previous)
    response = RedirectResponse(local_path(request, next), status_code=303)
    set_cookie(request, response, SESSION_COOKIE, token, max_age=SESSION_SECONDS)
    return response


def local_path(request: Request, target: str) -> str:
    """Return the target if it is a path on this service; otherwise the search page's."""
    home = api_link(request, "/")
    is_local = (
        target.startswith(home)
        and not target.startswith("//")
        and "\\" not in target
        and target.isprintable()
        and len(target) <= MAX_PATH_CHARS
    )
    return target if is_local else home


# A single hash takes 64 MiB and four threads. Without the lower priority, a flood of sign-ins would delay searches.
_hashing = anyio.CapacityLimiter(1)
_hashing_thread = ThreadPoolExecutor(1, "password-hash", lower_thread_priority, (_HASHING_NICE,))


async def _owner_of_password(name: str, password: str) -> SessionOwner | None:
    """Return the user with this name and password; an unknown name takes as long as a wrong password."""
    if _hashing.statistics().tasks_waiting >= _MAX_WAITING_HASHES:
        raise TooManyRequests("Too many sign-ins at once; try again in 2 seconds.", 2)
    user_id, stored = await run_in_threadpool(find_password_hash, name[:_MAX_NAME_CHARS])
    async with _hashing:
        loop = asyncio.get_running_loop()
        is_right = await loop.run_in_executor(_hashing_thread, verify_password, password, stored)
    return SessionOwner(user_id=user_id) if is_right and user_id is not None else None


async def _owner_of_key(authenticator: Authenticator, key: str, address: str) -> SessionOwner | None:
    principal = await authenticator.identify_key(key.strip(), address)
    if principal is None:
        return None
    if principal.kind == "environment":
        return SessionOwner(environment_key=authenticator.environment_key)
    return SessionOwner(key_id=principal.caller.removeprefix("key:"))


def show_login_page(request: Request, next: str, *, status: int = 200, **values: object) -> Response:
    """Show the sign-in page, with the values of its template: the name, and what was wrong."""
    path = local_path(request, next)
    has_provider = request.app.state.openid_provider is not None
    response = render_page(
        request,
        "login.html",
        status=status,
        next=path,
        provider=has_provider and api_link(request, f"/login/oidc?{urlencode({'next': path})}"),
        **values,
    )
    if "retry_after" in values:
        response.headers["Retry-After"] = str(values["retry_after"])
    return response
