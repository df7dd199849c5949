"""The page for unknown addresses. Programs receive a problem document."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from api.pages.page_rendering import PAGE_METHODS, render_page
from api.problem_details import http_problem_response


def install_unknown_page(app: FastAPI) -> None:
    """Register the page for paths without a route. Unknown resources of the API stay problem documents."""
    app.add_exception_handler(404, _handle_unknown_path)


async def _handle_unknown_path(request: Request, error: Exception) -> Response:
    # Browsers ask for HTML; programs accept JSON or any type.
    if request.method in PAGE_METHODS and "text/html" in request.headers.get("accept", ""):
        return render_page(request, "error.html", status=404)
    return http_problem_response(request, error)
