"""Response of the readiness probe."""

from __future__ import annotations

from pydantic import Field

from service.core.schemas.model_types import ResponseModel

__all__ = ["Readiness"]


class Readiness(ResponseModel):
    """Readiness of a process for searches."""

    ready: bool
    release: str | None = None
    pinned: bool = Field(
        default=False, description="Whether an operator serves an earlier release than the newest."
    )
    generation: int = 0
    tasks: int = 0
    degraded: dict[str, str] = Field(default_factory=dict)
    checks: dict[str, str] = Field(
        default_factory=dict, description="State of each component: 'ok' or its error."
    )
