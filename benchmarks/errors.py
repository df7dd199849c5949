"""Errors of the benchmarks."""

from __future__ import annotations

from pydantic import ValidationError


class ProtocolError(ValueError):
    """A protocol, a method variant or the given videos cannot be used; the message says what to do."""


def validation_summary(error: ValidationError) -> str:
    """Join each validation error's field and message in one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
