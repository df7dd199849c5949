"""Alerts of crossed thresholds, and the thresholds."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.list_parameters import StrictParameters
from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.alerts import AlertDetails, AlertPage, AlertThresholds, ThresholdPatch
from service.library.alerts import alert_list

__all__ = ["router"]

router = APIRouter(prefix="/alerts", tags=["alerts"], route_class=ScopedRoute)


@router.get("", operation_id="list_alerts")
@requires("search")
def list_alerts(_parameters: Annotated[StrictParameters, Query()]) -> AlertPage:
    """Open alerts, the last earlier ones, and the thresholds. Workers compare the measures every 30 seconds."""
    return alert_list.list_alerts()


@router.patch("/thresholds", operation_id="change_thresholds")
@requires("admin")
def change_thresholds(patch: ThresholdPatch) -> AlertThresholds:
    """Change thresholds; null turns the alerts of a kind off."""
    return alert_list.change_thresholds(patch)


@router.post("/{alert_id}/dismiss", operation_id="dismiss_alert")
@requires("admin")
def dismiss_alert(alert_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> AlertDetails:
    """Hide an alert. It is raised again only after its measure has recovered."""
    return alert_list.dismiss_alert(alert_id)
