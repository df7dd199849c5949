"""Requests of both clients: what they contain, when they are retried, and the methods that send them.

A method is declared once, as a coroutine, which the asynchronous client returns. Requests and pauses of the synchronous
client block inside of the coroutine, so it ends without waiting.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import random
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, get_type_hints, overload
from urllib.parse import parse_qs, quote, urlsplit
from uuid import uuid4

import httpx
from pydantic import BaseModel, TypeAdapter

from cinestrata_client.errors import UnreachableError, error_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Item = TypeVar("_Item")

DEFAULT_URL = "http://127.0.0.1:8000"
_MAX_PORT = 65_535
_LOOPBACK = re.compile(r"127\.[\d.]+|0\.0\.0\.0|::1?|(.+\.)?localhost")
# Requests that may be resent after a lost connection, because they are idempotent.
_REPEATABLE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_REPEATABLE_PATHS = frozenset({"/search", "/search/clip", "/uploads/preview"})
_SECONDS_PER_VIDEO = 0.005  # the service looks for each video's file before it responds
_BUSY = 429
_UNAVAILABLE = 503
_IN_DOUBT = b"urn:cinestrata:problem:commit-not-confirmed"
_CHANGE_SEQUENCE = "Cinestrata-Change-Sequence"
_HEADERS = {"idempotency_key": "Idempotency-Key", "if_match": "If-Match"}


@dataclass(frozen=True)
class Call(Generic[_T]):
    """A request and the type of its response. Query parameters and headers that are None are left out."""

    method: str
    template: str  # path below /v1, with parameter names in braces
    result: Any = None  # a model, a list of models, str, bytes or None
    path: Mapping[str, str | int] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: BaseModel | None = None  # without its unset fields
    files: Mapping[str, Any] | None = None  # of a form
    data: Mapping[str, str] | None = None
    content: bytes | None = None
    accepted: tuple[int, ...] = ()  # error statuses whose JSON body also has the type of the result
    is_unbounded: bool = False  # the service reads an archive before it responds

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
        """Return the request options for httpx."""
        query = {name: _query_value(value) for name, value in self.query.items() if value is not None}
        headers = {name: value for name, value in self.headers.items() if value is not None}
        content, videos = self.content, getattr(self.body, "videos", None) or ()
        if self.body is not None:
            content = self.body.model_dump_json(exclude_unset=True).encode()
            headers["Content-Type"] = "application/json"
        return {
            "params": query,
            "headers": headers,
            "content": content,
            "files": self.files,
            "data": self.data,
            "timeout": httpx.Timeout(None, connect=timeout, pool=timeout)
            if self.is_unbounded
            else httpx.Timeout(timeout, read=timeout + len(videos) * _SECONDS_PER_VIDEO),
        }

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


@functools.cache
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


@dataclass(frozen=True)
class RetryPolicy:
    """Policy for retrying requests."""

    max_retries: int = 3  # per request
    max_pause: float = 60.0  # seconds; a longer ``Retry-After`` ends the retries
    first_pause: float = 0.5  # before the first retry without ``Retry-After``; it doubles each time

    def pause(
        self, call: Call[_T], attempt: int, outcome: httpx.Response | httpx.RequestError
    ) -> float | None:
        """Return the seconds until a retry; None: do not retry."""
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


_DEFAULT_RETRIES = RetryPolicy()


class BaseClient(ABC):
    """What methods need from either client. The arguments are those of ``cinestrata_client.Client``."""

    _open: Callable[..., Any]  # the class of the httpx client

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: RetryPolicy = _DEFAULT_RETRIES,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
    ) -> None:
        try:
            self.base_url = httpx.URL(base_url.rstrip("/"))
        except httpx.InvalidURL:
            self.base_url = httpx.URL("")
        host, port = self.base_url.host, self.base_url.port or 0
        if self.base_url.scheme not in ("http", "https") or not host or port > _MAX_PORT:
            raise ValueError(f"base_url: {base_url!r} is not a URL; write, for example, {DEFAULT_URL}")
        key = api_key or os.environ.get("CINESTRATA_API_KEY")
        if key and not (key.isascii() and key.isprintable()):  # the key itself is not part of the error
            raise ValueError("api_key: it has characters that a header can't contain, such as a line break")
        self.retries = retries
        self.change_sequence = 0  # number of this client's last edit, which its searches then include
        self.http_options: dict[str, Any] = {
            "base_url": self.base_url,
            "headers": {"X-API-Key": key} if key else {},
            "timeout": timeout,
            # A proxy from the environment cannot reach a service on this machine.
            "trust_env": not _LOOPBACK.fullmatch(host),
        }
        self._http = self._open(**self.http_options, transport=transport)
        self.base_url = self._http.base_url

    @abstractmethod
    async def send(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Send a request; ``options`` are those of httpx."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Pause."""

    async def exchange(self, call: Call[Any]) -> httpx.Response:
        """Send a call, and retry it if that may help; the response may be an error; raises UnreachableError."""
        if call.headers.get("Idempotency-Key", "") is None:  # with one, it can be retried
            call = replace(call, headers={**call.headers, "Idempotency-Key": uuid4().hex})
        if self.change_sequence:
            call = replace(call, headers={_CHANGE_SEQUENCE: str(self.change_sequence), **call.headers})
        attempt = 0
        while True:
            outcome: httpx.Response | httpx.RequestError
            try:
                outcome = await self.send(call.method, call.url, **call.options(self.http_options["timeout"]))
            except httpx.RequestError as error:
                outcome = error
            pause = self.retries.pause(call, attempt, outcome)
            if pause is not None:
                await self.sleep(pause)
                attempt += 1
            elif isinstance(outcome, httpx.Response):
                written = outcome.headers.get(_CHANGE_SEQUENCE, "")
                self.change_sequence = max(self.change_sequence, int(written) if written.isdecimal() else 0)
                return outcome
            else:
                raise UnreachableError(self.base_url, call.method, call.url, outcome) from outcome

    async def answer(self, call: Call[_T]) -> _T:
        """Send a call and return its parsed response; raises ServiceError or UnreachableError."""
        return call.parse(await self._checked(call))

    async def page(self, call: Call[Any]) -> tuple[list[Any], Call[Any] | None]:
        """Return a page's entries and the call for the next page; None after the last one."""
        response = await self._checked(call)
        page = call.parse(response)
        cursor = getattr(page, "next_cursor", None)
        if cursor is None and "next" in response.links:
            cursor = parse_qs(urlsplit(response.links["next"]["url"]).query).get("cursor", [None])[0]
        following = None if cursor is None else replace(call, query={**call.query, "cursor": cursor})
        return _entries(page), following

    async def _checked(self, call: Call[Any]) -> httpx.Response:
        response = await self.exchange(call)
        if not call.is_answered_by(response):
            raise error_of(response)
        return response


class BlockingClient(BaseClient):
    """A client whose methods block."""

    def run(self, method: Coroutine[Any, Any, _T]) -> _T:
        """Complete a coroutine, whose requests and pauses block."""
        try:
            method.send(None)
        except StopIteration as finished:
            result: _T = finished.value
            return result
        raise RuntimeError("the coroutine waits for something other than this client")


class AwaitedClient(BaseClient):
    """A client whose methods are awaited."""

    def run(self, method: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        """Return a coroutine for the caller to await."""
        return method


class Method(Generic[_P, _T]):
    """A method of both clients, whose function is a coroutine."""

    def __init__(self, function: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]) -> None:
        self._function = function

    @overload
    def __get__(self, client: BlockingClient, kind: type) -> Callable[_P, _T]: ...

    @overload
    def __get__(self, client: AwaitedClient, kind: type) -> Callable[_P, Awaitable[_T]]: ...

    @overload
    def __get__(self, client: None, kind: type) -> Callable[..., Any]: ...

    def __get__(self, client: Any, kind: type) -> Callable[..., Any]:
        if client is None:
            return self._function

        @functools.wraps(self._function)
        def method(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            return client.run(self._function(client, *args, **kwargs))

        return method


class Operation(Method[_P, _T]):
    """A method that sends one request, described by its signature and docstring.

    Path parameters, ``body``, ``idempotency_key`` and ``if_match`` go to their own places, all others to the query. The
    return annotation is the type of the response.
    """

    def __init__(self, call: Call[_T], function: Callable[Concatenate[Any, _P], _T]) -> None:
        self._template = call
        self._signature = inspect.signature(function)
        self._declaration = function

        @functools.wraps(function)
        def send(client: BaseClient, /, *args: _P.args, **kwargs: _P.kwargs) -> Coroutine[Any, Any, _T]:
            return client.answer(self.call(*args, **kwargs))

        super().__init__(send)

    def call(self, *args: _P.args, **kwargs: _P.kwargs) -> Call[_T]:
        """Build the request from a method call's arguments."""
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        _, *values = bound.arguments.items()  # without the client
        query = dict(values)
        body = query.pop("body", None)
        path = {name: query.pop(name) for name in [*query] if f"{{{name}}}" in self._template.template}
        headers = {header: query.pop(name) for name, header in _HEADERS.items() if name in query}
        headers = {**self._template.headers, **headers}
        return replace(self._template, result=self.result, path=path, query=query, headers=headers, body=body)

    @functools.cached_property
    def result(self) -> Any:
        """Type of the response; None for an empty one."""
        kind = get_type_hints(self._declaration)["return"]
        return None if kind is type(None) else kind


class Pages(Generic[_P, _Item]):
    """A method of both clients that iterates over a list, page by page."""

    def __init__(self, operation: Operation[_P, Any], item: type[_Item]) -> None:
        self._operation = operation
        self.item = item
        self.__doc__ = "Yield the entries of all pages, which are read as needed."

    @overload
    def __get__(self, client: BlockingClient, kind: type) -> Callable[_P, Iterator[_Item]]: ...

    @overload
    def __get__(self, client: AwaitedClient, kind: type) -> Callable[_P, AsyncIterator[_Item]]: ...

    @overload
    def __get__(self, client: None, kind: type) -> Callable[..., Any]: ...

    def __get__(self, client: Any, kind: type) -> Callable[..., Any]:
        def method(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            return client.iterate(self._operation.call(*args, **kwargs))

        method.__doc__ = self.__doc__
        return method


def operation(
    verb: str, path: str, *, headers: Mapping[str, str] | None = None, accepted: tuple[int, ...] = ()
) -> Callable[[Callable[Concatenate[Any, _P], _T]], Operation[_P, _T]]:
    """Declare an operation by a function with a signature and docstring, but no body."""

    def declare(function: Callable[Concatenate[Any, _P], _T]) -> Operation[_P, _T]:
        return Operation(Call(verb, path, headers=headers or {}, accepted=accepted), function)

    return declare


def _entries(page: list[Any] | BaseModel) -> list[Any]:
    """Return a page's entries: the page itself, or its first list."""
    if isinstance(page, list):
        return page
    return next(list(value) for _, value in page if isinstance(value, list))
