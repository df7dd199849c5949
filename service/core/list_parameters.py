"""Query parameters of lists: filters, order and page.

Unknown parameters are refused: ignoring a misspelled filter would return rows that the client meant to exclude.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from cinestrata_schemas import choice_types
from cinestrata_schemas.model_types import optional


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "The value contains a NUL character", {"hint": "Remove it."})
    return text


_Text = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_without_nul)]


class StrictParameters(BaseModel):
    """Query parameters; unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid")


class _CursorParameters(StrictParameters):
    cursor: _Text | None = optional("`next_cursor` from the previous page, with the same parameters.")


class PageParameters(_CursorParameters):
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of entries on the page.")


class SyncedFileFilters(PageParameters):
    task: _Text | None = optional("Only files of this domain (name or ID).")
    sha256: list[_Text] = Field(default=[], max_length=100, description="Only these contents.")


class VideoFilters(PageParameters):
    task: _Text | None = optional("Only videos of this domain (name or ID).")
    status: choice_types.VideoStatus | None = optional("Only videos with this status.")
    split: choice_types.EffectiveSplit | None = optional("Only videos of this effective split.")
    text: _Text | None = optional("Only videos with this text in ID, URI, captions or reason.")
    sort: choice_types.VideoSort = Field(
        default="added", description="A leading `-` reverses it. `added`: by arrival."
    )


class TaskFilters(_CursorParameters):
    state: list[choice_types.TaskState] | None = optional("Only in this state; repeatable.")
    kind: choice_types.TaskKind | None = optional(
        "Only domains, only appends to domains, or only upgrades of domains."
    )
    into: _Text | None = optional("Only appends to this domain (name or ID).")
    method: _Text | None = optional("Only tasks with this learning method.")
    text: _Text | None = optional(
        "Only tasks with these words in the name, or this text in the ID, and their appends."
    )
    searched: bool | None = optional("true: only domains that can be searched; false: the others.")
    sort: choice_types.TaskSort = Field(
        default="position", description="A leading `-` reverses it. `position`: in queue."
    )
    limit: int | None = Field(default=None, ge=1, le=1000, description="Maximum number; default: all.")


class ReleaseFilters(PageParameters):
    task: _Text | None = optional("Only the release of this domain (name or ID).")
    kind: _Text | None = Field(
        default=None, description="Only releases with this kind of encoder.", examples=["low_rank"]
    )
    method: _Text | None = Field(
        default=None, description="Only releases with this learning method.", examples=["analytic"]
    )
    current: bool | None = optional("true: the served release; false: the others.")
    sort: choice_types.ReleaseSort = Field(
        default="learned", description="A leading `-` reverses the order. `learned`: of learning."
    )


class ShardFilters(PageParameters):
    text: _Text | None = optional("Only with this text in the domain's name or ID.")
    sort: choice_types.ShardSort = Field(default="created", description="A leading `-` reverses the order.")


class AuditFilters(PageParameters):
    actor: _Text | None = optional("Only entries by this user, key or process.")
    kind: list[choice_types.ActorKind] | None = optional("Only this kind of actor; repeatable.")
    action: list[_Text] | None = Field(
        default=None,
        max_length=20,
        description="Only this action, such as `task.cancel`, or all of a resource, such as `task`; "
        "may be repeated.",
    )
    target: _Text | None = optional("Only changes to the resource with this ID.")
    address: _Text | None = optional("Only requests from this network address.")
    request_id: _Text | None = optional("Only changes made by this request.")
    text: _Text | None = optional("Only entries with this text in actor, action, target or details.")
    after: datetime | None = optional("Earliest time; UTC unless it has a zone.")
    before: datetime | None = optional("End, exclusive; UTC unless it has a zone.")
    sort: choice_types.TimeSort = Field(default="-time", description="`-time`: newest first.")


class FeedbackFilters(PageParameters):
    video_id: _Text | None = optional("Only feedback on this video.")
    text: _Text | None = optional("Only feedback for queries with this text.")
    verdict: choice_types.Verdict | None = optional("Only feedback with this verdict.")
    caller: _Text | None = optional("Only feedback from this user or key.")
    own: bool = Field(default=False, description="Only your own feedback, for administrators too.")
    sort: choice_types.TimeSort = Field(default="-time", description="`-time`: newest first.")
