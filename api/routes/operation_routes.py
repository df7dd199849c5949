"""Operation of the library: its state, and maintenance jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.list_parameters import StrictParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.operations import JobDetails, JobSpec, OperationsStatus
from service.operations import maintenance_jobs
from service.operations.operations_status import operations_status

router = APIRouter(tags=["operation"], route_class=ScopedRoute)


@router.get("/operations", operation_id="get_operations")
@requires("admin")
def get_operations(request: Request, _parameters: Annotated[StrictParameters, Query()]) -> OperationsStatus:
    """Workers with their last errors, queue, running tasks with loss and throughput, jobs, disk, and searches.

    The searches are those of the process that answers; `/metrics` has those of every process.
    """
    return operations_status(request.app.state.search_rate.read())


@router.post("/maintenance", status_code=202, operation_id="start_job")
@requires("admin")
def start_job(spec: JobSpec) -> JobDetails:
    """Compact shards, or write a backup to the folder `backups` of the data folder. A worker runs the job.

    An unfinished job of the same kind is returned instead of a second one. Searches continue meanwhile.
    """
    return maintenance_jobs.start_job(spec)
