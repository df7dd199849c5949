"""Options that several commands have, and parsers of values such as ``--set NAME=VALUE``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.console import console, refuse_call


def _silence_console(as_json: bool) -> bool:
    console.quiet = as_json
    return as_json


def _prefer_named_folder(context: typer.Context, url: str | None) -> str | None:
    """Ignore the URL in the environment if the call names a data folder, so that no other library is changed."""
    # Command-line options are processed before the environment, so the source of --data is known.
    sources = [context.get_parameter_source(name) for name in ("url", "data")]
    names = [source.name if source else None for source in sources]
    return None if names == ["ENVIRONMENT", "COMMANDLINE"] else url


AsJson = Annotated[
    bool, typer.Option("--json", callback=_silence_console, help="Print one JSON document instead of text.")
]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder (default: CINESTRATA_DATA_DIR, or ./cinestrata-data)."),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        help="Encoding of tables, for example cp1252 (default: utf-8), and of other texts that are not UTF-8.",
    ),
]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Setting of the method; may be repeated."),
]
InPlace = Annotated[
    bool,
    typer.Option("--in-place", help="Send paths instead of contents; the service must read the same files."),
]
CaptionsFromNames = Annotated[
    bool,
    typer.Option("--captions-from-names", help="Use file names as captions for videos without captions."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Change nothing if a file cannot be used, instead of leaving it out.")
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
        help="URL of a running service to use instead of the data folder; --data overrides the variable.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Show the progress until the task is ready.")]


def parse_value(text: str) -> Any:
    """Parse a value as JSON; return other texts, NaN and infinity as strings."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def parse_settings(assignments: Sequence[str]) -> dict[str, bool | int | float | str | None] | None:
    """Parse settings from assignments such as ``epochs=5``; values are JSON if possible."""
    settings: dict[str, bool | int | float | str | None] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not key or not equals:
            refuse_call(f"--set {assignment} is not an assignment.", "Write, for example: --set epochs=5")
        settings[key] = parse_value(value)
    return settings or None
