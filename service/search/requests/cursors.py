"""Cursors: the position in a list of results at which the next page starts, and the release that produced the list.

A cursor is opaque to clients. It holds the release, the query mode and the position of the list, and digests of the
search parameters. The server keeps no state for it, and its checksum reveals damage. It is neither secret nor signed,
because a forged cursor gives access to nothing that is not accessible without it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from index.hits import Hit

_CHECKSUM_BYTES = 8
_MAX_CHARS = 2000
# Created once, because every response with a next page encodes several values.
_BODY_ENCODER = json.JSONEncoder(separators=(",", ":"))
_VALUE_ENCODER = json.JSONEncoder(sort_keys=True)
# Attribute → key in the encoded form.
_KEYS = {
    "release": "release",
    "generation": "generation",
    "mode": "mode",
    "hit_offset": "passed",
    "result_offset": "shown",
    "parameters": "query",
    "tasks_in_first_page": "chosen",
    "last_hit": "last",
}
_ATTRIBUTES = {key: attribute for attribute, key in _KEYS.items()}


@dataclass(frozen=True)
class Cursor:
    """Position in a list of results.

    Attributes:
        release: Identifier of the release that answered the first page.
        generation: Index generation that answered the first page.
        mode: Query mode of the first page.
        hit_offset: Number of hits on the earlier pages.
        result_offset: Number of results on the earlier pages; smaller than ``hit_offset`` where the catalog no longer
            contained some of the videos.
        parameters: Parameter name → digest of its value, for all parameters that determine the list.
        tasks_in_first_page: Number of likeliest tasks that the first page took into account; see
            :class:`service.search.text_search.planner.WavePlanner`.
        last_hit: Last hit of the page before, with its cosine as its score.
    """

    release: str
    generation: int
    mode: str
    hit_offset: int
    result_offset: int
    parameters: dict[str, str]
    tasks_in_first_page: int
    last_hit: Hit

    def __str__(self) -> str:
        fields = {key: getattr(self, attribute) for attribute, key in _KEYS.items()}
        fields["last"] = self.last_hit.task, self.last_hit.id, self.last_hit.score
        body = _BODY_ENCODER.encode(fields).encode()
        return base64.urlsafe_b64encode(_checksum(body) + body).rstrip(b"=").decode()

    def differing_parameters(self, parameters: Mapping[str, str]) -> list[str]:
        """Names of the parameters whose digests differ from those of the given search."""
        names = {*parameters, *self.parameters}
        return sorted(name for name in names if parameters.get(name) != self.parameters.get(name))


def parse_cursor(text: str) -> Cursor | None:
    """Parse an encoded cursor; None if the text is not an intact cursor."""
    if len(text) > _MAX_CHARS:
        return None
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        body = raw[_CHECKSUM_BYTES:]
        if raw[:_CHECKSUM_BYTES] != _checksum(body):
            return None
        fields = {_ATTRIBUTES[key]: value for key, value in json.loads(body).items()}
        cursor = Cursor(**{**fields, "last_hit": Hit(*fields["last_hit"])})
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error, RecursionError):
        return None
    return cursor if _is_valid(cursor) else None


def digest_parameters(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Digest of each parameter that is not None. Values are JSON."""
    return {
        name: hashlib.sha256(_VALUE_ENCODER.encode(value).encode()).hexdigest()[:12]
        for name, value in parameters.items()
        if value is not None
    }


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"cinestrata cursor " + body).digest()[:_CHECKSUM_BYTES]


def _is_valid(cursor: Cursor) -> bool:
    numbers = cursor.generation, cursor.hit_offset, cursor.result_offset, cursor.tasks_in_first_page
    return (
        all(type(number) is int and 0 <= number < 2**31 for number in numbers)
        and isinstance(cursor.release, str)
        and isinstance(cursor.mode, str)
        and isinstance(cursor.parameters, dict)
        and _is_valid_hit(cursor.last_hit)
    )


def _is_valid_hit(hit: Hit) -> bool:
    return type(hit.id) is int and isinstance(hit.task, str) and isinstance(hit.score, float)
