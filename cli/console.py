"""Terminal output shared by all commands: consoles, error reports and progress bars."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

__all__ = ["console", "error_console", "explain_error", "fail", "progress_bar", "report_errors"]

# Names of domains, captions and errors may contain brackets, so texts are not parsed as markup.
# Without a terminal, lines are read in a log file and need no wrapping at 80 columns.
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)
error_console = Console(stderr=True, highlight=False, markup=False)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def fail(message: str, hint: str = "") -> NoReturn:
    """Print an error and its hint to standard error, and exit with status 1."""
    error_console.print(message, style="red", soft_wrap=True)
    if hint:
        error_console.print(hint, soft_wrap=True)
    raise typer.Exit(1)


def report_errors(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a command so that expected errors are printed as sentences instead of tracebacks.

    Ctrl-C exits with status 130. Unexpected errors keep their traceback.
    """

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            error_console.print("Stopped.")
            raise typer.Exit(130) from None
        except Exception as error:
            explanation = explain_error(error)
            if explanation is None:
                raise
            fail(*explanation)

    return run


def progress_bar(unit: str = "") -> Progress:
    """A progress bar with a count and the remaining time; it prints nothing when output is not a terminal."""
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
    """Message and hint for an expected error, or None for an unexpected one."""
    # Imported here because these packages are a noticeable part of the start-up time of `cinestrata --help`.
    import httpx
    from pydantic import ValidationError

    from service.core.errors import CinestrataError
    from service.core.settings import variable_name

    if isinstance(error, CinestrataError):
        further = [f"{e.field}: {e.message} {e.hint}".rstrip() for e in error.errors[1:10]]
        return error.detail, "\n".join(further)
    if isinstance(error, ValidationError):
        # A setting of a union type has one error per member; the rest of its location names the member.
        messages: dict[str, list[str]] = {}
        for e in error.errors():
            name = f"{variable_name(e['loc'])}: " if e["loc"] else ""
            messages.setdefault(name, []).append(e["msg"].removeprefix("Value error, "))
        lines = [f"{name}{', or: '.join(alternatives)}" for name, alternatives in messages.items()]
        return "The settings in the environment are not valid.", "\n".join(lines)
    if isinstance(error, httpx.HTTPError):
        return (
            f"The service does not answer: {error}",
            "Check that it runs and that --url is correct. To start it: cinestrata up",
        )
    return None
