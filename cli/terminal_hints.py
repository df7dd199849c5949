"""Texts of the service, whose hints name requests of the HTTP API, in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["terminal_text"]


def _retry_command(found: re.Match[str]) -> str:
    return f"cinestrata tasks retry {found[1]} --method {found[2]}{found[3].replace(' and ', ' --set ')}"


# Identifiers of tasks and videos are kept; without an identifier, the text has the placeholder `{id}`.
_COMMANDS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
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
