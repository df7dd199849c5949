"""``cinestrata ingest``, ``sync`` and ``relearn``: names and options; the implementations load pydantic and numpy."""

from __future__ import annotations

from typing import Annotated

import typer

from cinestrata_schemas.choice_types import VanishedVideos
from cli.commands import registered_sync_commands
from cli.console import refuse_call, report_errors
from cli.shared_options import (
    AsJson,
    CaptionsFromNames,
    Data,
    Encoding,
    InPlace,
    MethodSettings,
    Strict,
    Url,
    Wait,
)

app = typer.Typer()


@app.command()
@report_errors
def ingest(
    source: Annotated[
        str,
        typer.Argument(
            help="Manifest (JSONL, CSV, TSV, Parquet or Excel), folder (local, s3:// or gs://), or archive of videos."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the domain (default: from the path).")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", help="Append the videos to this learned domain (name or ID)."),
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="Learning method (default: the service's default).")
    ] = None,
    assignments: MethodSettings = None,
    wait: Wait = True,
    in_place: InPlace = False,
    encoding: Encoding = None,
    captions_from_names: CaptionsFromNames = False,
    strict: Strict = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Add a domain of videos, or append videos to a domain."""
    from cli.commands.ingest_command import run_ingest

    run_ingest(
        source,
        name,
        into,
        method,
        assignments or (),
        wait,
        in_place,
        encoding,
        captions_from_names,
        strict,
        url,
        data,
    )


@app.command()
@report_errors
def sync(
    source: Annotated[str, typer.Argument(help="Folder of videos or its manifest: a path, s3:// or gs://.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the domain (default: from the path).")
    ] = None,
    vanished: Annotated[
        VanishedVideos,
        typer.Option("--vanished", help="Whether to keep or delete videos whose file is gone."),
    ] = "keep",
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
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
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete without a question even if most files are gone.")
    ] = False,
    as_json: AsJson = False,
    in_place: InPlace = False,
    encoding: Encoding = None,
    captions_from_names: CaptionsFromNames = False,
    strict: Strict = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Bring a domain up to date with a folder: append new files, replace changed ones, skip unchanged ones."""
    from cli.commands.sync_command import run_sync

    if every is not None:
        if dry_run or in_place or encoding or compare_contents or yes or strict:
            refuse_call(
                "--every cannot be combined with --dry-run, --check, --yes, --in-place, --encoding or --strict.",
                "The service reads the source itself, as UTF-8.",
            )
        registered_sync_commands.run_register(source, name, every, vanished, captions_from_names, url, data)
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
        strict=strict,
        url=url,
        data=data,
    )


@app.command()
@report_errors
def relearn(
    domain: Annotated[str, typer.Argument(help="Name or ID of the domain.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new domain (default: from the domain's name).")
    ] = None,
    wait: Wait = True,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Learn a domain's appended videos as a new domain, and move them there."""
    from cinestrata_schemas.tasks import RelearnSpec
    from cli.commands.task_commands import find_task, report_created
    from cli.service_client import connect

    client = connect(url, data)
    report_created(
        client, client.relearn_task(find_task(client, domain).id, body=RelearnSpec(name=name)), wait
    )
