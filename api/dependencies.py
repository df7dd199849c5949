"""What routes ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from api.security.security_middleware import identify_caller
from service.core.settings import Settings
from service.search.engine import SearchEngine

__all__ = ["CallerDep", "QueryDep", "SettingsDep"]


# No threads for what only reads an attribute: a plain function would be handed to one.


async def _query_service(request: Request) -> SearchEngine:
    service: SearchEngine = request.app.state.query_service
    return service


async def _settings(request: Request) -> Settings:
    configured: Settings = request.app.state.settings
    return configured


async def _caller(request: Request) -> str:
    return identify_caller(request, request.app.state.settings) or ""


QueryDep = Annotated[SearchEngine, Depends(_query_service)]
SettingsDep = Annotated[Settings, Depends(_settings)]
CallerDep = Annotated[str, Depends(_caller)]
