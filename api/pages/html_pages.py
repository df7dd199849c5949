"""The pages: search at ``/``, administration at ``/admin``, sign-in at ``/login``. They live on everybody's API."""

from __future__ import annotations

import gzip
from functools import cache
from importlib import metadata, resources
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, select_autoescape

from api.dependencies import SettingsDep
from api.security.security_middleware import SESSION_COOKIE, identify_caller, is_valid_key, session_token
from service.core.method_names import METHOD_NAMES

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_templates = Jinja2Templates(
    env=Environment(loader=PackageLoader("api.pages", "templates"), autoescape=select_autoescape())
)
_WEEK = 7 * 24 * 3600
# Plotly styles its drawings by attributes. No other page needs that, and no page needs it for scripts.
_STYLED = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "media-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@router.get("/", response_class=HTMLResponse)
def search_page(request: Request, settings: SettingsDep) -> Response:
    """Search in the browser."""
    return _page(request, settings, "search.html")


@router.get("/admin", response_class=HTMLResponse)
def admin_page(request: Request, settings: SettingsDep) -> Response:
    """What was learned, what was forgotten, is it healthy, what to do."""
    response = _page(
        request,
        settings,
        "admin.html",
        methods=METHOD_NAMES,
        default_method=settings.method,
        plotly=f"/plotly.js?v={metadata.version('plotly')}",
    )
    response.headers["Content-Security-Policy"] = _STYLED
    return response


@router.get("/login", response_class=HTMLResponse)
def login_page(request: Request, wrong: bool = False) -> Response:
    """Where a browser proves that its user knows the API key."""
    return _templates.TemplateResponse(request, "login.html", {"page": "login", "wrong": wrong})


@router.post("/login")
def sign_in(
    request: Request, settings: SettingsDep, key: Annotated[str, Form(max_length=1024)] = ""
) -> Response:
    """Set the session cookie, which ``<video>`` and ``EventSource`` send along."""
    if not is_valid_key(key.encode("utf-8", "replace"), settings):
        return RedirectResponse("/login?wrong=true", status_code=303)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        SESSION_COOKIE,
        session_token(settings),
        max_age=_WEEK,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
def sign_out() -> Response:
    """Forget the session in this browser."""
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response


@router.get("/plotly.js")
def plotly_script(request: Request) -> Response:
    """Plotly, from the installed package: no network, no copy of our own. Its address holds its version."""
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return FileResponse(_plotly(), media_type="text/javascript", headers=headers)
    return Response(
        _packed_plotly(), media_type="text/javascript", headers={**headers, "Content-Encoding": "gzip"}
    )


@router.get("/favicon.ico")
def favicon() -> RedirectResponse:
    """Browsers ask for it whatever the page says."""
    return RedirectResponse("/static/logo.svg", status_code=308)


def _page(request: Request, settings: SettingsDep, template: str, **values: object) -> Response:
    if identify_caller(request, settings) is None:
        return RedirectResponse("/login", status_code=303)
    context = {
        "page": template.removesuffix(".html"),
        "protected": settings.api_key is not None,
        "longest_query": settings.max_query_chars,
        **values,
    }
    return _templates.TemplateResponse(request, template, context, headers={"Cache-Control": "no-store"})


@cache
def _plotly() -> str:
    return str(resources.files("plotly") / "package_data" / "plotly.min.js")


@cache
def _packed_plotly() -> bytes:
    # 4.8 MB become 1.4: worth a second, once in the life of a process.
    with open(_plotly(), "rb") as file:
        return gzip.compress(file.read(), compresslevel=6)
