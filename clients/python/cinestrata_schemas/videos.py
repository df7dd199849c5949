"""Requests and responses about videos: details, lists, edits and deletion."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from cinestrata_schemas import choice_types
from cinestrata_schemas.model_types import (
    Identifier,
    Open,
    RequestList,
    RequestModel,
    ResponseModel,
    ShownUri,
    optional,
)

MAX_CUES = 20_000  # of a transcript


class Cue(RequestModel):
    """A timed text: the words spoken in a part of a video, or its description."""

    start: float = Field(ge=0, allow_inf_nan=False, description="Seconds from the start of the video.")
    end: float = Field(ge=0, allow_inf_nan=False, description="Seconds; after the start.")
    text: str = Field(description="Plain text on one line; markup is shown as is.")
    source: choice_types.TextSource | None = optional(
        "Origin of the text. In an edit, a stored text keeps its source, and a new text gets `person`, or `subtitles` "
        "if it says so. With a new video, null stands for `subtitles`."
    )
    id: str | None = optional("ID of a stored text, by which it is edited; ignored in requests.")


class VideoMoment(ResponseModel):
    """A moment: a segment of a video, in seconds from its start."""

    start: float
    end: float


class SourceState(ResponseModel):
    """What was read from a video's file."""

    source: Open[choice_types.ReadSource]
    state: Open[Literal["pending", "done", "failed", "cancelled"]]
    model: str | None = optional("Model that read it; for a pending source, the requested model.")
    note: str | None = optional("What was not read, and why.")


class VideoDetails(ResponseModel):
    """A video. ``task`` is the name of its task: its domain, or an unpublished append."""

    id: str
    task: str
    task_id: str
    uri: ShownUri
    status: Open[choice_types.VideoStatus]
    reason: str | None
    captions: list[str]
    split: Open[choice_types.Split] | None
    effective_split: Open[choice_types.EffectiveSplit] | None
    metadata: dict[str, Any]
    content_hash: str | None
    bytes: int | None
    container: str | None
    codec: str | None
    width: int | None
    height: int | None
    fps: float | None
    duration: float | None
    frames: int | None
    thumbnail_url: str
    stream_url: str
    moments: list[VideoMoment] = Field(default_factory=list, description="Moments of a long video, in order.")
    transcript: list[Cue] = Field(default_factory=list, description="Timed texts, in order of time.")
    readings: list[SourceState] = Field(
        default_factory=list, description="How its texts were read from the file."
    )
    replaced_at: datetime | None = optional(
        "When a new version of the file replaced the previous one; captions, transcript and feedback may be of an "
        "earlier version. Null again after an edit."
    )


class VideoSummary(ResponseModel):
    """A video in a list."""

    id: str
    task_id: str = Field(description="The video's task: its domain, or an unpublished append.")
    uri: ShownUri
    status: Open[choice_types.VideoStatus]
    reason: str | None
    captions: list[str]
    effective_split: Open[choice_types.EffectiveSplit] | None
    metadata: dict[str, Any]
    content_hash: str | None
    bytes: int | None
    duration: float | None
    added_at: datetime
    replaces: str | None = optional("ID of the video that this one replaces once it is published.")
    thumbnail_url: str
    stream_url: str


class VideoPage(ResponseModel):
    """A page of videos."""

    videos: list[VideoSummary]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class VideoPatch(RequestModel):
    """Changes to a video as a JSON Merge Patch (RFC 7396). Omitted fields keep their value."""

    captions: RequestList[str] | None = optional("All captions, replacing the current ones; null: none.")
    metadata: dict[str, Any] | None = optional(
        "Metadata fields to change. A field with null is removed, objects are merged field by field, and null instead "
        "of the object removes all metadata."
    )
    transcript: Annotated[RequestList[Cue], Field(max_length=MAX_CUES)] | None = optional(
        "The whole transcript, replacing the current one; null removes it."
    )


class CuePatch(RequestModel):
    """Changes to a timed text. Omitted fields keep their value."""

    start: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="Seconds.")
    end: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Seconds; after the start."
    )
    text: str | None = optional("The new text.")


class DeletionRequest(RequestModel):
    """Videos to delete."""

    videos: RequestList[Identifier] = Field(min_length=1, max_length=20_000, description="Video IDs.")


class DeletionResult(ResponseModel):
    """Result of a deletion."""

    deleted: list[str] = Field(description="IDs of the deleted videos.")
    not_found: list[str] = Field(description="IDs that match no video (of the task).")


class FeedbackSpec(RequestModel):
    """A verdict on a video as a result for a query."""

    text: str = Field(description="Query that was searched.")
    video_id: str = Field(description="ID of the video.")
    verdict: choice_types.Verdict = Field(description="Whether the video is right or wrong for the query.")


class FeedbackDetails(ResponseModel):
    """A verdict that a caller gave."""

    id: int
    text: str = Field(description="Query as typed; untrusted.")
    video_id: str
    verdict: Open[choice_types.Verdict]
    caller: str = Field(description="User or key, as in the audit log.")
    caller_kind: Open[choice_types.ActorKind]
    created_at: datetime


class FeedbackPage(ResponseModel):
    """A page of feedback."""

    feedback: list[FeedbackDetails]
    next_cursor: str | None = optional("Cursor of the next page; null on the last.")
