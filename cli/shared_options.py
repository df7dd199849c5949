"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.console import console

__all__ = [
    "AsJson",
    "CaptionsFromNames",
    "Data",
    "Encoding",
    "Host",
    "InPlace",
    "MethodSettings",
    "Port",
    "Url",
    "Wait",
]


def _silence_console(as_json: bool) -> bool:
    console.quiet = as_json
    return as_json


def _prefer_named_folder(context: typer.Context, url: str | None) -> str | None:
    """Drop the URL of the environment if the call names a data folder: a command must not change another library."""
    # Options of the call are processed before those of the environment, so the source of --data is known.
    sources = [context.get_parameter_source(name) for name in ("url", "data")]
    names = [source.name if source else None for source in sources]
    return None if names == ["ENVIRONMENT", "COMMANDLINE"] else url


AsJson = Annotated[
    bool,
    typer.Option(
        "--json", callback=_silence_console, help="Print one JSON document instead of text and tables."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder (default: CINESTRATA_DATA_DIR, or ./cinestrata-data)."),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", help="Encoding of the manifest, for example cp1252 (default: utf-8)."),
]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Setting of the method; may be repeated."),
]
InPlace = Annotated[
    bool,
    typer.Option(
        "--in-place", help="Send paths instead of file contents; the service must read the same files."
    ),
]
CaptionsFromNames = Annotated[
    bool,
    typer.Option("--captions-from-names", help="Caption videos that have no captions with their file names."),
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on (default: 127.0.0.1).")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 for any free port (default: 8000)."),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="CINESTRATA_URL",
        callback=_prefer_named_folder,
        help="URL of a running service, used instead of the data folder; --data overrides the variable.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Show the progress until the task is ready.")]
