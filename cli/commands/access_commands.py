"""``cinestrata keys create`` and ``users create``: API keys, and users of the dashboard."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from pydantic import SecretStr

from cinestrata_schemas.access import KeySpec, UserSpec
from cinestrata_schemas.choice_types import AccessScope
from cli.console import CommandGroup, console, print_json
from cli.service_client import ServiceClient, connect
from cli.shared_options import AsJson, Data, Url

keys = CommandGroup(help="Create API keys.", no_args_is_help=True)


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Name of the key, as shown in the audit log.")],
    scope: Annotated[
        AccessScope, typer.Option(help="search: read; ingest: also change the library; admin: all.")
    ] = "search",
    days: Annotated[
        int | None, typer.Option(min=1, max=3660, help="Days until the key expires (default: never).")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Create a key and print it. It is shown only once, because the catalog stores its hash."""
    client = connect(url, data)
    closes = scope != "admin" and not _has_administrator(client)
    created = client.create_key(KeySpec(name=name, scope=scope, expires_in_days=days))
    print_json(created)
    console.say(created.key)
    console.print("Save this key now: it can't be shown again.", style="dim")
    if closes:
        console.say(
            "The service now requires a key, and no key or user has the scope admin. On the machine "
            "with the data folder, run: cinestrata keys create NAME --scope admin --data FOLDER",
            style="yellow",
        )


def _has_administrator(client: ServiceClient) -> bool:
    """Return whether a key or user may administer the service; the key in the environment may."""
    if os.environ.get("CINESTRATA_API_KEY"):
        return True
    return any(key.scope == "admin" and key.state == "active" for key in client.list_keys()) or any(
        user.scope == "admin" for user in client.list_users()
    )


users = CommandGroup(help="Create users of the dashboard.", no_args_is_help=True)


@users.command("create")
def create_user(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    scope: Annotated[AccessScope, typer.Option(help="Role: a scope, as for keys.")] = "search",
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Create a user. Prompts for the password, or reads it from the first line of standard input."""
    created = connect(url, data).create_user(UserSpec(name=name, password=_read_password(), scope=scope))
    print_json(created)
    console.print(f"{created.name} can sign in with the scope {created.scope}.")


def _read_password() -> SecretStr:
    """Read the password from a prompt, asking twice, or from a pipe."""
    if sys.stdin.isatty():
        return SecretStr(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return SecretStr(sys.stdin.readline().rstrip("\n"))
