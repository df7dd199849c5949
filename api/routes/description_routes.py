"""The OpenAPI description of the API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api.security.route_scopes import ScopedRoute, requires

router = APIRouter(include_in_schema=False, route_class=ScopedRoute)


@router.api_route("/openapi.json", methods=["GET", "HEAD"])
@requires("public")
async def openapi_description(request: Request) -> JSONResponse:
    """Operations, parameters and models of the API, which are the same for every library."""
    return JSONResponse(request.app.openapi())
