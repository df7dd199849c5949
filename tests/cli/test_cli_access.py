"""``cinestrata keys`` and ``cinestrata users`` on a data folder."""

from __future__ import annotations

import json

from service.access.credentials import find_key
from service.core.settings import Settings
from tests.audited_changes import audit_entries
from tests.cli.invocation import run


def test_keys_are_created_listed_and_revoked(folder: Settings) -> None:
    created = run("keys", "create", "nightly", "--scope", "ingest", "--days", "30")
    assert created.exit_code == 0, created.output
    key = created.output.splitlines()[0]
    assert getattr(find_key(key), "scope", None) == "ingest"
    (listed,) = json.loads(run("keys", "list", "--json").output)
    assert (listed["name"], listed["state"]) == ("nightly", "active")
    assert key not in run("keys", "list").output
    assert run("keys", "revoke", "nightly").exit_code == 0
    assert find_key(key) is None
    assert "There is no key" in run("keys", "revoke", "other").output
    assert {entry.actor_kind for entry in audit_entries()} == {"cli"}


def test_first_key_that_locks_out_administrators_is_reported(folder: Settings) -> None:
    warning = "no key or user has the scope admin"
    assert warning in run("keys", "create", "reader").output
    assert warning not in run("keys", "create", "root", "--scope", "admin").output
    assert warning not in run("keys", "create", "writer", "--scope", "ingest").output
    assert run("keys", "revoke", "root").exit_code == 0
    assert run("users", "create", "ada", "--scope", "admin", given="correct horse\n").exit_code == 0
    assert warning not in run("keys", "create", "other").output


def test_users_are_created_changed_and_removed(folder: Settings) -> None:
    created = run("users", "create", "ada", "--scope", "admin", given="correct horse\n")
    assert created.exit_code == 0, created.output
    assert "correct horse" not in created.output
    assert run("users", "create", "ADA", given="correct horse\n").exit_code == 1
    assert "10 to 1024" in run("users", "set", "ada", "--password", given="short\n").output
    assert run("users", "set", "ada", "--password", given="another horse\n").exit_code == 0
    assert run("users", "set", "ada", "--scope", "search").exit_code == 0
    assert run("users", "set", "ada").exit_code == 2
    (listed,) = json.loads(run("users", "list", "--json").output)
    assert (listed["name"], listed["scope"]) == ("ada", "search")
    assert run("users", "remove", "ada").exit_code == 0
    assert "No users yet" in run("users", "list").output
