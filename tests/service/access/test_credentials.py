"""API keys, users, passwords and sessions."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy import select

from cinestrata_schemas.access import KeySpec, UserDetails, UserPatch, UserSpec
from service.access import credentials, users
from service.access.credentials import (
    SessionOwner,
    create_key,
    digest,
    find_key,
    find_session,
    has_admin,
    has_credentials,
    list_keys,
    revoke_key,
    start_session,
)
from service.catalog.database import session_scope
from service.catalog.operation_tables import ApiKey, BrowserSession
from service.core.errors import Conflict, InvalidInput, NotFound
from service.core.settings import Settings
from tests.audited_changes import audit_entries


def _set(key_id: str, **values: datetime | None) -> None:
    with session_scope(write=True) as session:
        for name, value in values.items():
            setattr(session.get_one(ApiKey, key_id), name, value)


def test_key_is_found_until_it_is_revoked(catalog: Settings) -> None:
    assert not has_credentials()
    created = create_key(KeySpec(name="Nightly sync", scope="ingest", expires_in_days=30))
    assert re.fullmatch(r"cine_[0-9a-z]{12}_[\w-]{43}", created.key)
    assert created.key.split("_")[1] == created.id
    principal = find_key(created.key)
    assert principal is not None
    assert (principal.name, principal.scope) == ("Nightly sync", "ingest")
    assert principal.caller == f"key:{created.id}"
    assert has_credentials()
    assert not has_admin()
    assert find_key(created.key[:-1] + ("A" if created.key[-1] != "A" else "B")) is None
    assert find_key(f"cine_{'0' * 12}_{'A' * 43}") is find_key("") is find_key("cine_") is None
    before = credentials.change_count
    assert revoke_key(created.id).state == "revoked"
    assert credentials.change_count > before
    assert find_key(created.key) is None
    assert revoke_key(created.id).state == "revoked"
    assert [entry.action for entry in audit_entries()] == ["key.create", "key.revoke"]


def test_no_stored_value_contains_the_secret(catalog: Settings) -> None:
    created = create_key(KeySpec(name="nightly", scope="admin"))
    secret = created.key.split("_", 2)[2]
    with session_scope() as session:
        row = session.scalars(select(ApiKey)).one()
        stored = json.dumps([str(getattr(row, column.key)) for column in ApiKey.__table__.columns])
    listed = "".join(key.model_dump_json() for key in list_keys())
    audited = "".join(entry.model_dump_json() for entry in audit_entries())
    assert secret not in stored + listed + audited


def test_expired_key_is_refused(sqlite_catalog: Settings) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    created = create_key(KeySpec(name="short", scope="admin", expires_at=tomorrow))
    assert has_admin()
    _set(created.id, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert find_key(created.key) is None
    assert [key.state for key in list_keys()] == ["expired"]
    assert not has_admin()


def test_last_use_is_written_at_most_once_a_minute(sqlite_catalog: Settings) -> None:
    created = create_key(KeySpec(name="k", scope="search"))
    assert created.last_used_at is None
    find_key(created.key)
    first = list_keys()[0].last_used_at
    find_key(created.key)
    assert first is not None
    assert list_keys()[0].last_used_at == first
    _set(created.id, last_used_at=first - timedelta(minutes=2))
    find_key(created.key)
    assert (list_keys()[0].last_used_at or first) >= first


def test_names_of_active_keys_are_unique(sqlite_catalog: Settings) -> None:
    first = create_key(KeySpec(name="Straße", scope="search"))
    with pytest.raises(Conflict, match="name"):
        create_key(KeySpec(name="STRASSE", scope="search"))
    revoke_key("strasse")
    second = create_key(KeySpec(name="Straße", scope="search"))
    assert revoke_key("Straße").id == second.id != first.id


def test_bad_expiry_and_hostile_names_are_refused(sqlite_catalog: Settings) -> None:
    both = {"expires_at": datetime.max.replace(tzinfo=UTC), "expires_in_days": 1}
    for fields in ({"expires_at": datetime(2020, 1, 1)}, both):
        with pytest.raises(InvalidInput, match="expires_at"):
            create_key(KeySpec.model_validate({"name": "k", "scope": "search", **fields}))
    for name in ("", "a\r\nSet-Cookie: x", "a\0b", "\u202etxt", "x" * 81, "../etc", "<b>"):
        with pytest.raises(ValidationError):
            KeySpec(name=name, scope="search")
    for unknown in ("none", "\0", "\ud800", "x" * 10_000, "%"):
        with pytest.raises(NotFound):
            revoke_key(unknown)


PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def fast_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of a few milliseconds."""
    from argon2 import PasswordHasher

    monkeypatch.setattr(users, "_hasher", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    users._unknown_hash.cache_clear()


def _create(name: str = "Ada", scope: str = "search") -> UserDetails:
    return users.create_user(UserSpec.model_validate({"name": name, "password": PASSWORD, "scope": scope}))


def test_password_of_a_user_is_verified(catalog: Settings) -> None:
    created = _create("Ada Lovelace")
    user_id, stored = users.find_password_hash("ADA  LOVELACE")
    assert user_id == created.id
    assert stored is not None
    assert stored.startswith("$argon2id$")
    assert users.verify_password(PASSWORD, stored)
    assert not users.verify_password(PASSWORD + "x", stored)
    assert users.find_password_hash("nobody") == users.find_password_hash("\0\ud800") == (None, None)
    assert not users.verify_password("the password of no user", None)
    # Composed and decomposed characters are the same.
    assert users.verify_password("cafe\u0301 au lait", users.hash_password("caf\u00e9 au lait"))


def test_unknown_user_costs_a_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[str] = []
    users.verify_password("x", None)  # computes the hash of the unknown user
    hasher = users._hasher
    monkeypatch.setattr(
        type(hasher), "verify", lambda self, stored, password: verified.append(stored) or True
    )
    assert not users.verify_password("x", None)
    assert users.verify_password("x", "$stored")
    assert len(verified) == 2
    assert not users.verify_password("x" * 10**6, "$stored")  # is not hashed
    assert len(verified) == 2


def test_length_of_passwords_is_limited_and_names_that_look_equal_are_one_user(
    sqlite_catalog: Settings,
) -> None:
    for password in ("short", "x" * 1025):
        with pytest.raises(InvalidInput, match="password"):
            users.create_user(UserSpec(name="Ada", password=SecretStr(password)))
    _create("Ada")
    for other in ("ADA", "\uff21da", " ada "):
        with pytest.raises(Conflict, match="name"):
            _create(other)
    assert [user.name for user in users.list_users()] == ["Ada"]


def test_session_ends_with_its_owner(catalog: Settings) -> None:
    user = _create("Ada", "ingest")
    token = start_session(SessionOwner(user_id=user.id), "password", "Firefox\r\n<b>")
    principal = find_session(token, None)
    assert principal is not None
    assert (principal.kind, principal.name, principal.scope) == ("user", "Ada", "ingest")
    users.edit_user("ada", UserPatch(scope="admin"))
    assert getattr(find_session(token, None), "scope", None) == "admin"
    listed = credentials.list_sessions(principal.session_id)
    assert [(each.user, each.user_agent, each.current) for each in listed] == [("Ada", "Firefox  <b>", True)]
    users.edit_user("ada", UserPatch(password=SecretStr("another password")))
    assert find_session(token, None) is None
    again = start_session(SessionOwner(user_id=user.id), "password", "")
    users.remove_user(user.id)
    assert find_session(again, None) is None
    assert users.list_users() == []

    key = create_key(KeySpec(name="k", scope="search"))
    of_key = start_session(SessionOwner(key_id=key.id), "key", "")
    assert getattr(find_session(of_key, None), "scope", None) == "search"
    revoke_key(key.id)
    assert find_session(of_key, None) is None

    of_environment = start_session(SessionOwner(environment_key="old"), "key", "")
    assert find_session(of_environment, "old") is not None
    assert find_session(of_environment, "new") is None
    assert find_session(of_environment, None) is None


def test_catalog_permits_no_guesses_of_the_environment_key(sqlite_catalog: Settings) -> None:
    """Without the tokens of the sessions, equal keys have different stored forms."""
    owner = SessionOwner(environment_key="summer-2026")
    tokens = [start_session(owner, "key", "") for _ in range(2)]
    with session_scope() as session:
        rows = session.query(BrowserSession).all()
        stored = {row.environment_key for row in rows} | {row.token_hash for row in rows}
    assert len(stored) == 4
    assert stored.isdisjoint({"summer-2026", digest("summer-2026"), *tokens})
    assert "summer-2026" not in repr(owner)


def test_session_expires_and_is_never_continued(sqlite_catalog: Settings) -> None:
    user = _create()
    first = start_session(SessionOwner(user_id=user.id), "password", "")
    second = start_session(SessionOwner(user_id=user.id), "password", "", previous_token=first)
    assert second != first
    assert find_session(first, None) is None
    assert find_session("attacker", None) is None
    with session_scope(write=True) as session:
        row = session.query(BrowserSession).one()
        assert row.token_hash == digest(second) != second
        row.expires_at = datetime.now(UTC) - timedelta(seconds=1)
    assert find_session(second, None) is None
    assert credentials.list_sessions() == []


def test_sessions_are_ended_singly(sqlite_catalog: Settings) -> None:
    user = _create()
    tokens = [start_session(SessionOwner(user_id=user.id), "password", "") for _ in range(3)]
    credentials.end_session(credentials.list_sessions()[0].id)
    assert sum(find_session(token, None) is not None for token in tokens) == 2
    for unknown in ("none", "\0", "\ud800"):
        with pytest.raises(NotFound):
            credentials.end_session(unknown)


def test_identity_of_a_provider_never_takes_over_a_password_user(sqlite_catalog: Settings) -> None:
    local = _create("Ada", "admin")
    first = users.adopt_provider_user("https://id.example", "1", "ada", "search")
    assert first != local.id
    assert users.adopt_provider_user("https://id.example", "1", "renamed", "ingest") == first
    users.adopt_provider_user("https://id.example", "2", "<script>\0/\u202e" + "x" * 999, "search")
    users.adopt_provider_user("https://other.example", "1", "", "search")
    assert {user.name: (user.scope, user.provider) for user in users.list_users() if len(user.name) < 20} == {
        "Ada": ("admin", None),
        "ada 2": ("ingest", "https://id.example"),
        "user": ("search", "https://other.example"),
    }
    with pytest.raises(Conflict, match="password"):
        users.edit_user(first, UserPatch(password=SecretStr(PASSWORD)))
