"""Errors of the benchmarks."""

from __future__ import annotations

from pydantic import ValidationError


class ProtocolError(ValueError):
    """A protocol, a method variant or the given videos cannot be used; the message includes the remedy."""


def validation_summary(error: ValidationError) -> str:
    """Return one line with the field and message of each validation error."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
