"""The client of the HTTP API as the command line uses it, and models of the service from and for it."""

from __future__ import annotations

from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from cinestrata_client import Client, RetryPolicy
from cli.console import refuse_call

__all__ = ["client_model", "open_client", "service_model"]

_Model = TypeVar("_Model", bound=BaseModel)
# A user waits for the command: a service that asks for a longer pause is reported at once.
_RETRIES = RetryPolicy(max_retries=2, max_pause=2.0, first_pause=0.25)


def open_client(url: str, transport: httpx.BaseTransport | None = None) -> Client:
    """A client of the service at a URL; exits with an error if the URL or the API key is malformed.

    Args:
        url: Base URL of the service.
        transport: Transport of httpx, for tests; None opens network connections.
    """
    try:
        return Client(url, retries=_RETRIES, transport=transport)
    except ValueError as error:
        refuse_call(f"{error}.", "Check --url (CINESTRATA_URL) and CINESTRATA_API_KEY.")


def service_model(kind: type[_Model], answer: BaseModel) -> _Model:
    """The model of the service for an answer of the client; commands also get it without a running service.

    Args:
        kind: Model of :mod:`cinestrata_schemas` with the fields of the answer.
        answer: Model of :mod:`cinestrata_client.models`.
    """
    return kind.model_validate(answer.model_dump(exclude_unset=True))


def client_model(kind: type[_Model], request: BaseModel, **options: Any) -> _Model:
    """The model of the client for a checked request.

    Args:
        kind: Model of :mod:`cinestrata_client.models` with the fields of the request.
        request: Model of :mod:`cinestrata_schemas`.
        options: Options of ``model_dump``; by default, fields that are None are omitted.
    """
    return kind.model_validate(request.model_dump(mode="json", **(options or {"exclude_none": True})))
