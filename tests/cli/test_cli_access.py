"""``cinestrata keys create`` and ``cinestrata users create`` on a data folder."""

from __future__ import annotations

import json

from service.access.credentials import find_key
from service.core.settings import Settings
from tests.audited_changes import audit_entries
from tests.cli.invocation import run


def test_key_is_created_and_revoked(folder: Settings) -> None:
    created = run("keys", "create", "nightly", "--scope", "ingest", "--days", "30")
    assert created.exit_code == 0, created.output
    key = created.output.splitlines()[0]
    assert getattr(find_key(key), "scope", None) == "ingest"
    listed = run("api", "GET", "/keys").output
    assert (json.loads(listed)[0]["name"], key in listed) == ("nightly", False)
    assert run("api", "DELETE", "/keys/nightly").exit_code == 0
    assert find_key(key) is None
    assert {entry.actor_kind for entry in audit_entries()} == {"cli"}


def test_first_key_that_locks_out_administrators_is_reported(folder: Settings) -> None:
    warning = "no key or user has the scope admin"
    assert warning in run("keys", "create", "reader").output
    assert warning not in run("keys", "create", "root", "--scope", "admin").output
    assert warning not in run("keys", "create", "writer", "--scope", "ingest").output
    assert run("api", "DELETE", "/keys/root").exit_code == 0
    assert run("users", "create", "ada", "--scope", "admin", given="correct horse\n").exit_code == 0
    assert warning not in run("keys", "create", "other").output


def test_password_of_a_user_is_read_from_standard_input(folder: Settings) -> None:
    created = run("users", "create", "ada", "--scope", "admin", given="correct horse\n")
    assert created.exit_code == 0, created.output
    assert "correct horse" not in created.output
    assert run("users", "create", "ADA", given="correct horse\n").exit_code == 1
    assert "10 to 1024" in run("users", "create", "eve", given="short\n").output
