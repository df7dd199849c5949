"""Identifiers of HTTP requests, which log lines, tasks and traces carry.

The identifier of the current request is a context variable of ``asgi-correlation-id``. The task that a request creates
stores the identifier, and a worker sets it again while it processes the task.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from asgi_correlation_id import correlation_id

HEADER = "X-Request-ID"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def current_request_id() -> str | None:
    """Return the identifier of the request that the current context serves; None outside of requests and tasks."""
    return correlation_id.get()


def is_well_formed(value: str) -> bool:
    """Return whether an identifier of a client may appear in logs and headers: 1 to 64 letters, digits and ``._:-``."""
    return _WELL_FORMED.fullmatch(value) is not None


def new_request_id() -> str:
    """Return a random identifier."""
    return secrets.token_hex(16)


@contextmanager
def use_request_id(value: str | None) -> Iterator[None]:
    """Set the identifier of the current context for the duration of a block."""
    token = correlation_id.set(value)
    try:
        yield
    finally:
        correlation_id.reset(token)
