"""HTML pages: search at ``/``, library at ``/admin``, domains, videos, sign-in at ``/login``.

Their scripts use only the public API.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, select_autoescape

from api.dependencies import SettingsDep
from api.security.api_keys import SESSION_COOKIE, is_valid_key, session_token
from api.security.route_scopes import ScopedRoute, requires
from service.core import request_limits
from service.core.method_names import METHOD_NAMES
from service.storage.library_backbone import default_method

__all__ = ["router"]

router = APIRouter(include_in_schema=False, route_class=ScopedRoute)

_templates = Jinja2Templates(
    env=Environment(loader=PackageLoader("api.pages", "templates"), autoescape=select_autoescape())
)
_SESSION_SECONDS = 7 * 24 * 3600


@router.get("/", response_class=HTMLResponse)
@requires("search", page=True)
def search_page(request: Request, settings: SettingsDep) -> Response:
    """The search page."""
    return _render_page(request, settings, "search.html")


@router.get("/admin", response_class=HTMLResponse)
@requires("search", page=True)
def admin_page(request: Request, settings: SettingsDep) -> Response:
    """The library page: tasks, recall matrix, shards and releases."""
    return _render_page(
        request, settings, "admin.html", methods=METHOD_NAMES, default_method=default_method()
    )


@router.get("/domains/{task_id}", response_class=HTMLResponse)
@requires("search", page=True)
def domain_page(request: Request, settings: SettingsDep, task_id: str) -> Response:
    """The page of a domain. Its script shows an unknown id as an error."""
    return _render_page(request, settings, "domain.html", id=task_id)


@router.get("/watch/{video_id}", response_class=HTMLResponse)
@requires("search", page=True)
def video_page(request: Request, settings: SettingsDep, video_id: str) -> Response:
    """The page of a video. With the parameters of a search, it explains the video's score."""
    return _render_page(request, settings, "video.html", id=video_id)


@router.get("/login", response_class=HTMLResponse)
@requires("public")
def login_page(request: Request, wrong: bool = False) -> Response:
    """The sign-in page."""
    return _templates.TemplateResponse(request, "login.html", {"page": "login", "wrong": wrong})


@router.post("/login")
@requires("public")
def sign_in(
    request: Request, settings: SettingsDep, key: Annotated[str, Form(max_length=1024)] = ""
) -> Response:
    """Check the API key and set the session cookie, which ``<video>`` and ``EventSource`` send."""
    if not is_valid_key(key.encode("utf-8", "replace"), settings):
        return RedirectResponse("/login?wrong=true", status_code=303)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        SESSION_COOKIE,
        session_token(settings),
        max_age=_SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
@requires("public")
def sign_out() -> Response:
    """Delete the session cookie."""
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response


@router.get("/favicon.ico")
@requires("public")
def favicon() -> RedirectResponse:
    """Browsers request this path regardless of the icon that the page names."""
    return RedirectResponse("/static/logo.svg", status_code=308)


def _render_page(request: Request, settings: SettingsDep, template: str, **values: object) -> Response:
    context = {
        "page": template.removesuffix(".html"),
        "protected": settings.api_key is not None,
        "max_query_chars": request_limits.MAX_QUERY_CHARS,
        **values,
    }
    return _templates.TemplateResponse(request, template, context, headers={"Cache-Control": "no-store"})
