"""IDs of HTTP requests, which appear in log lines, tasks and traces.

The current request's ID is a context variable of ``asgi-correlation-id``. A task stores the ID of the request that
created it, and a worker sets it again while processing the task.
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
    """Get the ID of the request that the current context serves; None outside requests and tasks."""
    return correlation_id.get()


def is_well_formed(value: str) -> bool:
    """Check whether a client's ID may appear in logs and headers: 1 to 64 letters, digits and ``._:-``."""
    return _WELL_FORMED.fullmatch(value) is not None


def new_request_id() -> str:
    """Generate a random ID."""
    return secrets.token_hex(16)


@contextmanager
def use_request_id(value: str | None) -> Iterator[None]:
    """Set the current context's request ID during a ``with`` block."""
    token = correlation_id.set(value)
    try:
        yield
    finally:
        correlation_id.reset(token)
