"""``cinestrata audit``: entries of the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.connection import connect
from cli.console import console, plain_table

if TYPE_CHECKING:
    from cli.service_client import ServiceClient
    from service.core.schemas import AuditRecord

__all__ = ["run_audit"]

_PAGE = 1000  # entries
_MAX_DETAIL_CHARS = 60


def run_audit(
    conditions: dict[str, Any], limit: int, as_json_lines: bool, url: str | None, data: Path | None
) -> None:
    """Print entries of the audit log: the newest as a table, or all as JSON lines, oldest first.

    Args:
        conditions: Parameters of ``GET /audit``; values None are omitted.
        limit: Maximum number of entries of the table.
        as_json_lines: Whether all entries are printed as JSON lines.
        url: URL of a running service; None works on the data folder in this process.
        data: Data folder; None takes it from the environment.
    """
    client = connect(url, data)
    chosen = {name: value for name, value in conditions.items() if value is not None}
    if as_json_lines:
        for entry in _all_entries(client, chosen):
            print(entry.model_dump_json())
        return
    entries = client.audit(limit=limit, **chosen).entries
    if not entries:
        console.print("The audit log has no such entries.")
        return
    _print_table(entries)


def _all_entries(client: ServiceClient, conditions: dict[str, Any]) -> Iterator[AuditRecord]:
    paging: dict[str, Any] = {"sort": "time", "limit": _PAGE}
    while True:
        page = client.audit(**conditions, **paging)
        yield from page.entries
        if page.next_cursor is None:
            return
        paging["cursor"] = page.next_cursor


def _print_table(entries: list[AuditRecord]) -> None:
    table = plain_table("time", "actor", "address", "action", "target", "details")
    for entry in entries:
        details = json.dumps(entry.details, ensure_ascii=False)[1:-1]
        table.add_row(
            f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}",
            f"{entry.actor} ({entry.actor_kind})" if entry.actor != entry.actor_kind else entry.actor,
            entry.address or "",
            entry.action,
            entry.target,
            details if len(details) <= _MAX_DETAIL_CHARS else details[: _MAX_DETAIL_CHARS - 1] + "…",
        )
    console.print(table)
