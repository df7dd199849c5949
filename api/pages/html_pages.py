"""HTML pages: search at ``/``, library at ``/admin``, domains, videos, access at ``/access``.

Their scripts use only the public API.
"""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from api.pages.page_rendering import PAGE_METHODS, render_page
from api.problem_details import http_problem_response
from api.security.route_scopes import ScopedRoute, requires
from service.core.settings import METHOD_NAMES, settings
from service.storage.library_backbone import default_method, library_backbone
from service.tasks.commands import SAMPLE_VIDEOS
from service.tasks.ingestion_checks import find_method_error

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
        methods=[name for name in METHOD_NAMES if not find_method_error(name, {}, library_backbone())],
        default_method=default_method(),
        media_root=settings().media_root,
        has_sources=bool(settings().sources),
        sample_videos=SAMPLE_VIDEOS,
    )


@router.api_route("/domains/{task_id}", methods=PAGE_METHODS, response_class=HTMLResponse)
@requires("search", page=True)
def domain_page(request: Request, task_id: str) -> Response:
    """Show a domain's page, whose script reports an unknown ID."""
    return render_page(request, "domain.html", id=task_id)


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


def install_unknown_page(app: FastAPI) -> None:
    """Register the page for paths without a route. Unknown resources of the API stay problem documents."""
    app.add_exception_handler(404, _handle_unknown_path)


async def _handle_unknown_path(request: Request, error: Exception) -> Response:
    # Browsers ask for HTML; programs accept JSON or any type.
    if request.method in PAGE_METHODS and "text/html" in request.headers.get("accept", ""):
        return render_page(request, "error.html", status=404)
    return http_problem_response(request, error)
