"""FastAPI dependencies of the routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from api.security.route_scopes import current_principal
from service.core.settings import Settings
from service.search.engine import SearchEngine

__all__ = ["CallerDep", "QueryDep", "SettingsDep"]


# These functions are async because FastAPI runs plain functions in a thread, which costs more than their work.


async def _query_service(request: Request) -> SearchEngine:
    service: SearchEngine = request.app.state.query_service
    return service


async def _settings(request: Request) -> Settings:
    configured: Settings = request.app.state.settings
    return configured


async def _caller(request: Request) -> str:
    principal = current_principal(request)
    return principal.caller if principal else ""


QueryDep = Annotated[SearchEngine, Depends(_query_service)]
SettingsDep = Annotated[Settings, Depends(_settings)]
CallerDep = Annotated[str, Depends(_caller)]
