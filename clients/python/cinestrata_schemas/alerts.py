"""Requests and responses about alerts and their thresholds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, get_args

from pydantic import Field

from cinestrata_schemas.model_types import Open, RequestModel, ResponseModel

AlertKind = Literal["forgetting_local", "forgetting_global", "recall_when_learned", "failed_tasks"]
ALERT_KINDS: tuple[AlertKind, ...] = get_args(AlertKind)

_Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=10**6)]


class AlertThresholds(ResponseModel):
    """Thresholds; null turns the alerts of a kind off."""

    forgetting_local: float | None = Field(
        description="Largest loss of recall@1 in their own shards, as a share of the queries: of earlier domains "
        "together, or of the domain that has lost most."
    )
    forgetting_global: float | None = Field(
        description="Largest loss of recall@1 among all shards, of earlier domains together, or of the domain that has "
        "lost most."
    )
    recall_when_learned: float | None = Field(
        description="Smallest recall@1 of a domain in its own shard right after it was learned."
    )
    failed_tasks: int | None = Field(description="Number of failed tasks that raises an alert.")


class ThresholdPatch(RequestModel):
    """New thresholds; omitted ones stay, and null turns the alerts of a kind off."""

    forgetting_local: _Share | None = None
    forgetting_global: _Share | None = None
    recall_when_learned: _Share | None = None
    failed_tasks: _Count | None = None


class AlertDetails(ResponseModel):
    """A crossed threshold."""

    id: int
    kind: Open[AlertKind]
    task_id: str | None = Field(
        description="Domain of the alert, with the largest loss where one is named; null for the whole library."
    )
    task: str | None = Field(description="Name of the domain.")
    value: float = Field(description="Last measured value.")
    threshold: float
    message: str
    raised_at: datetime
    cleared_at: datetime | None = Field(description="End of the crossing; null while it lasts.")
    dismissed_at: datetime | None = Field(description="When an operator dismissed the alert.")


class AlertPage(ResponseModel):
    """Alerts and thresholds."""

    open: list[AlertDetails] = Field(
        description="Alerts that last and are not dismissed, newest first; at most 100."
    )
    open_count: int
    earlier: list[AlertDetails] = Field(description="The last 20 cleared or dismissed alerts.")
    thresholds: AlertThresholds
