"""API keys of the catalog: their form, their states, and the time of their last use."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from cinestrata_schemas.access import KeySpec
from service.access.credentials import (
    change_count,
    create_key,
    find_key,
    has_admin,
    has_credentials,
    list_keys,
    revoke_key,
)
from service.catalog.database import session_scope
from service.catalog.operation_tables import ApiKey
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
    assert (principal.name, principal.scope, principal.caller) == (
        "Nightly sync",
        "ingest",
        f"key:{created.id}",
    )
    assert has_credentials()
    assert not has_admin()
    assert find_key(created.key[:-1] + ("A" if created.key[-1] != "A" else "B")) is None
    assert find_key(f"cine_{'0' * 12}_{'A' * 43}") is find_key("") is find_key("cine_") is None
    before = change_count()
    assert revoke_key(created.id).state == "revoked"
    assert change_count() > before
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
    created = create_key(
        KeySpec(name="short", scope="admin", expires_at=datetime.now(UTC) + timedelta(days=1))
    )
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


@pytest.mark.parametrize(
    "fields",
    [
        {"expires_at": datetime(2020, 1, 1)},
        {"expires_at": datetime.max.replace(tzinfo=UTC), "expires_in_days": 1},
    ],
)
def test_bad_expiry_is_refused(sqlite_catalog: Settings, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="expires_at"):
        create_key(KeySpec.model_validate({"name": "k", "scope": "search", **fields}))


def test_hostile_names_are_refused(sqlite_catalog: Settings) -> None:
    for name in ("", "a\r\nSet-Cookie: x", "a\0b", "\u202etxt", "x" * 81, "../etc", "<b>"):
        with pytest.raises(ValidationError):
            KeySpec(name=name, scope="search")
    for unknown in ("none", "\0", "\ud800", "x" * 10_000, "%"):
        with pytest.raises(NotFound):
            revoke_key(unknown)
