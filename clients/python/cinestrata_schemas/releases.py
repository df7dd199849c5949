"""Requests and responses about releases, and about choosing the one to serve."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from cinestrata_schemas.model_types import RequestModel, ResponseModel, optional


class ServeSpec(RequestModel):
    """Options of ``POST /releases/{release_id}/serve``."""

    dry_run: bool = Field(default=False, description="Return the effects without changing anything.")


class DomainChange(ResponseModel):
    """A domain that becomes searchable or unsearchable when the served release changes. ``task`` is its name."""

    task_id: str
    task: str
    videos: int
    appended: int = Field(description="Number of its videos appended after it was learned.")


class ServedChange(ResponseModel):
    """Domains that become searchable, or unsearchable, when the served release changes."""

    domains: int
    videos: int
    appended: int = Field(description="Number of these videos appended after their domain was learned.")
    first: list[DomainChange] = Field(description="The first 20 domains in learning order.")


class ServeOutcome(ResponseModel):
    """Effects of serving a release."""

    release: str
    task: str = Field(description="Name of the domain that the release learned last.")
    learned_order: int
    created_at: datetime
    before: str = Field(description="Release that was served before.")
    newest: str = Field(description="Newest release, which the next task continues.")
    pinned: bool = Field(
        description="Whether later releases stay unsearched until another release is served; false for the newest."
    )
    changed: bool = Field(description="Whether a different release was served before.")
    dry_run: bool
    unsearchable: ServedChange = Field(description="Domains that become unsearchable.")
    searchable_again: ServedChange = Field(description="Domains that become searchable.")
    searchable_videos: int = Field(description="Number of searchable videos after the change.")
    kept_appended: int = Field(
        description="Number of videos appended to searchable domains after the release; they stay searchable."
    )


class PinnedRelease(ResponseModel):
    """An earlier release that an operator serves instead of the newest. ``task`` names the domain it learned last."""

    release: str
    task: str
    learned_order: int = Field(
        description="Position of the last domain that the release learned. Later domains are not searched."
    )
    newest: str
    newest_task: str
    unsearchable: ServedChange = Field(description="Domains learned later.")


class ReleaseSummary(ResponseModel):
    """A release. ``task`` is the name of the domain that it learned last."""

    id: str
    task: str
    task_id: str
    learned_order: int
    method: str
    backbone: str
    kind: str
    bytes: int
    created_at: datetime
    current: bool
    calibration_error: float | None = optional(
        "Expected calibration error of its confidences, cross-validated, 0..1; null without calibration."
    )


class ReleasePage(ResponseModel):
    """A page of releases."""

    releases: list[ReleaseSummary]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")
