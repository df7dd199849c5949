"""The audit log, in pages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import PageLinkDep
from api.list_parameters import AuditListParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.access import AuditPage
from service.audit import audit_log
from service.audit.audit_log import AuditFilter

__all__ = ["router"]

router = APIRouter(tags=["access"], route_class=ScopedRoute)


@router.get("/audit", operation_id="list_audit_entries")
@requires("admin")
def list_audit_entries(links: PageLinkDep, parameters: Annotated[AuditListParameters, Query()]) -> AuditPage:
    """Changes of the library and of its access with actor, time and address, in pages; newest first by default.

    Sign-ins and refused keys are entries too. Searches are not.
    """
    conditions = dict(parameters)
    sort, cursor, limit = (conditions.pop(name) for name in ("sort", "cursor", "limit"))
    return links.add(audit_log.list_entries(AuditFilter(**conditions), sort=sort, cursor=cursor, limit=limit))
