"""Cursors: where a list of results goes on, by the release that it began with.

A cursor is opaque to whoever holds it. It says which release and mode answered, how far the list has come, and, in
digests, what was searched for. It keeps no state on any server, and its checksum tells a damaged one. It is not secret
and need not be signed: with a forged one nothing can be asked that could not be asked without it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Cursor", "parameter_digests", "parse_cursor"]

_CHECKSUM = 8  # bytes
_MAX_CHARS = 2000
# Made once: every answer that has another page writes several of them.
_BODY, _VALUE = json.JSONEncoder(separators=(",", ":")), json.JSONEncoder(sort_keys=True)


@dataclass(frozen=True)
class Cursor:
    """A place in a list of results.

    Attributes:
        release, generation: that answered the first page.
        mode: its query mode.
        passed: hits that earlier pages have come past.
        shown: results that they showed; fewer, where the catalog no longer knew some.
        query: parameter → digest of its value, of all that make the list what it is.
        chosen: how many of the likeliest tasks the first page went to; see :class:`service.search.text_search.planner.WavePlanner`.
    """

    release: str
    generation: int
    mode: str
    passed: int
    shown: int
    query: dict[str, str]
    chosen: int = 0

    def __str__(self) -> str:
        body = _BODY.encode(vars(self)).encode()
        return base64.urlsafe_b64encode(_checksum(body) + body).rstrip(b"=").decode()

    def differing(self, query: Mapping[str, str]) -> list[str]:
        """Names of the parameters in which another search differs from this one's."""
        return sorted(name for name in {*query, *self.query} if query.get(name) != self.query.get(name))


def parse_cursor(text: str) -> Cursor | None:
    """The cursor that a text is; None if it is none."""
    if len(text) > _MAX_CHARS:
        return None
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        body = raw[_CHECKSUM:]
        if raw[:_CHECKSUM] != _checksum(body):
            return None
        cursor = Cursor(**json.loads(body))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        return None
    return cursor if _is_whole(cursor) else None


def parameter_digests(parameters: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each parameter that is set. Values are JSON."""
    return {
        name: hashlib.sha256(_VALUE.encode(value).encode()).hexdigest()[:12]
        for name, value in parameters.items()
        if value is not None
    }


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"cinestrata cursor " + body).digest()[:_CHECKSUM]


def _is_whole(cursor: Cursor) -> bool:
    numbers = cursor.generation, cursor.passed, cursor.shown, cursor.chosen
    return (
        all(type(number) is int and 0 <= number < 2**31 for number in numbers)
        and isinstance(cursor.release, str)
        and isinstance(cursor.mode, str)
        and isinstance(cursor.query, dict)
    )
