"""Errors of the benchmarks, and how their messages name fields and videos."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

_LISTED = 5  # names in a message


class ProtocolError(ValueError):
    """A protocol, a method variant or the given videos cannot be used; the message says what to do."""


def validation_summary(error: ValidationError) -> str:
    """Join each validation error's field and message in one line."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())


def abbreviate(names: Sequence[str], separator: str = ", ") -> str:
    """Join the first names of a list."""
    return separator.join(names[:_LISTED]) + (" …" if len(names) > _LISTED else "")
