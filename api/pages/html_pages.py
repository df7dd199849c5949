"""HTML pages: search at ``/``, library at ``/admin``, domains, videos, access at ``/access``, the API at ``/docs``.

Their scripts use only the public API. The content security policy permits no scripts or styles from other hosts, so
``/docs`` is rendered on the server from the OpenAPI document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from api.problem_details import http_problem_response
from api.security.route_scopes import ScopedRoute, current_principal, requires
from service.access.credentials import Principal
from service.core import request_limits
from service.core.errors import CinestrataError
from service.core.settings import METHOD_NAMES, settings
from service.storage.library_backbone import default_method, library_backbone
from service.tasks.commands import SAMPLE_VIDEOS
from service.tasks.ingestion_checks import find_method_error

PAGE_METHODS = ["GET", "HEAD"]


def render_page(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Render a page that browsers do not store. ``root`` is the proxy's prefix of all paths."""
    principal = current_principal(request)
    context = {
        "page": template.removesuffix(".html"),
        "root": request.app.state.settings.root_path,
        "principal": principal,
        "may_ingest": principal is not None and principal.scope != "search",
        "max_query_chars": request_limits.MAX_QUERY_CHARS,
        **values,
    }
    return _templates.TemplateResponse(request, template, context, status_code=status)


router = APIRouter(include_in_schema=False, route_class=ScopedRoute)


@router.api_route("/", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("search", page=True)
def search_page(request: Request) -> Response:
    """Show the search page."""
    return render_page(request, "search.html")


@router.api_route("/admin", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("search", page=True)
def admin_page(request: Request) -> Response:
    """Show the library page: domains, recall matrix, shards and releases."""
    return render_page(
        request,
        "admin.html",
        methods=[name for name in METHOD_NAMES if not find_method_error(name, library_backbone())],
        default_method=default_method(),
        default_backbone=library_backbone(),
        media_root=settings().media_root,
        has_sources=bool(settings().sources),
        sample_videos=SAMPLE_VIDEOS,
    )


@router.api_route("/domains/{task_id}", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("search", page=True)
def domain_page(request: Request, task_id: str) -> Response:
    """Show a domain's page, whose script reports an unknown ID."""
    return render_page(request, "domain.html", id=task_id, default_backbone=library_backbone())


@router.api_route("/watch/{video_id}", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("search", page=True)
def video_page(request: Request, video_id: str) -> Response:
    """Show a video's page. With the parameters of a search, it explains the video's score."""
    return render_page(request, "video.html", id=video_id)


@router.api_route("/access", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("admin", page=True)
def access_page(request: Request) -> Response:
    """Show API keys, users, sessions and the audit log."""
    return render_page(request, "access.html")


async def unknown_page(request: Request, error: HTTPException) -> Response:
    """Answer a request to a path without a route: for the API with a problem document."""
    # Browsers ask for HTML; programs accept JSON or any type.
    if request.method in PAGE_METHODS and "text/html" in request.headers.get("accept", ""):
        return render_page(request, "error.html", status=404)
    return await http_problem_response(request, error)


_CODE = re.compile(r"(`+)(.+?)\1")
_PARAGRAPH = re.compile(r"\n\s*\n")
_Json = Mapping[str, Any]


@router.api_route("/docs", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("public")
async def reference_page(request: Request) -> Response:
    """Show all operations and models to anybody, and in the navigation the pages that a user's role permits."""
    principal = None
    with suppress(CinestrataError):  # a wrong key, or an unreachable catalog
        principal = await request.app.state.authenticator.identify(request)
    content = await run_in_threadpool(_render, request, principal)
    return HTMLResponse(content, headers={"Cache-Control": "private, no-cache"})


def _render(request: Request, principal: Principal | None) -> str:
    document = request.app.openapi()
    operations: dict[str, list[dict[str, Any]]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            entry = {"path": path, "method": method, **operation}
            operations.setdefault(operation["tags"][0], []).append(entry)
    return _environment.get_template("reference.html").render(
        page="reference",
        root=request.app.state.settings.root_path,
        principal=principal,
        document=document,
        operations=operations,
    )


def _type_name(schema: _Json) -> Markup:
    """Format a schema's type, with links to models."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return Markup('<a href="#model-{0}">{0}</a>').format(name)
    if options := schema.get("anyOf", schema.get("oneOf")):
        return Markup(" | ").join(_type_name(option) for option in options)
    if "enum" in schema:
        return Markup(" | ").join(
            Markup("<code>{}</code>").format(json.dumps(value)) for value in schema["enum"]
        )
    if "const" in schema:
        return Markup("<code>{}</code>").format(json.dumps(schema["const"]))
    if schema.get("type") == "array":
        return Markup("list of {}").format(_type_name(schema.get("items", {})))
    return escape(schema.get("format", schema.get("type", "any")))


def _inline(text: str) -> Markup:
    """Mark words in backticks as code."""
    return Markup(_CODE.sub(r"<code>\2</code>", str(escape(text))))  # noqa: S704 (escaped before)


def _prose(text: str) -> Markup:
    """Split a description into paragraphs, with words in backticks as code."""
    parts = _PARAGRAPH.split(text.strip())
    return Markup("").join(Markup("<p>{}</p>").format(_inline(part)) for part in parts)


def _example_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)


_environment = Environment(
    loader=PackageLoader("api.pages", "templates"),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,  # a stat per template and request would release the GIL
)
_environment.filters |= {
    "type_name": _type_name,
    "inline": _inline,
    "prose": _prose,
    "example_text": _example_text,
}
_templates = Jinja2Templates(env=_environment)
