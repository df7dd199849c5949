"""Sign-in of browsers at an OpenID provider."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from api.pages.sign_in_pages import MAX_PATH_CHARS, local_path, show_login_page, start_browser_session
from api.security.authentication import Authenticator, client_address, delete_cookie, read_cookie, set_cookie
from api.security.route_scopes import ScopedRoute, requires
from service.access import credentials, users
from service.access.credentials import SessionOwner
from service.access.failed_attempts import SIGN_IN_LIMIT
from service.access.openid_provider import FLOW_SECONDS, OpenIdProvider, RoleMissing, SignInRefused
from service.core.errors import TooManyRequests

router = APIRouter(include_in_schema=False, route_class=ScopedRoute)

_FLOW_COOKIE = "cinestrata_sign_in"
_NAME = "openid provider"  # in the counters and the audit log


@router.get("/login/oidc")
@requires("public")
async def begin_sign_in(
    request: Request, next: Annotated[str, Query(max_length=MAX_PATH_CHARS)] = ""
) -> Response:
    """Redirect the browser to the provider."""
    provider: OpenIdProvider = request.app.state.openid_provider
    try:
        redirect_uri = str(request.url_for("complete_sign_in"))
        address, flow = await provider.begin(redirect_uri, local_path(request, next))
    except SignInRefused as error:
        return show_login_page(request, next, status=401, wrong="provider", reason=error.detail)
    response = RedirectResponse(address, status_code=303)
    set_cookie(request, response, _FLOW_COOKIE, flow, FLOW_SECONDS)
    return response


@router.get("/login/oidc/callback")
@requires("public")
async def complete_sign_in(request: Request) -> Response:
    """Verify the provider's response, and start a session."""
    provider: OpenIdProvider = request.app.state.openid_provider
    address = client_address(request)
    authenticator: Authenticator = request.app.state.authenticator
    try:
        await run_in_threadpool(authenticator.limits.check, SIGN_IN_LIMIT, address, "")
        identity = await provider.complete(request.query_params, read_cookie(request, _FLOW_COOKIE))
    except TooManyRequests as error:
        authenticator.failures.add("session.fail", address, names=_NAME, refused=True)
        return show_login_page(request, "", status=429, retry_after=error.retry_after)
    except SignInRefused as error:
        if isinstance(error, RoleMissing):  # other browsers have sessions with the previous role
            await run_in_threadpool(credentials.end_sessions_of_identity, error.issuer, error.subject)
        authenticator.failures.add("session.fail", address, names=_NAME)
        await run_in_threadpool(authenticator.limits.count_failure, SIGN_IN_LIMIT, address, "")
        return show_login_page(request, "", status=401, wrong="provider", reason=error.detail)
    user_id = await run_in_threadpool(
        users.adopt_provider_user, identity.issuer, identity.subject, identity.name, identity.scope
    )
    owner = SessionOwner(user_id=user_id)
    response = await start_browser_session(request, owner, "oidc", identity.next)
    delete_cookie(request, response, _FLOW_COOKIE)
    return response
