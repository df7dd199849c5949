"""Responses about alerts."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

from pydantic import Field

from cinestrata_schemas.model_types import Open, ResponseModel

AlertKind = Literal["forgetting_local", "forgetting_global", "recall_when_learned", "failed_tasks"]
ALERT_KINDS: tuple[AlertKind, ...] = get_args(AlertKind)


class AlertDetails(ResponseModel):
    """A crossed threshold."""

    id: int
    kind: Open[AlertKind]
    task_id: str | None = Field(
        description="Affected domain, or the one with the largest loss; null for the whole library."
    )
    task: str | None = Field(description="Name of the domain.")
    value: float = Field(description="Last measured value.")
    threshold: float
    message: str
    raised_at: datetime
    cleared_at: datetime | None = Field(description="When the value recovered; null while the alert lasts.")
    dismissed_at: datetime | None = Field(description="When an operator dismissed the alert.")


class AlertPage(ResponseModel):
    """Open and earlier alerts."""

    open: list[AlertDetails] = Field(description="Ongoing, undismissed alerts, newest first; at most 100.")
    open_count: int
    earlier: list[AlertDetails] = Field(description="The last 20 cleared or dismissed alerts.")
