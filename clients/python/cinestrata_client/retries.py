"""When to retry a failed request, and after which pause."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import uuid4

import httpx

from cinestrata_client.calls import Call

T = TypeVar("T")
_BUSY = 429
_UNAVAILABLE = 503
_IN_DOUBT = b"urn:cinestrata:problem:commit-not-confirmed"


@dataclass(frozen=True)
class RetryPolicy:
    """Policy for retrying requests.

    Attributes:
        max_retries: Maximum number of retries per request.
        max_pause: Maximum pause in seconds; a longer ``Retry-After`` ends the retries.
        first_pause: Pause before the first retry without ``Retry-After``; it doubles each time.
    """

    max_retries: int = 3
    max_pause: float = 60.0
    first_pause: float = 0.5

    def keyed(self, call: Call[T]) -> Call[T]:
        """Add an ``Idempotency-Key`` to a call if the operation has one, so that it can be retried."""
        if "Idempotency-Key" in call.headers and call.headers["Idempotency-Key"] is None:
            return replace(call, headers={**call.headers, "Idempotency-Key": uuid4().hex})
        return call

    def pause(
        self, call: Call[T], attempt: int, outcome: httpx.Response | httpx.RequestError
    ) -> float | None:
        """Return the seconds until a retry; None: do not retry.

        Args:
            attempt: Number of the failed attempt, from 0.
            outcome: The response, or the connection error.
        """
        response = outcome if isinstance(outcome, httpx.Response) else None
        if attempt >= self.max_retries or (response is not None and call.is_answered_by(response)):
            return None
        backoff: float = min(self.first_pause * 2.0**attempt, self.max_pause) * random.uniform(0.75, 1.0)  # noqa: S311
        if response is None:
            return backoff if call.is_repeatable else None
        is_refused = response.status_code == _BUSY  # nothing was done
        is_unchanged = response.status_code == _UNAVAILABLE and (
            call.is_repeatable or _IN_DOUBT not in response.content
        )
        if not is_refused and not is_unchanged:
            return None
        named = response.headers.get("Retry-After", "")
        if not named.isdecimal():
            return backoff
        return float(named) if float(named) <= self.max_pause else None
