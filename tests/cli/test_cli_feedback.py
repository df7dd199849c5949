"""Feedback from the command line, on a data folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import update

from index.files.manifest_format import Manifest
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.settings import Settings
from tests.cli.invocation import run

_run = partial(run, "feedback")


@pytest.fixture(autouse=True)
def accepted(folder: Settings, publish_task: Callable[..., Manifest]) -> None:
    """The videos ``a-0`` and ``a-1``."""
    publish_task("a", 2)
    with session_scope(write=True) as session:
        session.execute(update(Video).values(status="accepted"))


def test_feedback_is_given_listed_and_taken_back() -> None:
    given = json.loads(_run("right", "a [red] dog", "a-1", "--json").output)
    assert (given["text"], given["verdict"], given["caller_kind"]) == ("a [red] dog", "right", "cli")
    assert "take-back" in _run("wrong", "a cat", "a-0").output
    listed = _run("list").output
    assert "a [red] dog" in listed
    assert "a-0" in listed
    assert "a-0" not in _run("list", "--verdict", "right").output
    assert "No feedback matches" in _run("list", "--caller", "nobody").output
    assert _run("take-back", str(given["id"])).exit_code == 0
    again = _run("take-back", str(given["id"]))
    assert (again.exit_code, f"There is no feedback {given['id']}." in again.output) == (1, True)


def test_bad_feedback_is_an_error_with_its_field() -> None:
    assert "There is no video 'b'" in _run("right", "a dog", "b").output
    failed = _run("right", "word " * 10_000, "a-0")
    assert (failed.exit_code, "Use at most 1000" in failed.output) == (2, True)
