"""Alerts of crossed thresholds."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.list_parameters import StrictParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.alerts import AlertDetails, AlertPage
from service.library import alerts

router = APIRouter(prefix="/alerts", tags=["alerts"], route_class=ScopedRoute)


@router.get("", operation_id="list_alerts")
@requires("search")
def list_alerts(_parameters: Annotated[StrictParameters, Query()]) -> AlertPage:
    """Open alerts, and the last earlier ones. Workers compare the measures every 30 seconds."""
    return alerts.list_alerts()


@router.post("/{alert_id}/dismiss", operation_id="dismiss_alert")
@requires("admin")
def dismiss_alert(alert_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> AlertDetails:
    """Hide an alert. It is raised again only after its measure has recovered."""
    return alerts.dismiss_alert(alert_id)
