"""Render page templates."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, select_autoescape

from api.security.route_scopes import current_principal
from service.access.credentials import includes_scope
from service.core import request_limits

PAGE_METHODS = ["GET", "HEAD"]

_templates = Jinja2Templates(
    env=Environment(
        loader=PackageLoader("api.pages", "templates"),
        autoescape=select_autoescape(),
        auto_reload=False,  # a stat per template and request would release the GIL
    )
)


def render_page(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Render a page that browsers do not store.

    Args:
        request: Request for the page. The template receives its sender as ``principal``, and ``may_ingest``: whether
            the sender may change videos. ``root`` is the proxy's prefix of all paths.
        template: File name of the template; its stem is the name of the page.
    """
    principal = current_principal(request)
    context = {
        "page": template.removesuffix(".html"),
        "root": request.app.state.settings.root_path,
        "principal": principal,
        "may_ingest": principal is not None and includes_scope(principal.scope, "ingest"),
        "max_query_chars": request_limits.MAX_QUERY_CHARS,
        **values,
    }
    return _templates.TemplateResponse(request, template, context, status_code=status)
