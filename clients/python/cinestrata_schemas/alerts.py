"""Alerts, in the state of the library and in messages of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, get_args

from pydantic import Field

from cinestrata_schemas.model_types import Open, ResponseModel, optional

AlertKind = Literal["forgetting_local", "forgetting_global"]
ALERT_KINDS: tuple[AlertKind, ...] = get_args(AlertKind)


class AlertDetails(ResponseModel):
    """A domain that has lost recall, in its own shard or among all shards."""

    id: int
    kind: Open[AlertKind]
    task_id: str | None = Field(description="ID of the domain.")
    task: str | None = Field(description="Name of the domain.")
    value: float = Field(description="Lost Recall@1.")
    threshold: float
    message: str
    raised_at: datetime
    cleared_at: datetime | None = optional("When the recall recovered; only in `alert.cleared`.")
