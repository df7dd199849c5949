"""Quality of a single domain: ranks of its own captions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.dependencies import QueryDep
from api.request_threads import run_search
from api.search_parameters import QueryReportParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.explanations import QueryReport

router = APIRouter(prefix="/tasks", tags=["measures"], route_class=ScopedRoute)


@router.get("/{task_id}/queries", operation_id="get_query_report")
@requires("search")
async def get_query_report(
    service: QueryDep, task_id: str, parameters: Annotated[QueryReportParameters, Query()]
) -> QueryReport:
    """Captions of a domain, searched like queries: share of found videos, worst queries, and confusion of domains.

    At most 128 captions are searched, of held-out videos where there are any (`split`), among all videos of the
    library. The searches run at the first request after a change of the library; later requests use their results.
    """
    with service.admission.admit(1):
        return await run_search(service.report_queries, task_id, parameters.worst)
