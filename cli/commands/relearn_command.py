"""``cinestrata relearn``: learns the videos that were appended to a domain as a new domain."""

from __future__ import annotations

from pathlib import Path

from cli.commands.task_commands import find_task, report_created
from cli.connection import connect

__all__ = ["run_relearn"]


def run_relearn(domain: str, name: str | None, wait: bool, url: str | None, data: Path | None) -> None:
    """Create the task that relearns appended videos. Exits with status 1 if it does not become ready.

    Args:
        domain: Name or id of the domain's task.
        name: Name of the new domain; None derives it from that of the domain.
        wait: Whether to follow the task until it reaches a final state.
        url: URL of a running service; None works on the data folder in this process.
        data: Data folder; None takes it from the environment.
    """
    client = connect(url, data)
    task = client.relearn(find_task(client, domain).id, name)
    report_created(client, task, wait)
