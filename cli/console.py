"""Terminal output of all commands: texts, tables, progress bars and errors."""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, cast

import typer
from pydantic import ValidationError
from pydantic_core import to_json
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cinestrata_client import InvalidInputError, ServiceError, UnauthorizedError, UnreachableError
from cinestrata_schemas.problems import Action
from cinestrata_schemas.uris import is_source_uri
from service.core.text_rules import CONTROL_CHARACTERS

_REQUEST_MODELS = ("Spec", "Patch")  # file name endings
# Exit statuses; 1 is an error.
USAGE_FAULT = 2  # a call with invalid values, as in click
NOTHING_FOUND = 3  # a search without a matching video, or a page beyond the last one
LEFT_OUT = 3  # videos were added, without files that cannot be used

# Commands for the actions that errors recommend.
_COMMANDS = {
    "add_domain": "cinestrata ingest FOLDER",
    "append_videos": "cinestrata ingest FOLDER --into {name}",
    "delete_task": "cinestrata delete --task {name}",
    "list_releases": "cinestrata api GET /releases",
    "list_syncs": "cinestrata syncs",
    "retry_task": "cinestrata tasks retry {name}",
    "serve_release": "cinestrata api POST /releases/{name}/serve",
    "show_task": "cinestrata tasks show {name}",
}

_UPLOAD = re.compile(r"upload://[^/\s]+/")
_CONTROLS = re.compile(rf"(?![\t\n])[{CONTROL_CHARACTERS}]")


class _InertConsole(Console):
    """A console on which printed text, such as a service's response, cannot control the terminal."""

    failure_event: str | None = None  # set: failures are log events with this name

    def say(self, text: RenderableType, *, style: str | None = None) -> None:
        """Print a text whose lines the terminal wraps, so that copied commands and paths have no line breaks."""
        self.print(text, style=style, soft_wrap=True)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield a renderable's segments, without controls except those of styles and progress bars."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(_CONTROLS.sub("", segment.text), segment.style)
            else:
                yield segment


# Domain names, captions and errors may contain brackets, so nothing is parsed as markup. Without a terminal, lines go
# to a log file and need no wrapping at 80 columns.
console = _InertConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)
error_console = _InertConsole(stderr=True, highlight=False, markup=False)

_Command = TypeVar("_Command", bound=Callable[..., Any])


def fail(message: str, hint: str = "", *, status: int = 1) -> NoReturn:
    """Print an error and its hint to standard error, or log them as an event, and exit with a status."""
    if error_console.failure_event is not None:
        import structlog

        structlog.get_logger(__name__).critical(error_console.failure_event, reason=message, hint=hint)
        raise typer.Exit(status)
    error_console.say(message, style="red")
    if hint:
        error_console.say(hint)
    raise typer.Exit(status)


def action_command(action: Action, name: str | None = None) -> str:
    """Return the command for an action."""
    command = _COMMANDS.get(action.name, "cinestrata --help").format(
        name=name or shlex.quote(action.id or "")
    )
    body = action.body or {}
    if "method" in body:
        command += f" --method {body['method']}"
    for key, value in (body.get("settings") or {}).items():
        command += f" --set {key}={value if isinstance(value, str) else json.dumps(value)}"
    return command


def refuse_call(message: str, hint: str = "") -> NoReturn:
    """Print why arguments or options cannot be used to standard error, and exit with status 2."""
    fail(message, hint, status=USAGE_FAULT)


def print_json(document: Any) -> None:
    """Print a JSON document to standard output if the command has --json, which silences the console."""
    if console.quiet:
        typer.echo(to_json(document, indent=2).decode())


def plain_table(*headings: str) -> Table:
    """Create a table without borders, with dim headings; callers add columns that need options."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading)
    return table


def strip_upload(text: str) -> str:
    """Replace the service's upload folders in a text with the uploaded files' own paths."""
    return _UPLOAD.sub("", text)


def video_cell(video_id: str, uri: str) -> Text:
    """Return a table cell with a video's ID and, below it, its file, unless the ID shows it.

    Files in an archive often differ only in their folders, so an uploaded file is shown with its path in the archive.
    """
    from media.sources.media_source import file_name

    name = (is_source_uri(uri) and file_name(uri)) or uri.rpartition("/")[2]
    if _UPLOAD.match(uri):
        name = strip_upload(uri)
    if name.rpartition(".")[0] == video_id:
        return Text(video_id)
    return Text.assemble(video_id, "\n", (name, "dim"))


class CommandGroup(typer.Typer):
    """Commands that print expected errors as sentences, and exit with status 130 after Ctrl-C."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Command], _Command]:
        """Add a command; arguments as for ``typer.Typer``."""
        add = super().command(name, **options)
        return lambda function: add(_report_errors(function))


def _report_errors(command: _Command) -> _Command:
    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            error_console.print("Stopped.")
            raise typer.Exit(130) from None
        except Exception as error:
            explanation = explain_error(error)
            if explanation is None:
                raise
            fail(*explanation, status=USAGE_FAULT if _is_usage_fault(error) else 1)

    return cast(_Command, run)


def progress_bar(unit: str = "") -> Progress:
    """Create a progress bar with a count and the remaining time; silent if output is not a terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def explain_error(error: Exception) -> tuple[str, str] | None:
    """Return the message and hint for an expected error; None for an unexpected one."""
    # Imported here because the settings noticeably slow down `cinestrata --help`.
    from service.core.errors import CinestrataError
    from service.core.settings import Settings, variable_name

    if isinstance(error, CinestrataError | ServiceError):
        hints = [f"{e.field}: {e.message} {e.hint}".rstrip() for e in error.errors[1:10]]
        if isinstance(error, UnauthorizedError):
            hints.append("Set CINESTRATA_API_KEY to a key of the service.")
        if error.remedy is not None:
            hints.append(f"Run: {action_command(error.remedy)}")
        return error.detail, "\n".join(hints)
    if isinstance(error, ValidationError):
        if error.title == Settings.__name__:
            name_variable = functools.partial(variable_name, Settings)
            return "The settings in the environment are not valid.", _field_messages(error, name_variable)
        if error.title.endswith(_REQUEST_MODELS):
            return "The request is not valid.", _field_messages(
                error, lambda location: ".".join(map(str, location))
            )
        return (
            f"The service sent an unexpected response ({error.title}).",
            "Check that service and command have the same version: cinestrata --version",
        )
    if isinstance(error, UnreachableError):
        return (
            f"The service doesn't answer: {error.reason}",
            "Check that it is running and that --url is correct. To start it: cinestrata up",
        )
    return None


def _is_usage_fault(error: Exception) -> bool:
    """Return whether the service or a request model rejects a value of the call as invalid."""
    from service.core.errors import InvalidInput

    if isinstance(error, ValidationError):
        return error.title.endswith(_REQUEST_MODELS)
    if not isinstance(error, InvalidInput | InvalidInputError):
        return False
    # A search reports an unknown domain as an invalid field; for users it is an unknown name, as in other commands.
    return not any(e.field == "task" and e.message.startswith("There is no ") for e in error.errors)


def _field_messages(error: ValidationError, name: Callable[[tuple[int | str, ...]], str]) -> str:
    """List the errors, one line per field; one of a union type has an error per member, which its location names."""
    messages: dict[str, list[str]] = {}
    for e in error.errors():
        prefix = f"{name(e['loc'])}: " if e["loc"] else ""
        messages.setdefault(prefix, []).append(e["msg"].removeprefix("Value error, "))
    return "\n".join(f"{prefix}{', or: '.join(alternatives)}" for prefix, alternatives in messages.items())
