"""API requests: their parts, and the types of their responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter

_T = TypeVar("_T")
# Requests that may be resent after a lost connection, because they are idempotent.
_REPEATABLE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_REPEATABLE_PATHS = frozenset({"/search", "/search/clip", "/uploads/preview"})
_SECONDS_PER_VIDEO = 0.005  # the service looks for each video's file before it responds


@dataclass(frozen=True)
class Call(Generic[_T]):
    """A request and the type of its response.

    Attributes:
        method: HTTP method.
        template: Path below ``/v1``, with parameter names in braces.
        result: Type of the response: a model, a list of models, ``str``, ``bytes`` or None.
        path: Path parameters.
        query: Query parameters; None is left out.
        headers: Headers; None is left out.
        body: JSON body; unset fields are left out.
        files: Form files by name.
        data: Form fields.
        content: Body as bytes.
        accepted: Error statuses whose JSON body also has the type ``result``.
        is_unbounded: Whether the response may take arbitrarily long, because the service reads an archive first.
    """

    method: str
    template: str
    result: Any = None
    path: Mapping[str, str | int] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: BaseModel | None = None
    files: Mapping[str, Any] | None = None
    data: Mapping[str, str] | None = None
    content: bytes | None = None
    accepted: tuple[int, ...] = ()
    is_unbounded: bool = False

    @property
    def url(self) -> str:
        """Request path, with escaped parameters."""
        escaped = {name: quote(str(value), safe="") for name, value in self.path.items()}
        return "/v1" + self.template.format_map(escaped)

    @property
    def is_repeatable(self) -> bool:
        """Whether the request is idempotent."""
        return (
            self.method in _REPEATABLE_METHODS
            or self.template in _REPEATABLE_PATHS
            or self.headers.get("Idempotency-Key") is not None
            or self.headers.get("If-Match") is not None
        )

    def options(self, timeout: float) -> dict[str, Any]:
        """Return the request options for httpx.

        Args:
            timeout: Seconds until the request fails; longer for requests with many videos or an archive.
        """
        query = {name: _query_value(value) for name, value in self.query.items() if value is not None}
        headers = {name: value for name, value in self.headers.items() if value is not None}
        content = self.content
        if self.body is not None:
            content = self.body.model_dump_json(exclude_unset=True).encode()
            headers["Content-Type"] = "application/json"
        return {
            "params": query,
            "headers": headers,
            "content": content,
            "files": self.files,
            "data": self.data,
            "timeout": self._timeout(timeout),
        }

    def _timeout(self, seconds: float) -> httpx.Timeout:
        if self.is_unbounded:
            return httpx.Timeout(None, connect=seconds, pool=seconds)
        videos = getattr(self.body, "videos", None) or ()
        return httpx.Timeout(seconds, read=seconds + len(videos) * _SECONDS_PER_VIDEO)

    def is_answered_by(self, response: httpx.Response) -> bool:
        """Return whether a response has the type ``result`` and so is not an error."""
        media_type = response.headers.get("Content-Type", "").partition(";")[0].strip()
        is_accepted = response.status_code in self.accepted and media_type == "application/json"
        return response.is_success or is_accepted

    def parse(self, response: httpx.Response) -> _T:
        """Parse a successful response."""
        if self.result is None:
            return cast(_T, None)
        if self.result is str:
            return cast(_T, response.text)
        if self.result is bytes:
            return cast(_T, response.content)
        # A response may contain parts of a request, which may have new fields in a later service.
        return cast(_T, _adapter(self.result).validate_json(response.content, extra="ignore"))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _query_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_query_value(item) for item in value]
    return value
