"""Feedback over HTTP: who may give, list and take it back, and its limits."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from limits import RateLimitItemPerMinute
from pydantic import SecretStr

from api.app import create_app
from api.routes import video_routes
from cinestrata_schemas.access import KeySpec
from cinestrata_schemas.choice_types import AccessScope
from service.access.credentials import create_key
from service.core.settings import Settings
from tests.api.conftest import BASE_URL

SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def guarded(configured: Settings, client: TestClient, library: list[str]) -> TestClient:
    """The learned library behind an API key, which requests without another key send."""
    secured = configured.model_copy(update={"api_key": SecretStr(SECRET)})
    app = create_app(secured)
    app.state.query_service = client.app.state.query_service  # type: ignore[attr-defined]
    return TestClient(app, base_url=BASE_URL, headers={"X-API-Key": SECRET})


@pytest.fixture
def video(guarded: TestClient, library: list[str]) -> str:
    """ID of a searchable video."""
    return str(guarded.get("/videos", params={"task": library[0]}).json()["videos"][0]["id"])


def _key(scope: AccessScope = "search") -> tuple[str, dict[str, str]]:
    """Return the name of a new key, and the header with it."""
    name = uuid.uuid4().hex
    return name, {"X-API-Key": create_key(KeySpec(name=name, scope=scope)).key}


def _body(video: str, text: str = "a xylophone", verdict: str = "right") -> dict[str, str]:
    return {"text": text, "video_id": video, "verdict": verdict}


def test_confirmed_text_changes_the_next_search(guarded: TestClient, video: str) -> None:
    html = "<img src=x onerror=alert(1)> theremin"
    given = guarded.post("/feedback", json=_body(video, html))
    assert given.status_code == 200
    assert given.json()["text"] == html
    best = guarded.get("/search", params={"q": "theremin"}).json()["results"][0]
    assert (best["video_id"], best["words"][0]["kind"], best["words"][0]["text"]) == (
        video,
        "confirmed",
        html,
    )
    assert guarded.delete(f"/feedback/{given.json()['id']}").status_code == 204
    assert guarded.delete(f"/feedback/{given.json()['id']}").status_code == 404
    assert guarded.get("/search", params={"q": "theremin"}).json()["results"][0]["words"] == []


def test_callers_see_and_delete_their_own_and_administrators_all(guarded: TestClient, video: str) -> None:
    (ada, ada_key), (_, bob_key), (_, admin_key) = _key(), _key(), _key("admin")
    given = guarded.post("/feedback", json=_body(video), headers=ada_key).json()
    assert (given["caller"], given["caller_kind"]) == (ada, "key")
    path = f"/feedback/{given['id']}"

    def listed(headers: dict[str, str], **query: str) -> list[Any]:
        return list(guarded.get("/feedback", params=query, headers=headers).json()["feedback"])

    assert listed(ada_key) == listed(admin_key, caller=ada) == [given]
    assert listed(ada_key, own="true") == [given]
    assert listed(admin_key, own="true") == []
    assert listed(bob_key) == listed(bob_key, caller=ada) == []
    assert guarded.delete(path, headers=bob_key).status_code == 404
    nobody = {"X-API-Key": ""}
    assert guarded.post("/feedback", json=_body(video), headers=nobody).status_code == 401
    assert guarded.delete(path, headers=nobody).status_code == 401
    assert guarded.get("/feedback", headers=nobody).status_code == 401
    assert guarded.delete(path, headers=admin_key).status_code == 204
    assert listed(ada_key) == []


def test_callers_are_limited_separately(
    guarded: TestClient, video: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_routes, "RATE", RateLimitItemPerMinute(3))
    (_, ada), (_, bob) = _key(), _key()
    answers = [guarded.post("/feedback", json=_body(video, f"word{n}"), headers=ada) for n in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert guarded.post("/feedback", json=_body(video), headers=bob).status_code == 200


@pytest.mark.parametrize(
    ("changed", "status", "field"),
    [
        ({"text": ""}, 422, "text"),
        ({"text": "word " * 10_000}, 422, "text"),
        ({"text": "a\0b"}, 422, "text"),
        ({"verdict": "maybe"}, 422, "verdict"),
        ({"verdict": None}, 422, "verdict"),
        ({"stars": 5}, 422, "stars"),
        ({"video_id": "none"}, 404, None),
        ({"video_id": "a\0"}, 404, None),
    ],
)
def test_bad_feedback_is_refused(
    guarded: TestClient, video: str, changed: dict[str, Any], status: int, field: str | None
) -> None:
    answer = guarded.post("/feedback", json={**_body(video), **changed})
    assert answer.status_code == status, answer.text
    assert [error["field"] for error in answer.json().get("errors", [])] == ([field] if field else [])


def test_bad_lists_and_ids_are_refused(guarded: TestClient) -> None:
    for query in ({"limit": "0"}, {"cursor": "x"}, {"verdict": "maybe"}, {"who": "me"}):
        assert guarded.get("/feedback", params=query).status_code == 422, query
    for number in ("0", "-1", "x", str(2**63)):
        assert guarded.delete(f"/feedback/{number}").status_code == 422, number
    assert guarded.delete(f"/feedback/{2**63 - 1}").status_code == 404
