"""The API's resources for the operator of a data folder, called within a command's process."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.datastructures import State

from api import problem_details
from api.request_middleware import MAX_FORM_FIELDS, MAX_FORM_FILES
from api.routes import RESOURCE_ROUTERS
from service.access.audit_log import command_line_actor
from service.access.credentials import Principal
from service.core.settings import Settings

if TYPE_CHECKING:
    from service.search.engine import SearchEngine


def create_operator_app(settings: Settings, *, follow_index: bool = False) -> FastAPI:
    """Create an application without network access, pages and load shedding.

    Requests have all scopes, and changes are recorded under the operator's login name. Unexpected errors are raised.
    With ``follow_index``, searches see later changes of the index; for a process that keeps running.
    """
    app = FastAPI(openapi_url=None, form_limits={"max_files": MAX_FORM_FILES, "max_fields": MAX_FORM_FIELDS})
    app.state = _OperatorState(settings, follow_index)
    for router in RESOURCE_ROUTERS:
        app.include_router(router, prefix="/v1")
    problem_details.install_error_handlers(app)
    return app


class _OperatorState(State):
    """Application state; the first search loads the search engine."""

    def __init__(self, settings: Settings, follow_index: bool) -> None:
        authenticator = _OperatorAuthenticator()
        super().__init__({"settings": settings, "follow_index": follow_index, "authenticator": authenticator})

    @cached_property
    def query_service(self) -> SearchEngine:
        """The search engine on the current snapshot."""
        # Imported here because only searches need the engine.
        from service.search.engine import SearchEngine

        engine = SearchEngine(self.settings)
        engine.snapshots.refresh()
        if self.follow_index:
            engine.start()
        return engine


class _OperatorAuthenticator:
    """Identifies every sender as the operator of the data folder."""

    def __init__(self) -> None:
        actor = command_line_actor()
        self._principal = Principal(actor.kind, actor.name, "admin", caller="cli")

    async def identify(self, *_: Any) -> Principal:
        """Return the operator."""
        return self._principal
