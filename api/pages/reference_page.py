"""The API reference at ``/docs``, rendered on the server from the OpenAPI document.

The pages' content security policy permits no scripts or styles from other hosts; the reference needs none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool

from api.pages.page_rendering import PAGE_METHODS
from api.security.route_scopes import ScopedRoute, requires
from service.access.credentials import Principal
from service.core.errors import CinestrataError

router = APIRouter(include_in_schema=False, route_class=ScopedRoute)

_CODE = re.compile(r"(`+)(.+?)\1")
_PARAGRAPH = re.compile(r"\n\s*\n")
_Json = Mapping[str, Any]


@router.api_route("/docs", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("public")
async def reference_page(request: Request) -> Response:
    """Show all operations and models, which are the same for every library.

    The page needs no credentials. Its navigation offers signed-in users the pages that their role permits.
    """
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
)
_environment.filters |= {
    "type_name": _type_name,
    "inline": _inline,
    "prose": _prose,
    "example_text": _example_text,
}
