"""What a person sees: one console, one way to fail, one look for progress."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

__all__ = ["console", "fail", "progress_bar", "report_errors", "warnings"]

# Without a terminal there is no width to fit into, only logs to read.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
warnings = Console(stderr=True, highlight=False)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def fail(message: str, hint: str = "") -> NoReturn:
    """Say on standard error what went wrong and how to correct it, and leave with status 1."""
    warnings.print(f"[red]{escape(message)}[/red]", soft_wrap=True)
    if hint:
        warnings.print(escape(hint), soft_wrap=True)
    raise typer.Exit(1)


def report_errors(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """A command whose foreseeable errors are told as a sentence instead of a traceback; Ctrl-C is no error."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            warnings.print("Stopped.")
            raise typer.Exit(130) from None
        except Exception as error:
            told = _words(error)
            if told is None:
                raise
            fail(*told)

    return run


def progress_bar(unit: str = "") -> Progress:
    """A bar with a count and the time left; it leaves no trace where output is not a terminal."""
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


def _words(error: Exception) -> tuple[str, str] | None:
    # Imported here: these cost a noticeable part of `cinestrata --help`, and no error came yet.
    import httpx
    from pydantic import ValidationError

    from service.core.errors import CinestrataError, field_path

    if isinstance(error, CinestrataError):
        more = [f"{e.field}: {e.message} {e.hint}".rstrip() for e in error.errors[1:10]]
        return error.detail, "\n".join(more)
    if isinstance(error, ValidationError):
        # A setting of several kinds is wrong in as many ways; further parts of the place are names of these kinds.
        wrong: dict[str, list[str]] = {}
        for e in error.errors():
            name = f"CINESTRATA_{field_path(e['loc'][:1]).upper()}: " if e["loc"] else ""
            wrong.setdefault(name, []).append(e["msg"].removeprefix("Value error, "))
        told = [f"{name}{', or: '.join(messages)}" for name, messages in wrong.items()]
        return "The settings in the environment are not valid.", "\n".join(told)
    if isinstance(error, httpx.HTTPError):
        return (
            f"The service did not answer: {error}",
            "Is it up, and is --url right? Start it with: cinestrata up",
        )
    return None
