"""``cinestrata users``: users of the dashboard."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cinestrata_schemas.choice_types import AccessScope
from cli.console import console, plain_table, print_json, refuse_call, report_errors
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from pydantic import SecretStr


app = typer.Typer(help="Create, list, change and remove users of the dashboard.", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(help="Name of the user.")]


@app.command()
@report_errors
def create(
    name: _Name,
    scope: Annotated[
        AccessScope, typer.Option("--scope", help="Role of the user: a scope, as of a key.")
    ] = "search",
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Create a user. The password is asked for, or read from the first line of the standard input."""
    from cinestrata_schemas.access import UserSpec
    from cli.service_client import connect

    created = connect(url, data).create_user(UserSpec(name=name, password=_read_password(), scope=scope))
    print_json(created)
    console.print(f"{created.name} can sign in with the scope {created.scope}.")


@app.command("list")
@report_errors
def list_(as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """List all users by name."""
    from cli.service_client import connect

    users = connect(url, data).list_users()
    print_json(users)
    if not users:
        console.print("There are no users. `cinestrata users create NAME` creates one.")
        return
    table = plain_table("name", "scope", "signs in with", "last sign-in", "sessions")
    for user in users:
        at = user.last_sign_in_at
        table.add_row(
            user.name,
            user.scope,
            user.provider or "password",
            f"{at.astimezone():%Y-%m-%d %H:%M}" if at else "never",
            str(user.sessions),
        )
    console.print(table)


@app.command("set")
@report_errors
def set_(
    name: _Name,
    scope: Annotated[AccessScope | None, typer.Option("--scope", help="New role of the user.")] = None,
    has_password: Annotated[
        bool, typer.Option("--password", help="Ask for a new password, and end all sessions of the user.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Change the role or the password of a user."""
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


@app.command()
@report_errors
def remove(name: _Name, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Remove a user and end all sessions of the user."""
    from cli.service_client import connect

    removed = connect(url, data).remove_user(name)
    print_json(removed)
    console.print(f"The user {removed.name} is removed.")


def _read_password() -> SecretStr:
    """The password of a prompt, which is asked for twice, or of a pipe."""
    from pydantic import SecretStr

    if sys.stdin.isatty():
        return SecretStr(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return SecretStr(sys.stdin.readline().rstrip("\n"))
