"""``cinestrata syncs``: list and remove registered syncs, which ``cinestrata sync --every`` creates."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cinestrata_schemas.choice_types import VanishedVideos
from cli.console import console, fail, plain_table, print_json, refuse_call, report_errors
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from cinestrata_schemas.syncs import SyncDetails, SyncSpec
    from cli.service_client import ServiceClient


app = typer.Typer()


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command()
@report_errors
def syncs(
    removed: Annotated[
        str | None,
        typer.Option(
            "--remove",
            metavar="NAME",
            help="Remove the sync of this domain, or with this ID. The domain and its videos stay.",
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List registered syncs with their last and next run. Register one with `cinestrata sync --every`."""
    from rich.text import Text

    from cli.service_client import connect

    client = connect(url, data)
    if removed is not None:
        client.remove_sync(removed)
        print_json({"removed": removed})
        console.print(f"The sync {removed} was removed. Its domain and videos stay.")
        return
    table = plain_table("domain", "source", "every", "last run", "next run", "files")
    found = client.list_syncs()
    print_json(found)
    for sync in found:
        table.add_row(
            sync.name,
            sync.source,
            _format_interval(sync.every_seconds),
            "running" if sync.running else _format_time(sync.finished_at),
            _format_time(sync.next_run_at),
            Text(sync.error, style="red") if sync.error else Text(_format_counts(sync)),
        )
    console.print(table)


def run_register(
    source: str,
    name: str | None,
    every: str,
    vanished: VanishedVideos,
    captions_from_names: bool,
    url: str | None,
    data: Path | None,
) -> None:
    """Register a sync that workers run at an interval, such as ``15m``."""
    from cinestrata_schemas.syncs import SyncSpec
    from cli.commands.domain_naming import default_name
    from cli.missing_workers import print_notice
    from cli.service_client import connect

    spec = SyncSpec(
        name=name or default_name(source),
        source=str(Path(source).resolve()) if Path(source).exists() else source,
        every_seconds=parse_interval(every),
        vanished=vanished,
        captions_from_names=captions_from_names,
    )
    client = connect(url, data)
    if name is None:
        _require_own_name(client, spec)
    sync = client.register_sync(spec)
    print_json(sync)
    console.print(f"{sync.name} follows {sync.source} every {_format_interval(sync.every_seconds)}.")
    print_notice(client)


def _require_own_name(client: ServiceClient, spec: SyncSpec) -> None:
    """Exit with status 1 if another folder has given a domain its name."""
    from cli.commands.sync_command import find_domain
    from service.core.domain_names import name_key

    domain = find_domain(client, spec.name)
    followed = {sync.source for sync in client.list_syncs() if name_key(sync.name) == name_key(spec.name)}
    followed |= {row.source for row in client.list_synced_sources() if domain and row.task_id == domain.id}
    others = [source for source in followed if source.rstrip("/") != spec.source.rstrip("/")]
    if others and len(others) == len(followed):
        fail(
            f"The domain {spec.name!r} follows another folder: {others[0]}.",
            f"Nothing was changed. Choose another name, or follow this folder instead with --name {spec.name!r}.",
        )


def parse_interval(text: str) -> int:
    """Convert an interval such as ``90s``, ``15m``, ``2h`` or ``1d`` to seconds; at least a minute."""
    match = re.fullmatch(r"(\d{1,7})([smhd])", text.strip())
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 60 <= seconds <= 366 * _UNITS["d"]:
        refuse_call(
            f"--every {text} is not an interval between a minute and a year.",
            "Write a number and a unit, such as 15m, 2h or 1d.",
        )
    return seconds


def _format_interval(seconds: int) -> str:
    unit = next(unit for unit in ("d", "h", "m", "s") if seconds % _UNITS[unit] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


def _format_time(at: datetime | None) -> str:
    if at is None:
        return "never"
    seconds = (at - datetime.now(UTC)).total_seconds()
    unit = next((unit for unit in ("d", "h", "m") if abs(seconds) >= _UNITS[unit]), "s")
    amount = f"{abs(seconds) / _UNITS[unit]:.0f} {unit}"
    return f"in {amount}" if seconds > 0 else f"{amount} ago"


def _format_counts(sync: SyncDetails) -> str:
    if sync.counts is None:
        return ""
    counts = sync.counts.model_dump(exclude={"left_out_files", "notice"})
    text = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items() if number)
    problems = [f"{file.path}: {file.reason}" for file in sync.counts.left_out_files[:3]]
    return "\n".join([text, *problems, *filter(None, [sync.counts.notice])])
