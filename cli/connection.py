"""Choice of the client: over HTTP for a URL, or in this process for a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.service_client import ServiceClient

__all__ = ["connect"]


def connect(url: str | None, data: Path | None) -> ServiceClient:
    """A client of the service at ``url``, or of the data folder without a URL.

    Only the chosen implementation is imported: a client over HTTP needs neither torch nor a database.
    """
    if url:
        from cli.http_service_client import HttpServiceClient

        return HttpServiceClient(url)
    from cli.in_process_service_client import InProcessServiceClient

    return InProcessServiceClient(data)
