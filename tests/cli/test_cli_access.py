"""``cinestrata keys`` and ``cinestrata users`` on a data folder."""

from __future__ import annotations

import json

from click.testing import Result
from typer.testing import CliRunner

from cli.main import app
from service.access.credentials import find_key
from service.core.settings import Settings
from tests.audited_changes import audit_entries


def _run(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=given)


def test_keys_are_created_listed_and_revoked(folder: Settings) -> None:
    created = _run("keys", "create", "nightly", "--scope", "ingest", "--days", "30")
    assert created.exit_code == 0, created.output
    key = created.output.splitlines()[0]
    assert getattr(find_key(key), "scope", None) == "ingest"
    (listed,) = json.loads(_run("keys", "list", "--json").output)
    assert (listed["name"], listed["state"]) == ("nightly", "active")
    assert key not in _run("keys", "list").output
    assert _run("keys", "revoke", "nightly").exit_code == 0
    assert find_key(key) is None
    assert "There is no key" in _run("keys", "revoke", "other").output
    assert {entry.actor_kind for entry in audit_entries()} == {"cli"}


def test_first_key_that_locks_out_administrators_is_reported(folder: Settings) -> None:
    warning = "no key or user has the scope admin"
    assert warning in _run("keys", "create", "reader").output
    assert warning not in _run("keys", "create", "root", "--scope", "admin").output
    assert warning not in _run("keys", "create", "writer", "--scope", "ingest").output
    assert _run("keys", "revoke", "root").exit_code == 0
    assert _run("users", "create", "ada", "--scope", "admin", given="correct horse\n").exit_code == 0
    assert warning not in _run("keys", "create", "other").output


def test_users_are_created_changed_and_removed(folder: Settings) -> None:
    created = _run("users", "create", "ada", "--scope", "admin", given="correct horse\n")
    assert created.exit_code == 0, created.output
    assert "correct horse" not in created.output
    assert _run("users", "create", "ADA", given="correct horse\n").exit_code == 1
    assert "10 to 1024" in _run("users", "set", "ada", "--password", given="short\n").output
    assert _run("users", "set", "ada", "--password", given="another horse\n").exit_code == 0
    assert _run("users", "set", "ada", "--scope", "search").exit_code == 0
    assert _run("users", "set", "ada").exit_code == 2
    (listed,) = json.loads(_run("users", "list", "--json").output)
    assert (listed["name"], listed["scope"]) == ("ada", "search")
    assert _run("users", "remove", "ada").exit_code == 0
    assert "There are no users" in _run("users", "list").output
