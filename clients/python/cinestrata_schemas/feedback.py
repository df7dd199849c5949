"""Feedback on results: which videos are right or wrong for a query."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from cinestrata_schemas.choice_types import ActorKind, Verdict
from cinestrata_schemas.model_types import Open, RequestModel, ResponseModel, optional


class FeedbackSpec(RequestModel):
    """A verdict on a video as a result for a query."""

    text: str = Field(description="Query that was searched.")
    video_id: str = Field(description="ID of the video.")
    verdict: Verdict = Field(description="Whether the video is right or wrong for the query.")


class FeedbackDetails(ResponseModel):
    """A verdict that a caller gave."""

    id: int
    text: str = Field(description="Query as typed; untrusted.")
    video_id: str
    verdict: Open[Verdict]
    caller: str = Field(description="User or key, as in the audit log.")
    caller_kind: Open[ActorKind]
    created_at: datetime


class FeedbackPage(ResponseModel):
    """A page of feedback."""

    feedback: list[FeedbackDetails]
    next_cursor: str | None = optional("Cursor of the next page; null on the last.")
