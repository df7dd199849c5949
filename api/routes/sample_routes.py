"""The sample domain of a new library."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.dependencies import CallerDep
from api.list_parameters import StrictParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.tasks import TaskDetails
from service.tasks.sample_task import create_sample_task

router = APIRouter(prefix="/samples", tags=["tasks"], route_class=ScopedRoute)


@router.post("", status_code=202, operation_id="create_sample_task")
@requires("ingest")
def create_samples(
    response: Response, caller: CallerDep, _parameters: Annotated[StrictParameters, Query()]
) -> TaskDetails:
    """Create a task from sample videos, which the service draws: a domain `street` for a first search.

    The request takes some seconds. The videos belong to the service and are deleted with the domain.
    """
    task = create_sample_task(caller=caller).task
    response.headers["Location"] = f"/tasks/{task.id}"
    return task
