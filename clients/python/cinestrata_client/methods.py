"""Methods declared once for both clients.

A method is a generator of steps: it yields each request or pause, and receives the request's outcome. The synchronous
client executes the steps in a blocking method, the asynchronous one in a coroutine.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_type_hints, overload
from urllib.parse import parse_qs, urlsplit

import httpx
from pydantic import BaseModel

from cinestrata_client.calls import Call
from cinestrata_client.errors import UnreachableError, error_of
from cinestrata_client.retries import RetryPolicy
from cinestrata_client.shown_answers import Connection, ShownAnswer

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Item = TypeVar("_Item")
# A float is a pause in seconds; its outcome is None.
Steps = Generator[Call[Any] | float, httpx.Response | httpx.RequestError | None, _T]

_HEADERS = {"idempotency_key": "Idempotency-Key", "if_match": "If-Match"}


class StepClient(ABC):
    """What method steps need from either client."""

    base_url: httpx.URL
    retries: RetryPolicy
    connection: Connection

    def exchange(self, call: Call[Any]) -> Steps[httpx.Response]:
        """Send a call, and retry it if that is safe and promising; the response may be an error.

        Raises:
            UnreachableError: There is no response.
        """
        call = self.retries.keyed(call)
        attempt = 0
        while True:
            outcome = yield call
            assert outcome is not None  # noqa: S101  only pauses have none
            pause = self.retries.pause(call, attempt, outcome)
            if pause is not None:
                yield pause
                attempt += 1
            elif isinstance(outcome, httpx.Response):
                return outcome
            else:
                raise UnreachableError(self.base_url, call.method, call.url, outcome) from outcome

    def answer(self, call: Call[_T]) -> Steps[_T]:
        """Send a call and return its parsed response.

        Raises:
            ServiceError: The response is an error.
            UnreachableError: There is no response.
        """
        response = yield from self._checked(call)
        answer = call.parse(response)
        if isinstance(answer, ShownAnswer):
            answer.connect(self.connection)
        return answer

    def page(self, call: Call[Any]) -> Steps[tuple[list[Any], Call[Any] | None]]:
        """Return a page's entries and the call for the next page; None after the last one."""
        response = yield from self._checked(call)
        page = call.parse(response)
        cursor = getattr(page, "next_cursor", None)
        if cursor is None and "next" in response.links:
            cursor = parse_qs(urlsplit(response.links["next"]["url"]).query).get("cursor", [None])[0]
        following = None if cursor is None else replace(call, query={**call.query, "cursor": cursor})
        return _entries(page), following

    def _checked(self, call: Call[Any]) -> Steps[httpx.Response]:
        response = yield from self.exchange(call)
        if not call.is_answered_by(response):
            raise error_of(response)
        return response


class SyncStepClient(StepClient):
    """Executes steps, and waits for their outcomes."""

    @abstractmethod
    def run(self, steps: Steps[_T]) -> _T:
        """Execute steps and return their result."""

    @abstractmethod
    def iterate(self, call: Call[Any]) -> Iterator[Any]:
        """Yield the entries of all pages, starting at a call's page."""


class AsyncStepClient(StepClient):
    """Executes steps without blocking the event loop."""

    @abstractmethod
    async def run(self, steps: Steps[_T]) -> _T:
        """Execute steps and return their result."""

    @abstractmethod
    def iterate(self, call: Call[Any]) -> AsyncIterator[Any]:
        """Yield the entries of all pages, starting at a call's page."""


class Method(Generic[_P, _T]):
    """A method of both clients, whose function yields its steps.

    Args:
        function: Generator function, whose first parameter is the client.
    """

    def __init__(self, function: Callable[Concatenate[Any, _P], Steps[_T]]) -> None:
        self._function = function

    @overload
    def __get__(self, client: SyncStepClient, kind: type) -> Callable[_P, _T]: ...

    @overload
    def __get__(self, client: AsyncStepClient, kind: type) -> Callable[_P, Awaitable[_T]]: ...

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
        def steps(client: StepClient, /, *args: _P.args, **kwargs: _P.kwargs) -> Steps[_T]:
            return client.answer(self.call(*args, **kwargs))

        super().__init__(steps)

    def call(self, *args: _P.args, **kwargs: _P.kwargs) -> Call[_T]:
        """Build the request from a method call's arguments."""
        bound = self._signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        _, *values = bound.arguments.items()  # without the client
        path: dict[str, str | int] = {}
        query: dict[str, Any] = {}
        headers: dict[str, str | None] = dict(self._template.headers)
        for name, value in values:
            if f"{{{name}}}" in self._template.template:
                path[name] = value
            elif name in _HEADERS:
                headers[_HEADERS[name]] = value
            elif name != "body":
                query[name] = value
        return replace(
            self._template,
            result=self.result,
            path=path,
            query=query,
            headers=headers,
            body=bound.arguments.get("body"),
        )

    @functools.cached_property
    def result(self) -> Any:
        """Type of the response; None for an empty one."""
        kind = get_type_hints(self._declaration)["return"]
        return None if kind is type(None) else kind


class Pages(Generic[_P, _Item]):
    """A method of both clients that iterates over a list, page by page.

    Args:
        operation: Operation that returns one page.
    """

    def __init__(self, operation: Operation[_P, Any], item: type[_Item]) -> None:
        self._operation = operation
        self.item = item
        self.__doc__ = "Yield the entries of all pages, which are read as needed."

    @overload
    def __get__(self, client: SyncStepClient, kind: type) -> Callable[_P, Iterator[_Item]]: ...

    @overload
    def __get__(self, client: AsyncStepClient, kind: type) -> Callable[_P, AsyncIterator[_Item]]: ...

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
    """Declare an operation by a function with a signature and docstring, but no body.

    Args:
        verb: HTTP method.
        path: Path below ``/v1``, with parameter names in braces.
        headers: Fixed headers.
        accepted: Error statuses whose body is also a result.
    """

    def declare(function: Callable[Concatenate[Any, _P], _T]) -> Operation[_P, _T]:
        return Operation(Call(verb, path, headers=headers or {}, accepted=accepted), function)

    return declare


def _entries(page: list[Any] | BaseModel) -> list[Any]:
    """Return a page's entries: the page itself, or its first list."""
    if isinstance(page, list):
        return page
    return next(list(value) for _, value in page if isinstance(value, list))
