"""The audit log: pages, and the export of all entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from api.dependencies import PageLinkDep
from api.list_parameters import AuditFilterParameters, AuditListParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.access import AuditPage, AuditRecord
from service.audit import audit_log
from service.audit.audit_log import AuditFilter

__all__ = ["router"]

router = APIRouter(tags=["access"], route_class=ScopedRoute)

_LINES_PER_BLOCK = 200


@router.get("/audit", operation_id="list_audit_entries")
@requires("admin")
def list_audit_entries(links: PageLinkDep, parameters: Annotated[AuditListParameters, Query()]) -> AuditPage:
    """Changes of the library and of its access with actor, time and address, in pages; newest first by default.

    Sign-ins and refused keys are entries too. Searches are not.
    """
    conditions = dict(parameters)
    sort, cursor, limit = (conditions.pop(name) for name in ("sort", "cursor", "limit"))
    return links.add(audit_log.list_entries(AuditFilter(**conditions), sort=sort, cursor=cursor, limit=limit))


@router.get(
    "/audit.jsonl",
    operation_id="export_audit_entries",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/jsonl": {}}, "description": "One entry per line."}},
)
@requires("admin")
def export_audit_entries(parameters: Annotated[AuditFilterParameters, Query()]) -> StreamingResponse:
    """All entries of the audit log as JSON lines, oldest first."""
    entries = audit_log.export_entries(AuditFilter(**dict(parameters)))
    headers = {"Content-Disposition": 'attachment; filename="cinestrata-audit.jsonl"'}
    return StreamingResponse(_blocks(entries), media_type="application/jsonl", headers=headers)


def _blocks(entries: Iterator[AuditRecord]) -> Iterator[str]:
    """Lines in blocks: every block costs a switch of threads."""
    lines: list[str] = []
    for entry in entries:
        lines.append(entry.model_dump_json() + "\n")
        if len(lines) == _LINES_PER_BLOCK:
            yield "".join(lines)
            lines.clear()
    yield "".join(lines)
