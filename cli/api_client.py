"""The client of the HTTP API as the command line uses it."""

from __future__ import annotations

import httpx

from cinestrata_client import Client, RetryPolicy
from cli.console import refuse_call

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
