"""``cinestrata audit``: entries of the audit log."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.console import console, report_errors
from cli.service_client import connect
from cli.shared_options import (
    Data,
    Url,
)

if TYPE_CHECKING:
    from cinestrata_schemas.access import AuditRecord

_PAGE = 1000  # entries
_COLUMNS = 80
_WIDTHS = (18, 17, 20)  # columns of actor, action and target, after the time
_INDENT = "    "
_MAX_DETAIL_COLUMNS = 300


app = typer.Typer()


@app.command()
@report_errors
def audit(
    actor: Annotated[
        str | None, typer.Option("--actor", help="Only changes by this user, key or process.")
    ] = None,
    action: Annotated[
        list[str] | None,
        typer.Option(
            "--action",
            help="Only this action, such as task.delete, or a resource, such as task; may be repeated.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only changes to the resource with this ID.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Only requests from this network address.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Only entries containing this text.")] = None,
    after: Annotated[datetime | None, typer.Option("--after", help="Earliest time (UTC).")] = None,
    before: Annotated[datetime | None, typer.Option("--before", help="Latest time (UTC).")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of entries.")] = 50,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print all entries as JSON lines, oldest first; --limit is ignored."),
    ] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List changes with actor, time and address, newest first."""
    conditions = {
        "actor": actor,
        "action": action or None,
        "target": target,
        "address": address,
        "text": text,
        "after": after,
        "before": before,
    }
    run_audit(conditions, limit, as_json, url, data)


def run_audit(
    conditions: dict[str, Any], limit: int, as_json_lines: bool, url: str | None, data: Path | None
) -> None:
    """Print entries of the audit log: the newest as rows with details, or all as JSON lines, oldest first.

    Args:
        conditions: Parameters of ``GET /audit``; None values are omitted.
        as_json_lines: Whether all entries are printed as JSON lines.
        url: URL of a running service; None: use the data folder in this process.
        data: Data folder; None: from the environment.
    """
    client = connect(url, data)
    chosen = {name: value for name, value in conditions.items() if value is not None}
    if as_json_lines:
        for entry in client.iter_audit_entries(sort="time", limit=_PAGE, **chosen):
            print(entry.model_dump_json())
        return
    entries = client.list_audit_entries(limit=limit, **chosen).entries
    if not entries:
        console.print("No entries match.")
        return
    _print_entries(entries)


def _print_entries(entries: list[AuditRecord]) -> None:
    """Print an 80-column row per entry with details on indented lines, even to a wider terminal or a file."""
    console.print(_row("time", "actor", "action", "target"), style="dim", soft_wrap=True)
    for entry in entries:
        at = f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S}"
        console.print(_row(at, _actor(entry), entry.action, entry.target), soft_wrap=True)
        for line in _detail_lines(entry):
            console.print(_INDENT + line, style="dim", soft_wrap=True)


def _row(time: str, *cells: str) -> str:
    columns = (_shortened(cell, width, pad=True) for cell, width in zip(cells, _WIDTHS, strict=True))
    return "  ".join([f"{time:19}", *columns]).rstrip()


def _detail_lines(entry: AuditRecord) -> list[str]:
    """Return the address, shortened names and details on as few lines as possible."""
    from rich.cells import cell_len
    from rich.text import Text

    names = ((_actor(entry), _WIDTHS[0]), (entry.target, _WIDTHS[2]))
    parts = (
        f"from {entry.address}" if entry.address else "",
        *(_printable(name) for name, width in names if cell_len(name) > width),
        _shortened(json.dumps(entry.details, ensure_ascii=False)[1:-1], _MAX_DETAIL_COLUMNS),
    )
    lines = Text("  ".join(filter(None, parts))).wrap(console, _COLUMNS - len(_INDENT), overflow="fold")
    return [line.plain.rstrip() for line in lines if line.plain.strip()]


def _actor(entry: AuditRecord) -> str:
    return f"{entry.actor} ({entry.actor_kind})" if entry.actor != entry.actor_kind else entry.actor


def _shortened(text: str, width: int, *, pad: bool = False) -> str:
    from rich.text import Text

    cell = Text(_printable(text))
    cell.truncate(width, overflow="ellipsis", pad=pad)
    return cell.plain


def _printable(text: str) -> str:
    """Put a text on one line, because control characters would break the columns."""
    return "".join(character if character.isprintable() else " " for character in text)
