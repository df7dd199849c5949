"""What routes ask for."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from api.security import caller_of
from service.query import QueryService
from service.settings import Settings, settings

__all__ = ["CallerDep", "QueryDep", "SettingsDep"]


def _query_service(request: Request) -> QueryService:
    service: QueryService = request.app.state.query_service
    return service


def _caller(request: Request) -> str:
    return caller_of(request, settings()) or ""


QueryDep = Annotated[QueryService, Depends(_query_service)]
SettingsDep = Annotated[Settings, Depends(settings)]
CallerDep = Annotated[str, Depends(_caller)]
