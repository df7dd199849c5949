"""Choice of the client: over HTTP for a URL, or in this process for a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.service_client import ServiceClient

__all__ = ["connect"]

_READY_SECONDS = 2.0


def connect(url: str | None, data: Path | None, *, ask_running: bool = False) -> ServiceClient:
    """A client of the service at ``url``, or of the data folder without a URL.

    Only the chosen implementation is imported: a client over HTTP needs neither torch nor a database.

    Args:
        url: URL of a running service.
        data: Data folder; None takes it from the environment.
        ask_running: Whether to ask the service that runs on the data folder, which has loaded the model.
    """
    if url is None and ask_running:
        url = _running_service(data)
    if url:
        from cli.http_service_client import HttpServiceClient

        return HttpServiceClient(url)
    from cli.in_process_service_client import InProcessServiceClient

    return InProcessServiceClient(data)


def _running_service(data: Path | None) -> str | None:
    """URL of the ready service on a data folder that accepts the key of the environment; None without one."""
    from cinestrata_client import Client, RetryPolicy, ServiceError, UnreachableError
    from cli.embedded.data_folder import data_folder_settings, read_lock_holder

    url = (read_lock_holder(data_folder_settings(data).run_dir) or {}).get("url")
    if url is None:
        return None
    try:
        with Client(url, timeout=_READY_SECONDS, retries=RetryPolicy(max_retries=0)) as client:
            if not client.readyz().ready:
                return None
            client.get_current_access()
    except (
        ServiceError,
        UnreachableError,
        ValueError,
    ):  # ValueError: a malformed key, or an answer of unknown form
        return None
    return str(url)
