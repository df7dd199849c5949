"""Requests of the HTTP API (``api``), keys and users (``keys create``, ``users create``), and agents (``mcp``)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import typer
from pydantic import SecretStr

from cinestrata_schemas.access import KeySpec, UserSpec
from cinestrata_schemas.choice_types import AccessScope
from cli.console import CommandGroup, console, fail, print_json, refuse_call
from cli.options import AsJson, Data, Url, parse_value
from cli.service_client import connect, open_agent_api

app = CommandGroup()

_PREFIX = "/v1"


@app.command()
def api(
    method: Annotated[Literal["GET", "POST", "PUT", "PATCH", "DELETE"], typer.Argument(help="HTTP method.")],
    path: Annotated[str, typer.Argument(help="Path of the API, such as /webhooks.")],
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE...",
            help="Query parameters of GET and DELETE, otherwise fields of a JSON body. Values of a body are JSON if "
            "possible. @FILE reads a value from a file, @- from standard input.",
            show_default=False,
        ),
    ] = None,
    body: Annotated[
        str | None,
        typer.Option("--input", metavar="FILE", help="Send this file as the body; - for standard input."),
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this new file.")] = None,
    all_pages: Annotated[
        bool, typer.Option("--paginate", help="Also request the following pages; each is a JSON document.")
    ] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Send a request of the HTTP API and print its response, which is JSON in most cases.

    https://…/docs of a service describes the requests.
    """
    values = _parse_fields(fields or ())
    in_query = method in ("GET", "DELETE")
    options: dict[str, Any] = {}
    if body is not None or (values and not in_query):
        document = {
            name: parse_value(text) if isinstance(text, str) else [*map(parse_value, text)]
            for name, text in values.items()
        }
        options["content"] = _read(body) if body is not None else json.dumps(document).encode()
        options["headers"] = {"Content-Type": "application/json"}
    client = connect(url, data)
    first = httpx.URL(f"/{path.lstrip('/')}".removeprefix(_PREFIX))
    target: str | None = str(first.copy_merge_params(values) if in_query and values else first)
    while target is not None:
        with client.stream(method, target, **options) as response:
            _write(response, output)
            following = response.links.get("next", {}).get("url") if all_pages else None
        # The link is the path of the request with other parameters.
        target = None if following is None else f"{target.partition('?')[0]}?{following.partition('?')[2]}"


@app.command()
def mcp(data: Data = None, url: Url = None) -> None:
    """Serve the library to an agent over standard input and output (Model Context Protocol)."""
    from api.agents.library_tools import create_agent_server
    from service.core.process_setup import configure_logging

    configure_logging("console", "WARNING")  # to standard error: standard output belongs to the protocol
    create_agent_server(open_agent_api(url, data)).run("stdio")


def _parse_fields(assignments: Sequence[str]) -> dict[str, str | list[str]]:
    """Parse ``NAME=VALUE``; a name that is repeated has a list of values."""
    fields: dict[str, str | list[str]] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not name or not equals:
            refuse_call(f"{assignment} is not an assignment.", "Write name=value, for example: limit=5")
        value = _read(text[1:]).decode().rstrip("\n") if text.startswith("@") else text
        earlier = fields.get(name)
        fields[name] = (
            value if earlier is None else [*([earlier] if isinstance(earlier, str) else earlier), value]
        )
    return fields


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        refuse_call(f"{name} cannot be read: {error.strerror}.")


def _write(response: httpx.Response, output: Path | None) -> None:
    if output is not None:
        write_new_file(response, output)
        console.say(f"{output}: {output.stat().st_size:,} bytes")
        return
    content = response.read()
    if "json" in response.headers.get("Content-Type", ""):
        # Escapes of characters above ASCII would hide the texts of most languages; control characters stay escaped.
        typer.echo(json.dumps(response.json(), indent=2, ensure_ascii=False))
    elif content:
        typer.echo(content, nl=False)


def write_new_file(response: httpx.Response, target: Path) -> None:
    """Write a response to a new file that only its owner can read; an error leaves nothing behind."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(f"{target} already exists.", "Nothing was written. Choose a new file.")
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror}.", "Choose a file that this user can write to.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            for block in response.iter_bytes():
                file.write(block)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, OSError):
            fail(f"{target} cannot be written: {error.strerror}.", "Choose a disk with enough space.")
        raise


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
    # The key in the environment may administer the service, too.
    closes = scope != "admin" and not (
        os.environ.get("CINESTRATA_API_KEY")
        or any(key.scope == "admin" and key.state == "active" for key in client.list_keys())
        or any(user.scope == "admin" for user in client.list_users())
    )
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
    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    spec = UserSpec(name=name, password=SecretStr(password), scope=scope)
    created = connect(url, data).create_user(spec)
    print_json(created)
    console.print(f"{created.name} can sign in with the scope {created.scope}.")
