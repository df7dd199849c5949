"""Feedback on search results."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from api.dependencies import PageLinkDep
from api.query_parameters import FeedbackListParameters
from api.security.route_scopes import ScopedRoute, current_principal, requires
from cinestrata_schemas.videos import FeedbackDetails, FeedbackPage, FeedbackSpec
from service.access.credentials import OPEN_PRINCIPAL, Principal
from service.core.errors import TooManyRequests
from service.library import video_feedback

router = APIRouter(prefix="/feedback", tags=["search"], route_class=ScopedRoute)

# Per caller and process: each write makes all processes read the video again.
RATE = RateLimitItemPerMinute(60)
_limiter = FixedWindowRateLimiter(MemoryStorage())


@router.post("", operation_id="give_feedback")
@requires("search")
def give_feedback(request: Request, spec: FeedbackSpec) -> FeedbackDetails:
    """Mark a video right or wrong for a query. Idempotent: each caller has one verdict per video and query.

    The next search in every process counts it: a confirmed query becomes a text of the video, weaker than a caption,
    and a refused one is evidence against the video for the same words. When appended videos are relearned, their
    confirmed queries are learned like captions.
    """
    _require_rate(_principal(request))
    return video_feedback.give_feedback(spec)


@router.get("", operation_id="list_feedback")
@requires("search")
def list_feedback(
    request: Request, links: PageLinkDep, parameters: Annotated[FeedbackListParameters, Query()]
) -> FeedbackPage:
    """List feedback in pages, newest first by default. Administrators see everyone's feedback, others their own."""
    is_own = parameters.own or _principal(request).scope != "admin"
    return links.add(video_feedback.list_feedback(**dict(parameters) | {"own": is_own}))


@router.delete("/{feedback_id}", status_code=204, operation_id="take_back_feedback")
@requires("search")
def take_back_feedback(request: Request, feedback_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> None:
    """Take back feedback. The next search no longer counts it.

    Administrators can take back any feedback, others their own.
    """
    principal = _principal(request)
    _require_rate(principal)
    video_feedback.take_back(feedback_id, own=principal.scope != "admin")


def _principal(request: Request) -> Principal:
    return current_principal(request) or OPEN_PRINCIPAL


def _require_rate(principal: Principal) -> None:
    if not _limiter.hit(RATE, principal.kind, principal.name):
        raise TooManyRequests(f"The limit is {RATE.amount} verdicts per minute and caller.", retry_after=30)
