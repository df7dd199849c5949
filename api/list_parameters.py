"""Query parameters of lists, declared as models.

Unknown parameters are refused: ignoring a misspelled filter would return rows that the client meant to exclude.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Query
from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints
from pydantic_core import PydanticCustomError

from cinestrata_schemas.choice_types import (
    ActorKind,
    EffectiveSplit,
    TaskKind,
    TaskState,
    Verdict,
    VideoStatus,
)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "The value contains a NUL character", {"hint": "Remove it."})
    return text


_Text = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_without_nul)]


class StrictParameters(BaseModel):
    """Query parameters; unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid")


class _PageParameters(StrictParameters):
    cursor: Annotated[
        _Text | None,
        Query(description="`next_cursor` from the previous page; leave the other parameters unchanged."),
    ] = None


class _LimitedPageParameters(_PageParameters):
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries on the page.")] = 100


class SyncedFileListParameters(_LimitedPageParameters):
    """Parameters of ``GET /syncs/files``."""

    task: Annotated[_Text | None, Query(description="Only files that this domain (name or ID) follows.")] = (
        None
    )
    sha256: Annotated[
        list[_Text], Query(max_length=100, description="Only files with one of these contents.")
    ] = []


class VideoListParameters(_LimitedPageParameters):
    """Parameters of ``GET /videos``."""

    task: Annotated[
        _Text | None,
        Query(description="Only videos in the domain of this task (name or ID), including appends to it."),
    ] = None
    status: Annotated[VideoStatus | None, Query(description="Only videos with this status.")] = None
    split: Annotated[
        EffectiveSplit | None,
        Query(description="Only videos with this effective split."),
    ] = None
    text: Annotated[
        _Text | None,
        Query(description="Only videos with this text in ID, URI, captions or reason (case-insensitive)."),
    ] = None
    sort: Annotated[
        Literal["added", "-added", "id", "-id", "duration", "-duration", "bytes", "-bytes"],
        Query(description="Sort order; a leading `-` reverses it. `added` is the order of arrival."),
    ] = "added"


class TaskListParameters(_PageParameters):
    """Parameters of ``GET /tasks``."""

    state: Annotated[
        list[TaskState] | None, Query(description="Only tasks in this state; may be repeated.")
    ] = None
    kind: Annotated[TaskKind | None, Query(description="Only domains, or only appends to domains.")] = None
    into: Annotated[_Text | None, Query(description="Only appends to this domain (name or ID).")] = None
    method: Annotated[_Text | None, Query(description="Only tasks with this learning method.")] = None
    text: Annotated[
        _Text | None,
        Query(
            description="Only tasks whose name or ID contains this text (case-insensitive), and appends to them."
        ),
    ] = None
    searched: Annotated[
        bool | None,
        Query(description="true: only domains that the served release can search; false: only other tasks."),
    ] = None
    sort: Annotated[
        Literal["position", "-position", "name", "-name", "created", "-created", "learned", "-learned"],
        Query(description="Sort order; a leading `-` reverses it. `position` is the place in the queue."),
    ] = "position"
    limit: Annotated[
        int | None, Query(ge=1, le=1000, description="Maximum number of tasks on the page; default: all.")
    ] = None


class ReleaseListParameters(_LimitedPageParameters):
    """Parameters of ``GET /releases``."""

    task: Annotated[
        _Text | None, Query(description="Only the release that learned this domain (name or ID).")
    ] = None
    kind: Annotated[
        _Text | None, Query(description="Only releases with this kind of encoder.", examples=["low_rank"])
    ] = None
    method: Annotated[
        _Text | None, Query(description="Only releases with this learning method.", examples=["analytic"])
    ] = None
    current: Annotated[bool | None, Query(description="true: the served release; false: the others.")] = None
    sort: Annotated[
        Literal["learned", "-learned", "created", "-created", "bytes", "-bytes"],
        Query(description="Sort order; a leading `-` reverses it. `learned` is the order of learning."),
    ] = "learned"


class ShardListParameters(_LimitedPageParameters):
    """Parameters of ``GET /shards``."""

    text: Annotated[
        _Text | None,
        Query(description="Only shards whose domain name or ID contains this text (case-insensitive)."),
    ] = None
    sort: Annotated[
        Literal["created", "-created", "count", "-count", "bytes", "-bytes"],
        Query(description="Sort order; a leading `-` reverses it."),
    ] = "created"


class AuditListParameters(_LimitedPageParameters):
    """Parameters of ``GET /audit``."""

    actor: Annotated[_Text | None, Query(description="Only entries by this user, key or process.")] = None
    kind: Annotated[
        list[ActorKind] | None, Query(description="Only entries by this kind of actor; may be repeated.")
    ] = None
    action: Annotated[
        list[_Text] | None,
        Query(
            max_length=20,
            description="Only this action, such as `task.cancel`, or all of a resource, such as `task`; "
            "may be repeated.",
        ),
    ] = None
    target: Annotated[_Text | None, Query(description="Only changes to the resource with this ID.")] = None
    address: Annotated[_Text | None, Query(description="Only requests from this network address.")] = None
    request_id: Annotated[_Text | None, Query(description="Only changes made by this request.")] = None
    text: Annotated[
        _Text | None,
        Query(
            description="Only entries with this text in actor, action, target or details (case-insensitive)."
        ),
    ] = None
    after: Annotated[
        datetime | None, Query(description="Earliest time, inclusive; UTC unless it has a time zone.")
    ] = None
    before: Annotated[
        datetime | None, Query(description="Latest time, exclusive; UTC unless it has a time zone.")
    ] = None

    sort: Annotated[
        Literal["time", "-time"], Query(description="Sort order; `-time` lists the newest first.")
    ] = "-time"


class FeedbackListParameters(_LimitedPageParameters):
    """Parameters of ``GET /feedback``."""

    video_id: Annotated[_Text | None, Query(description="Only feedback on this video.")] = None
    text: Annotated[
        _Text | None, Query(description="Only feedback for queries containing this text (case-insensitive).")
    ] = None
    verdict: Annotated[Verdict | None, Query(description="Only feedback with this verdict.")] = None
    caller: Annotated[_Text | None, Query(description="Only feedback from this user or key.")] = None
    own: Annotated[bool, Query(description="Only your own feedback, for administrators too.")] = False
    sort: Annotated[
        Literal["time", "-time"], Query(description="Sort order; `-time` lists the newest first.")
    ] = "-time"


class WebhookDeliveryParameters(_LimitedPageParameters):
    """Parameters of ``GET /webhooks/{webhook_id}/deliveries``."""
