"""Notices for commands whose queued work has no worker."""

from __future__ import annotations

import math
import shlex
import time
from typing import TYPE_CHECKING

from cli.console import error_console, fail

if TYPE_CHECKING:
    from cli.service_client import ServiceClient

_CHECK_SECONDS = 5.0
_START_SECONDS = 60.0  # workers of a starting service import torch before they report


class WorkerWatch:
    """Notices when no worker does the work that a command waits for."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self._next_check = 0.0
        self._missing_since: float | None = None

    def check(self) -> None:
        """Look for workers every few seconds.

        Exits with status 1 if no service runs on the data folder. If a running service has no workers, which may start
        later, prints one line.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        if not self._client.lacks_workers():
            self._missing_since = None
            return
        if self._client.lacks_service():
            fail(*_notice(self._client))
        self._missing_since = self._missing_since or now
        if now - self._missing_since >= _START_SECONDS:
            self._next_check = math.inf  # one line is enough
            print_notice(self._client)


def print_notice(client: ServiceClient) -> None:
    """Print to standard error that queued work is waiting, if no worker runs."""
    if client.lacks_workers():
        for line in _notice(client):
            error_console.say(line)


def _notice(client: ServiceClient) -> tuple[str, str]:
    if not client.lacks_service():
        return (
            "The service has no running worker: the work stays queued.",
            "Start its workers, and check their logs if they stop.",
        )
    folder = f" --data {shlex.quote(str(client.data))}" if client.data else ""
    return (
        "The work is queued, but no service is running on the data folder.",
        f"Start the service: cinestrata up{folder}",
    )
