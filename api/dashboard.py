"""The pages: search at ``/``, administration at ``/admin``, sign-in at ``/login``. They use the public API."""

from __future__ import annotations

import hmac
from functools import cache
from importlib import resources
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, select_autoescape

from api.dependencies import SettingsDep
from api.security import COOKIE, caller_of, session_token
from service.methods import METHOD_NAMES

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_templates = Jinja2Templates(
    env=Environment(loader=PackageLoader("api", "templates"), autoescape=select_autoescape())
)
_YEAR = "public, max-age=31536000, immutable"


@router.get("/", response_class=HTMLResponse)
def search_page(request: Request, settings: SettingsDep) -> Response:
    """Search in the browser."""
    return _page(request, settings, "search.html")


@router.get("/admin", response_class=HTMLResponse)
def admin_page(request: Request, settings: SettingsDep) -> Response:
    """What was learned, what was forgotten, is it healthy, what to do."""
    return _page(request, settings, "admin.html", methods=METHOD_NAMES, default_method=settings.method)


@router.get("/login", response_class=HTMLResponse)
def login_page(request: Request, wrong: bool = False) -> Response:
    """Where a browser proves that its user knows the API key."""
    return _templates.TemplateResponse(request, "login.html", {"page": "login", "wrong": wrong})


@router.post("/login")
def sign_in(
    request: Request, settings: SettingsDep, key: Annotated[str, Form(max_length=1024)] = ""
) -> Response:
    """Set the session cookie, which ``<video>`` and ``EventSource`` send along."""
    expected = settings.api_key.get_secret_value() if settings.api_key else ""
    if not hmac.compare_digest(key.encode("utf-8", "surrogateescape"), expected.encode()):
        return RedirectResponse("/login?wrong=true", status_code=303)
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        COOKIE,
        session_token(settings),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.get("/plotly.js")
def plotly_script() -> FileResponse:
    """Plotly, from the installed package: no network, no copy of our own."""
    return FileResponse(_plotly(), media_type="text/javascript", headers={"Cache-Control": _YEAR})


@router.get("/favicon.ico")
def favicon() -> RedirectResponse:
    """Browsers ask for it whatever the page says."""
    return RedirectResponse("/static/logo.svg", status_code=308)


def _page(request: Request, settings: SettingsDep, template: str, **values: object) -> Response:
    if caller_of(request, settings) is None:
        return RedirectResponse("/login", status_code=303)
    context = {"page": template.removesuffix(".html"), "signed_in": settings.api_key is not None, **values}
    return _templates.TemplateResponse(request, template, context)


@cache
def _plotly() -> str:
    return str(resources.files("plotly") / "package_data" / "plotly.min.js")
