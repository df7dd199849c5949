"""``cinestrata snapshots``: snapshots that the service stores in its data folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cli.console import console, fail, plain_table, print_json, report_errors
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from cli.service_client import ServiceClient


app = typer.Typer()


@app.command()
@report_errors
def snapshots(
    downloaded: Annotated[
        str | None,
        typer.Option(
            "--download",
            metavar="NAME",
            help="Write this snapshot, or the `newest`, to a new file for `restore`.",
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--to", help="New file of --download (default: the name of the snapshot in this folder)."
        ),
    ] = None,
    deleted: Annotated[
        str | None, typer.Option("--delete", metavar="NAME", help="Permanently delete this stored snapshot.")
    ] = None,
    confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List the snapshots that a service stores, newest first; download or delete one.

    `cinestrata snapshot --url` and the library page write them.
    """
    from cli.service_client import connect

    client = connect(url, data)
    if downloaded is not None:
        name = _find(client, downloaded)
        file = target or Path(name)
        download_to(client, name, file)
        print_json({"snapshot": name, "path": str(file), "bytes": file.stat().st_size})
        console.print(f"{file}: {file.stat().st_size:,} bytes", soft_wrap=True)
    elif deleted is not None:
        name = _find(client, deleted)
        if not confirmed:
            typer.confirm(f"Permanently delete {name}?", abort=True, err=True)
        client.delete_snapshot(name)
        print_json({"deleted": name})
        console.print(f"{name} was deleted.")
    else:
        _list(client)


def _list(client: ServiceClient) -> None:
    stored = client.list_snapshots()
    print_json(stored)
    table = plain_table("snapshot", "written")
    table.add_column("MB", justify="right")
    for snapshot in stored:
        table.add_row(
            snapshot.name,
            f"{snapshot.created_at.astimezone():%Y-%m-%d %H:%M}",
            f"{snapshot.bytes / 1e6:,.1f}",
        )
    console.print(table if stored else "There are no stored snapshots.")


def download_to(client: ServiceClient, name: str, target: Path) -> None:
    """Write a stored snapshot to a new file; exits with an error if it exists. After an error nothing is left of it."""
    try:
        # It contains the catalog with hashes of keys and the secrets of webhooks.
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(f"{target} exists already.", "Nothing was downloaded. Name a new file.")
    except OSError as error:
        _fail_to_write(target, error)
    try:
        with os.fdopen(descriptor, "wb") as file:
            client.download_snapshot(name, file)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, OSError):
            _fail_to_write(target, error)
        raise


def _fail_to_write(target: Path, error: OSError) -> NoReturn:
    fail(f"{target} cannot be written: {error.strerror}.", "Name a file on a disk that this user can write.")


def _find(client: ServiceClient, name: str) -> str:
    names = [snapshot.name for snapshot in client.list_snapshots()]
    if name == "newest" and names:
        return names[0]
    if name not in names:
        fail(f"There is no stored snapshot {name!r}.", "See `cinestrata snapshots`.")
    return name
