"""``cinestrata keys``: create, list and revoke API keys."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cinestrata_schemas.choice_types import AccessScope
from cli.console import console, plain_table, print_json, report_errors
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from cli.service_client import ServiceClient


app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)


@app.command()
@report_errors
def create(
    name: Annotated[str, typer.Argument(help="Name of the key, which the audit log states.")],
    scope: Annotated[
        AccessScope,
        typer.Option(
            "--scope", help="search reads, ingest also changes videos and domains, admin permits all."
        ),
    ] = "search",
    days: Annotated[
        int | None,
        typer.Option("--days", min=1, max=3660, help="Days until the key expires (default: never)."),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Create a key and print it. It is not shown again: the catalog stores its hash."""
    from cinestrata_schemas.access import KeySpec
    from cli.service_client import connect

    client = connect(url, data)
    closes = scope != "admin" and not _has_administrator(client)
    created = client.create_key(KeySpec(name=name, scope=scope, expires_in_days=days))
    print_json(created)
    console.print(created.key, soft_wrap=True)
    console.print("Store this key now: it cannot be shown again.", style="dim")
    if closes:
        console.print(
            "The service now needs a key, and no key or user has the scope admin. On the machine of the data folder: "
            "cinestrata keys create NAME --scope admin --data FOLDER",
            style="yellow",
            soft_wrap=True,
        )


@app.command("list")
@report_errors
def list_(as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """List all keys of the catalog, newest first."""
    from cli.service_client import connect

    keys = connect(url, data).list_keys()
    print_json(keys)
    if not keys:
        console.print("There are no keys. `cinestrata keys create NAME` creates one.")
        return
    table = plain_table("id", "name", "scope", "state", "expires", "last used")
    for key in keys:
        table.add_row(key.id, key.name, key.scope, key.state, _day(key.expires_at), _day(key.last_used_at))
    console.print(table)


@app.command()
@report_errors
def revoke(
    name: Annotated[str, typer.Argument(help="Name or id of the key.")],
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Revoke a key. Running services refuse it within seconds, and its sessions end."""
    from cli.service_client import connect

    revoked = connect(url, data).revoke_key(name)
    print_json(revoked)
    console.print(f"The key {revoked.name} ({revoked.id}) is revoked.")


def _has_administrator(client: ServiceClient) -> bool:
    """Whether a key or a user may administer the service; the key of the environment may."""
    if os.environ.get("CINESTRATA_API_KEY"):
        return True
    keys, users = client.list_keys(), client.list_users()
    return any(key.scope == "admin" and key.state == "active" for key in keys) or any(
        user.scope == "admin" for user in users
    )


def _day(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}" if at else "never"
