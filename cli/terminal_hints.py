"""Texts of the service, whose hints name requests of the HTTP API, in the words of the command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cinestrata_schemas.tasks import TaskDetails

__all__ = ["rejected_lines", "shown_name", "task_text", "terminal_text"]

_MAX_REJECTED = 5  # shown files of a task
_UPLOAD = re.compile(r"upload://[^/\s]+/")


def _retry_command(found: re.Match[str]) -> str:
    return f"cinestrata tasks retry {found[1]} --method {found[2]}{found[3].replace(' and ', ' --set ')}"


# Identifiers of tasks and videos are kept; without an identifier, the text has the placeholder `{id}`.
_COMMANDS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"There is no resource at (?:/v1)?/(\w+)/(.+); /docs lists all paths\.", r"There is no entry \2 in \1."),
    (
        r"The request needs an API key: send it as X-API-Key, or sign in at /login\.",
        "The service needs an API key.",
    ),
    (r"POST /tasks/(\S+?)/retry with method (\w+)((?: and \w+=\S+?)*)(?=\.?(?:\s|$))", _retry_command),
    (r"POST /tasks/(\S+?)/retry", r"cinestrata tasks retry \1"),
    (r"POST /tasks/(\S+?)/relearn", r"cinestrata relearn \1"),
    (r"POST /tasks/(\S+?)/videos", "cinestrata ingest FOLDER --into DOMAIN"),
    (r"POST /tasks", "cinestrata ingest"),
    (r"GET /tasks/(\S+?)/rejected", r"cinestrata videos list --task \1 --status rejected"),
    (r"GET /tasks/([^\s/,.;]+)", r"cinestrata tasks show \1"),
    (r"POST /releases/([^\s/]+)/serve", r"cinestrata releases serve \1"),
    (r"GET /syncs", "`cinestrata syncs list`"),
    (r"GET /releases", "`cinestrata releases list`"),
    (r"DELETE /syncs/([^\s/,.;]+)", r"cinestrata syncs remove \1"),
    (r"DELETE /tasks/([^\s/,.;]+)", r"cinestrata delete --task \1"),
)


def terminal_text(text: str) -> str:
    """Replace requests such as ``POST /tasks/tsk_1/retry`` with the command that sends them."""
    for request, command in _COMMANDS:
        text = re.sub(request, command, text)
    return text


def task_text(task: TaskDetails, text: str) -> str:
    """Text of a task with commands that name it as the user does."""
    return terminal_text(text).replace(task.id, shown_name(task))


def shown_name(task: TaskDetails) -> str:
    """Argument of a command that names a task: its name, or its id where the name would need attention."""
    # The name of an append is that of its domain with its id; a leading dash begins an option.
    return task.id if task.into or task.name.startswith("-") else shlex.quote(task.name)


def rejected_lines(task: TaskDetails) -> Iterator[str]:
    """Lines with the rejected files of a task and their reasons; the last line has the number of further ones."""
    for video in task.rejected[:_MAX_REJECTED]:
        # An uploaded file is known by its name, without the folder that the service stores it in.
        name, reason = _UPLOAD.sub("", video.uri), _UPLOAD.sub("", video.reason)
        yield f"rejected: {reason if name in reason else f'{name}: {reason}'}"
    further = task.counts.rejected - _MAX_REJECTED
    if further > 0:
        name = shown_name(task)
        yield f"{further} further rejected videos: cinestrata videos list --task {name} --status rejected"
