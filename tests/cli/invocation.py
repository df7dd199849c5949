"""Run commands in a test's process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import httpx
from click.testing import Result
from typer import testing
from typer.main import get_command

from cinestrata_schemas.search import SearchResponse, SearchResult
from cinestrata_schemas.tasks import TaskDetails, TaskProgress, VideoCounts
from cli.console import console
from cli.main import app

# Answers all requests of the process by a function, and returns the list of the requests.
Answers = Callable[[Callable[[httpx.Request], httpx.Response]], list[httpx.Request]]

# The runner would build all commands for each invocation, which takes longer than most commands.
testing._get_command = cache(get_command)


def run(*arguments: object, given: str | None = None) -> Result:
    """Run ``cinestrata …`` with a standard input, which is empty by default."""
    result = testing.CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)
    console.quiet = False  # set by --json
    return result


def problem(status: int, detail: str, *fields: dict[str, str], **headers: str) -> httpx.Response:
    """Return an error response of the service with its invalid fields."""
    document: dict[str, Any] = {
        "type": "urn:cinestrata:problem:test",
        "title": "Test",
        "status": status,
        "detail": detail,
        "instance": "/v1/test",
        "errors": list(fields),
    }
    return httpx.Response(status, json=document, headers=headers)


def task_details(**fields: Any) -> TaskDetails:
    """Return a ready task with one video, without the fields that commands do not show."""
    shown = {"id": "tsk_1", "name": "birds", "into": None, "state": "ready", "error": None, "rejected": []}
    shown |= {"counts": VideoCounts(accepted=1)}
    shown["progress"] = TaskProgress(stage="ready", fraction=1.0)
    return TaskDetails.model_construct(**shown | fields)


def search_result(**fields: Any) -> SearchResult:
    """Return a search's best result."""
    shown = {"rank": 1, "video_id": "v1", "uri": "v1.mp4", "task": "cars", "task_id": "tsk_1", "score": 0.5}
    shown |= {"captions": ["a taxi"], "thumbnail_url": "/t", "stream_url": "/s"}
    return SearchResult.model_validate(shown | fields)


def search_answer(**fields: Any) -> SearchResponse:
    """Return a search's answer with one result."""
    routing = [{"task": "cars", "task_id": "tsk_1", "weight": 1.0, "searched": True}]
    answer = {"query": "a taxi", "mode": "pinned", "release": "f" * 64, "generation": 1, "routing": routing}
    answer["timing_ms"] = dict.fromkeys(("encode", "route", "search", "merge", "total"), 1.0)
    return SearchResponse.model_validate(answer | {"results": [search_result()]} | fields)
