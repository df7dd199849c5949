"""``cinestrata ingest``, ``sync``, ``relearn`` and ``upgrade``; pydantic and numpy are loaded when a command runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cinestrata_schemas.choice_types import VanishedVideos
from cinestrata_schemas.syncs import SyncDetails, SyncSpec
from cinestrata_schemas.tasks import ReadingSpec, RelearnSpec, UpgradeSpec
from cinestrata_schemas.uris import is_source_uri
from cli import options
from cli.console import LEFT_OUT, CommandGroup, console, fail, plain_table, print_json, refuse_call
from cli.service_client import ServiceClient, connect, print_notice

app = CommandGroup()

Read = Annotated[
    str | None,
    typer.Option(
        help="What to read from the videos: off, or some of file,location,speech,screen (default: the service's)."
    ),
]


@app.command()
def ingest(
    source: Annotated[
        str,
        typer.Argument(
            help="Manifest (JSONL, CSV or TSV), folder (local, s3:// or gs://), or archive of videos."
        ),
    ],
    name: Annotated[str | None, typer.Option(help="Domain name (default: from the path).")] = None,
    into: Annotated[str | None, typer.Option(help="Append to this learned domain (name or ID).")] = None,
    method: Annotated[str | None, typer.Option(help="Learning method (default: the service's).")] = None,
    assignments: options.MethodSettings = None,
    backbone: Annotated[
        str | None, typer.Option(help="Encoder of frames and texts (default: the service's).")
    ] = None,
    read: Read = None,
    wait: options.Wait = True,
    in_place: options.InPlace = False,
    encoding: options.Encoding = None,
    captions_from_names: options.CaptionsFromNames = False,
    strict: options.Strict = False,
    as_json: options.AsJson = False,
    url: options.Url = None,
    data: options.Data = None,
) -> None:
    """Add a domain of videos, or append videos to a domain.

    Exits with status 1 if the task does not become ready, and with status 3 if files were left out.
    """
    from cli.commands.task_commands import find_task, report_created
    from cli.commands.video_sources import (
        ARCHIVE_SUFFIXES,
        VideoTarget,
        default_name,
        open_source,
        print_left_out,
    )
    from service.syncs.source_listing import explain_left_out

    if into and (name or method or assignments or backbone or read):
        refuse_call(
            "--into cannot be combined with --name, --method, --set, --backbone or --read.",
            "Appended videos use the method, the release and the --read of the domain.",
        )
    path = None if is_source_uri(source) else Path(source)
    is_archive = path is not None and path.is_file() and path.name.endswith(ARCHIVE_SUFFIXES)
    if is_archive and (encoding or captions_from_names):
        refuse_call(
            "--encoding and --captions-from-names cannot be combined with an archive.",
            "Unpack it and pass the folder.",
        )
    settings = options.parse_settings(assignments or ())
    client = connect(url, data)
    if into:
        target = VideoTarget(client, find_task(client, into).id)
    else:
        fields = {"method": method, "settings": settings, "backbone": backbone, "read": read}
        target = VideoTarget(client, fields={"name": name or default_name(source), **fields})
    left_out: dict[str, str] = {}
    if path is not None and is_archive:
        with path.open("rb") as archive, console.status("Sending the archive …"):
            task = target.send_archive(archive, path.name)
    else:
        opened = open_source(source, encoding, captions_from_names, in_place, is_remote=url is not None)
        if strict:
            opened.listing.require_all()
        left_out = explain_left_out(opened.listing.left_out)
        print_left_out(left_out)
        task = opened.send(target, opened.listing.videos)
    report_created(client, task, wait)
    if left_out:
        raise typer.Exit(LEFT_OUT)


@app.command()
def sync(
    source: Annotated[str, typer.Argument(help="Folder of videos or its manifest: a path, s3:// or gs://.")],
    name: Annotated[str | None, typer.Option(help="Domain name (default: from the path).")] = None,
    vanished: Annotated[
        VanishedVideos, typer.Option(help="Whether to keep or delete videos whose file is gone.")
    ] = "keep",
    every: Annotated[
        str | None,
        typer.Option(
            metavar="INTERVAL",
            help="Let the service sync a source below its media root at this interval, such as 15m, 2h or 1d.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the differences without changing anything.")
    ] = False,
    compare_contents: Annotated[
        bool, typer.Option("--check", help="Read all files, also those whose size and times are unchanged.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete even if most files are gone.")] = False,
    read: Read = None,
    as_json: options.AsJson = False,
    in_place: options.InPlace = False,
    encoding: options.Encoding = None,
    captions_from_names: options.CaptionsFromNames = False,
    strict: options.Strict = False,
    url: options.Url = None,
    data: options.Data = None,
) -> None:
    """Bring a domain up to date with a folder: append new files, replace changed ones, skip unchanged ones."""
    from cli.commands.sync_command import run_sync
    from cli.commands.video_sources import default_name

    if every is not None:
        if dry_run or in_place or encoding or compare_contents or yes or strict or read:
            refuse_call(
                "--every cannot be combined with --dry-run, --check, --yes, --in-place, --encoding, --strict "
                "or --read.",
                "The service reads the source itself, as UTF-8.",
            )
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
        registered = client.register_sync(spec)
        print_json(registered)
        console.print(
            f"{registered.name} follows {registered.source} every {_format_interval(registered.every_seconds)}."
        )
        print_notice(client)
        return
    run_sync(
        source,
        name=name,
        vanished=vanished,
        dry_run=dry_run,
        in_place=in_place,
        encoding=encoding,
        captions_from_names=captions_from_names,
        compare_contents=compare_contents,
        yes=yes,
        read=read,
        strict=strict,
        url=url,
        data=data,
    )


@app.command()
def relearn(
    domain: Annotated[str, typer.Argument(help="Name or ID of the domain.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the new domain (default: from the domain's name).")
    ] = None,
    wait: options.Wait = True,
    as_json: options.AsJson = False,
    url: options.Url = None,
    data: options.Data = None,
) -> None:
    """Learn a domain's appended videos as a new domain, and move them there."""
    from cli.commands.task_commands import find_task, report_created

    client = connect(url, data)
    report_created(
        client, client.relearn_task(find_task(client, domain).id, body=RelearnSpec(name=name)), wait
    )


@app.command()
def upgrade(
    domain: Annotated[str | None, typer.Argument(help="Name or ID of the domain.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Encoder of frames and texts (default: the service's).")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Learning method (default: the domain's).")] = None,
    assignments: options.MethodSettings = None,
    every: Annotated[
        bool, typer.Option("--all", help="Upgrade all domains that are on another backbone, one by one.")
    ] = False,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial", help="Leave videos whose files are gone as they are; both stay searchable."
        ),
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the domain's last upgrade.")] = False,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Keep the upgrade for good, and free the space of the old vectors."),
    ] = False,
    wait: options.Wait = True,
    as_json: options.AsJson = False,
    url: options.Url = None,
    data: options.Data = None,
) -> None:
    """Learn a domain again with another backbone or method. It stays searchable meanwhile.

    Exits with status 1 if an upgrade does not become ready. The domain then stays as it was.
    """
    from cinestrata_client import ConflictError
    from cli.commands.task_commands import find_task, report_created

    if (domain is None) != every or undo + accept + bool(
        backbone or method or assignments or every or partial
    ) > 1:
        refuse_call(
            "Name a domain, or pass --all; --undo and --accept cannot be combined with anything else.",
            "Example: cinestrata upgrade street --backbone lite2",
        )
    client = connect(url, data)
    chosen = options.parse_settings(assignments or ())
    spec = UpgradeSpec(backbone=backbone, method=method, settings=chosen, partial=partial)
    if domain is None:
        failures = 0
        for task in client.list_tasks(kind="domain", state=["ready"]):
            if task.counts.accepted:
                try:
                    report_created(client, client.upgrade_task(task.id, body=spec), wait)
                except ConflictError as error:  # for example, it has this backbone already
                    console.print(f"{task.name}: {error.detail}")
                except typer.Exit:
                    failures += 1
        raise typer.Exit(min(failures, 1))
    task = find_task(client, domain)
    if undo or accept:
        task = client.undo_upgrade(task.id) if undo else client.accept_upgrade(task.id)
        print_json(task)
        console.print(f"{task.name}: backbone {task.backbone}, method {task.method}")
        return
    report_created(client, client.upgrade_task(task.id, body=spec), wait)


@app.command()
def read(
    domain: Annotated[str, typer.Argument(help="Name or ID of the domain.")],
    what: Annotated[
        str | None, typer.Option("--read", help="Also from now on: some of file,location,speech,screen.")
    ] = None,
    speech_model: Annotated[
        str | None,
        typer.Option(
            help="Transcribe all speech again with this model of faster-whisper, such as large-v3-turbo."
        ),
    ] = None,
    subtitled: Annotated[
        bool, typer.Option("--subtitled", help="Transcribe videos with subtitles, too.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Read videos again where that failed.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Stop reading; what was read stays.")] = False,
    as_json: options.AsJson = False,
    url: options.Url = None,
    data: options.Data = None,
) -> None:
    """Read a domain's videos that were not read yet: their files' texts, speech, and text in the picture."""
    from cli.commands.task_commands import find_task

    if cancel and (what or speech_model or subtitled or retry):
        refuse_call(
            "--cancel cannot be combined with other options.", "Example: cinestrata read street --cancel"
        )
    client = connect(url, data)
    task = find_task(client, domain)
    spec = ReadingSpec(read=what, speech_model=speech_model, retry=retry, subtitled=subtitled)
    reading = client.cancel_reading(task.id) if cancel else client.start_reading(task.id, body=spec)
    print_json(reading)
    console.print(f"{task.name}: {reading.done} of {reading.total} videos are read, {reading.failed} failed.")
    for source, reason in reading.unavailable.items():
        console.print(f"{source} is not read: {reason}")
    print_notice(client)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command()
def syncs(
    removed: Annotated[
        str | None,
        typer.Option(
            "--remove",
            metavar="NAME",
            help="Remove the sync of this domain, or with this ID. The domain and its videos stay.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    url: options.Url = None,
    data: options.Data = None,
) -> None:
    """List registered syncs with their last and next run. Register one with `cinestrata sync --every`."""
    client = connect(url, data)
    if removed is not None:
        client.remove_sync(removed)
        print_json({"removed": removed})
        console.print(f"The sync {removed} was removed. Its domain and videos stay.")
        return
    table = plain_table("domain", "source", "every", "last run", "next run", "files")
    registered = client.list_syncs()
    print_json(registered)
    for sync in registered:
        table.add_row(
            sync.name,
            sync.source,
            _format_interval(sync.every_seconds),
            "running" if sync.running else _format_time(sync.finished_at),
            _format_time(sync.next_run_at),
            Text(sync.error, style="red") if sync.error else Text(_format_counts(sync)),
        )
    console.print(table)


def _require_own_name(client: ServiceClient, spec: SyncSpec) -> None:
    """Exit with status 1 if another folder has given a domain its name."""
    from cli.commands.sync_command import find_domain
    from service.core.text_rules import name_key

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
