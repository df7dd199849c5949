"""``cinestrata keys`` and ``users``: API keys, and users of the dashboard."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cinestrata_schemas.choice_types import AccessScope
from cli.console import console, plain_table, print_json, refuse_call, report_errors
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from pydantic import SecretStr

    from cli.service_client import ServiceClient

keys = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)


@keys.command("create")
@report_errors
def create_key(
    name: Annotated[str, typer.Argument(help="Name of the key, as shown in the audit log.")],
    scope: Annotated[
        AccessScope,
        typer.Option(
            "--scope", help="search: read only; ingest: also change videos and domains; admin: everything."
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
    """Create a key and print it. It is shown only once, because the catalog stores its hash."""
    from cinestrata_schemas.access import KeySpec
    from cli.service_client import connect

    client = connect(url, data)
    closes = scope != "admin" and not _has_administrator(client)
    created = client.create_key(KeySpec(name=name, scope=scope, expires_in_days=days))
    print_json(created)
    console.print(created.key, soft_wrap=True)
    console.print("Save this key now: it can't be shown again.", style="dim")
    if closes:
        console.print(
            "The service now requires a key, and no key or user has the scope admin. On the machine "
            "with the data folder, run: cinestrata keys create NAME --scope admin --data FOLDER",
            style="yellow",
            soft_wrap=True,
        )


@keys.command("list")
@report_errors
def list_keys(as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """List all keys, newest first."""
    from cli.service_client import connect

    found = connect(url, data).list_keys()
    print_json(found)
    if not found:
        console.print("No keys yet. Create one with `cinestrata keys create NAME`.")
        return
    table = plain_table("id", "name", "scope", "state", "expires", "last used")
    for key in found:
        table.add_row(key.id, key.name, key.scope, key.state, _day(key.expires_at), _day(key.last_used_at))
    console.print(table)


@keys.command("revoke")
@report_errors
def revoke_key(
    name: Annotated[str, typer.Argument(help="Name or ID of the key.")],
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Revoke a key. Running services refuse it within seconds and end its sessions."""
    from cli.service_client import connect

    revoked = connect(url, data).revoke_key(name)
    print_json(revoked)
    console.print(f"The key {revoked.name} ({revoked.id}) is revoked.")


def _has_administrator(client: ServiceClient) -> bool:
    """Return whether a key or user may administer the service; the key in the environment may."""
    if os.environ.get("CINESTRATA_API_KEY"):
        return True
    return any(key.scope == "admin" and key.state == "active" for key in client.list_keys()) or any(
        user.scope == "admin" for user in client.list_users()
    )


def _day(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}" if at else "never"


users = typer.Typer(help="Create, list, change and remove users of the dashboard.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="Name of the user.")]


@users.command("create")
@report_errors
def create_user(
    name: _Name,
    scope: Annotated[
        AccessScope, typer.Option("--scope", help="Role of the user: a scope, as for keys.")
    ] = "search",
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Create a user. Prompts for the password, or reads it from the first line of standard input."""
    from cinestrata_schemas.access import UserSpec
    from cli.service_client import connect

    created = connect(url, data).create_user(UserSpec(name=name, password=_read_password(), scope=scope))
    print_json(created)
    console.print(f"{created.name} can sign in with the scope {created.scope}.")


@users.command("list")
@report_errors
def list_users(as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """List all users by name."""
    from cli.service_client import connect

    found = connect(url, data).list_users()
    print_json(found)
    if not found:
        console.print("No users yet. Create one with `cinestrata users create NAME`.")
        return
    table = plain_table("name", "scope", "signs in with", "last sign-in", "sessions")
    for user in found:
        table.add_row(
            user.name,
            user.scope,
            user.provider or "password",
            _day(user.last_sign_in_at),
            str(user.sessions),
        )
    console.print(table)


@users.command("set")
@report_errors
def edit_user(
    name: _Name,
    scope: Annotated[AccessScope | None, typer.Option("--scope", help="New role of the user.")] = None,
    has_password: Annotated[
        bool,
        typer.Option("--password", help="Prompt for a new password, and end all of the user's sessions."),
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Change a user's role or password."""
    from cinestrata_schemas.access import UserPatch
    from cli.service_client import connect

    if scope is None and not has_password:
        refuse_call("Nothing was changed.", "Use --scope or --password.")
    password = _read_password() if has_password else None
    fields = {"scope": scope, "password": password}
    changed = connect(url, data).edit_user(
        name, UserPatch.model_validate({key: value for key, value in fields.items() if value is not None})
    )
    print_json(changed)
    ended = "; all sessions have ended" if has_password else ""
    console.print(f"{changed.name} has the scope {changed.scope}{ended}.")


@users.command("remove")
@report_errors
def remove_user(name: _Name, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Remove a user and end all of their sessions."""
    from cli.service_client import connect

    removed = connect(url, data).remove_user(name)
    print_json(removed)
    console.print(f"The user {removed.name} is removed.")


def _read_password() -> SecretStr:
    """Read the password from a prompt, asking twice, or from a pipe."""
    from pydantic import SecretStr

    if sys.stdin.isatty():
        return SecretStr(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return SecretStr(sys.stdin.readline().rstrip("\n"))
