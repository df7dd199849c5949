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

__all__ = ["app", "download_to"]

app = typer.Typer(help="List, download and delete the snapshots that a service stores.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Name of the snapshot, or `newest`.")]


@app.command("list")
@report_errors
def list_(as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """List the stored snapshots, newest first. `cinestrata snapshot --url` and the library page write them."""
    from cli.connection import connect

    snapshots = connect(url, data).snapshots()
    print_json(snapshots)
    table = plain_table("snapshot", "written")
    table.add_column("MB", justify="right")
    for snapshot in snapshots:
        table.add_row(
            snapshot.name,
            f"{snapshot.created_at.astimezone():%Y-%m-%d %H:%M}",
            f"{snapshot.bytes / 1e6:,.1f}",
        )
    console.print(table if snapshots else "There are no stored snapshots.")


@app.command()
@report_errors
def download(
    snapshot: _Name,
    target: Annotated[
        Path | None, typer.Argument(help="New file (default: the name of the snapshot in this folder).")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Write a stored snapshot to a new file, which `cinestrata restore` reads."""
    from cli.connection import connect

    client = connect(url, data)
    name = _find(client, snapshot)
    file = target or Path(name)
    download_to(client, name, file)
    print_json({"snapshot": name, "path": str(file), "bytes": file.stat().st_size})
    console.print(f"{file}: {file.stat().st_size:,} bytes", soft_wrap=True)


@app.command()
@report_errors
def delete(
    snapshot: _Name,
    confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Permanently delete a stored snapshot."""
    from cli.connection import connect

    client = connect(url, data)
    name = _find(client, snapshot)
    if not confirmed:
        typer.confirm(f"Permanently delete {name}?", abort=True, err=True)
    client.delete_snapshot(name)
    print_json({"deleted": name})
    console.print(f"{name} was deleted.")


def download_to(client: ServiceClient, name: str, target: Path) -> None:
    """Write a stored snapshot to a new file; exits with an error if it exists. After an error nothing is left of it.

    Args:
        client: Client of the service that stores the snapshot.
        name: Name of the snapshot.
        target: Path of the file.
    """
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
    names = [snapshot.name for snapshot in client.snapshots()]
    if name == "newest" and names:
        return names[0]
    if name not in names:
        fail(f"There is no stored snapshot {name!r}.", "See `cinestrata snapshots list`.")
    return name
