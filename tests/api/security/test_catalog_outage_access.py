"""Credentials while the catalog database cannot be reached."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from api.app import create_app
from api.security import authentication
from cinestrata_schemas.access import KeySpec
from service.access.credentials import create_key, note_change
from service.core.settings import Settings

SECRET = "s3cret-of-the-environment"
SEARCHABLE = "The model is still being loaded"  # of a search that passed the check of its credentials


@pytest.fixture
def client(configured: Settings, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """The application with a key in the environment; every credential is looked up again."""
    monkeypatch.setattr(authentication, "_FRESH_SECONDS", -1.0)
    secured = configured.model_copy(update={"api_key": SecretStr(SECRET), "host": "0.0.0.0"})
    return TestClient(
        create_app(secured), base_url="http://search.example.org", raise_server_exceptions=False
    )


def _search(client: TestClient, key: str, path: str = "/v1/search") -> tuple[int, str]:
    answer = client.get(path, params={"q": "a bird"}, headers={"X-API-Key": key})
    return answer.status_code, answer.json()["detail"]


def _key(scope: Any = "search", days: int | None = None) -> str:
    return create_key(KeySpec(name=uuid.uuid4().hex, scope=scope, expires_in_days=days)).key


def test_known_keys_search_and_unknown_keys_do_not(
    client: TestClient, lose_database: Callable[[], None]
) -> None:
    known, unused = _key(), _key("admin")
    client.get("/tasks", headers={"X-API-Key": known})
    lose_database()
    for path in ("/search", "/v1/search"):
        assert SEARCHABLE in _search(client, SECRET, path)[1]
        assert SEARCHABLE in _search(client, known, path)[1]
    for key in (unused, unused[:-1] + "_", "cine_000000000000_" + "A" * 43):
        status, detail = _search(client, key)
        assert status == 503
        assert "catalog" in detail
    assert _search(client, "")[0] == 401


def test_remembered_key_permits_searches_only(client: TestClient, lose_database: Callable[[], None]) -> None:
    key = _key("admin")
    assert client.get("/keys", headers={"X-API-Key": key}).status_code == 200
    lose_database()
    assert SEARCHABLE in _search(client, key)[1]
    answer = client.post("/tasks/none/cancel", headers={"X-API-Key": key})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("end", ["revoked", "expired", "forgotten"])
def test_memory_of_a_key_ends(
    client: TestClient, lose_database: Callable[[], None], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    key = _key(days=1)
    client.get("/tasks", headers={"X-API-Key": key})
    lose_database()
    assert SEARCHABLE in _search(client, key)[1]
    if end == "revoked":
        note_change()
    elif end == "expired":

        class Tomorrow(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(UTC) + timedelta(days=2)

        monkeypatch.setattr(authentication, "datetime", Tomorrow)
    else:
        monkeypatch.setattr(authentication, "REMEMBERED_SECONDS", 0.0)
    assert _search(client, key)[0] == 503
    assert "catalog" in _search(client, key)[1]
