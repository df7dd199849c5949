"""Edits and feedback over HTTP: searches that use them, who may give them, and their limits."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from fastapi.testclient import TestClient
from limits import RateLimitItemPerMinute
from pydantic import SecretStr
from sqlalchemy import select

from api.app import create_app
from api.routes import video_routes
from cinestrata_schemas.access import KeySpec
from cinestrata_schemas.choice_types import AccessScope
from cinestrata_schemas.search import SearchResponse
from service.access.credentials import create_key
from service.catalog.database import session_scope
from service.catalog.tables import Reading, Video
from service.catalog.video_texts import store_texts
from service.core.change_sequence import HEADER, LATEST
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.snapshots import snapshot_manager
from service.tasks import ingestion_checks
from tests.api.conftest import BASE_URL


def test_responses_to_changes_have_their_number(client: TestClient, video: str) -> None:
    before = client.get(f"/videos/{video}").json()["captions"]
    read = client.get("/search", params={"q": "a bassoon"}, headers={HEADER: "no number"})
    assert (read.status_code, HEADER in read.headers) == (200, False)
    edited = client.patch(f"/videos/{video}", json={"captions": ["a bassoon"]})
    found = client.get("/search", params={"q": "a bassoon"}, headers={HEADER: edited.headers[HEADER]}).json()
    assert found["results"][0]["video_id"] == video
    body = {"text": "a bassoon", "video_id": video, "verdict": "right"}
    given = client.post("/feedback", json=body)
    taken = client.delete(f"/feedback/{given.json()['id']}")
    restored = client.patch(f"/videos/{video}", json={"captions": before})
    numbers = [int(answer.headers[HEADER]) for answer in (edited, given, taken, restored)]
    assert numbers == sorted(set(numbers))


@pytest.fixture
def video(client: TestClient, library: list[str]) -> str:
    """ID of a training video of the first domain."""
    videos = client.get("/videos", params={"task": library[0], "split": "train"}).json()["videos"]
    return str(videos[0]["id"])


@pytest.fixture(autouse=True)
def _captions_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_manager, "MAX_EDIT_SHARE", 1)


def _search(client: TestClient, q: str, **parameters: Any) -> dict[str, Any]:
    answer = client.get("/search", params={"q": q, "k": 50, **parameters})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _refresh(client: TestClient) -> None:
    client.app.state.query_service.snapshots.refresh_captions()  # type: ignore[attr-defined]


def test_edited_captions_are_shown_at_once_and_route_queries(
    client: TestClient, library: list[str], video: str
) -> None:
    """A word in an edited caption makes its domain the likeliest until the next edit."""

    def likeliest() -> str:
        return str(_search(client, "xylophone")["routing"][0]["task_id"])

    before = client.get(f"/videos/{video}").json()["captions"]
    generation = _search(client, "xylophone")["generation"]
    score = _score(client, video)
    assert client.patch(f"/videos/{video}", json={"captions": ["a xylophone"] * 3}).status_code == 200
    (shown,) = [r for r in _search(client, "a clip")["results"] if r["video_id"] == video]
    assert shown["captions"] == ["a xylophone"] * 3
    _refresh(client)
    assert likeliest() == library[0]
    other = client.get("/videos", params={"task": library[1], "split": "train"}).json()["videos"][0]
    client.patch(f"/videos/{other['id']}", json={"captions": ["a xylophone"]})
    client.patch(f"/videos/{video}", json={"captions": before})
    _refresh(client)
    assert likeliest() == library[1]
    client.patch(f"/videos/{other['id']}", json={"captions": other["captions"]})
    _refresh(client)
    assert _search(client, "xylophone")["generation"] == generation
    assert _score(client, video) == score


def _score(client: TestClient, video: str) -> float:
    results = client.get(f"/videos/{video}/similar", params={"k": 3}).json()["results"]
    return float(results[0]["score"])


def test_words_of_edits_are_found_by_the_next_search_of_every_process(client: TestClient, video: str) -> None:
    other_process = SearchEngine()
    assert other_process.snapshots.refresh()
    before = client.get(f"/videos/{video}").json()["captions"]

    def found(q: str) -> list[list[tuple[str, str | None]]]:
        """Return the videos that contain the words, as each process finds them, with the kind of their first text."""
        answers = [SearchResponse.model_validate(_search(client, q)), other_process.search(q, k=50)]
        return [
            [(result.video_id, result.words[0].kind) for result in answer.results if result.words]
            for answer in answers
        ]

    client.patch(f"/videos/{video}", json={"captions": ["two zygotes", *before]})
    assert found("zygote") == [[(video, "caption")]] * 2
    client.patch(f"/videos/{video}", json={"captions": before, "metadata": {"subject": {"name": "Zygote"}}})
    assert found("zygote") == [[(video, "metadata")]] * 2
    client.patch(f"/videos/{video}", json={"metadata": {"subject": None}})
    assert found("zygote") == [[]] * 2


def test_texts_are_corrected_and_written_as_subtitles(
    client: TestClient, library: list[str], video: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestion_checks, "MAX_CUES", 2)  # that a request may send; the video has more
    with session_scope(write=True) as session:
        (key,) = session.scalars(select(Video.vector_id).where(Video.id == video))
        session.add(Reading(video_vector_id=key, source="speech", state="done"))
        heard = [(0.0, 1.5, "a <b>hewn & cry"), (3661.25, 3662.0, "the end --> now")]
        store_texts(session, {key: {"speech": heard, "screen": [(0.0, 9.0, "EXIT")]}})
    cues = {cue["text"]: cue["id"] for cue in client.get(f"/videos/{video}").json()["transcript"]}
    path = f"/videos/{video}/transcript"
    corrected = client.patch(f"{path}/{cues['a <b>hewn & cry']}", json={"text": "a <b>hue & cry"})
    assert corrected.headers["etag"] == client.get(f"/videos/{video}").headers["etag"]
    assert [(cue["text"], cue["source"]) for cue in corrected.json()["transcript"]] == [
        ("a <b>hue & cry", "person"),
        ("EXIT", "screen"),
        ("the end --> now", "speech"),
    ]
    vtt = client.get(path)
    assert vtt.headers["content-type"].startswith("text/vtt")
    assert vtt.text == (
        "WEBVTT\n\n1\n00:00:00.000 --> 00:00:01.500\na &lt;b&gt;hue &amp; cry\n\n"
        "2\n01:01:01.250 --> 01:01:02.000\nthe end --&gt; now\n\n"
    )
    srt = client.get(path, params={"format": "srt", "source": ["screen"]})
    assert srt.text == "1\n00:00:00,000 --> 00:00:09,000\nEXIT\n\n"
    assert "srt" in srt.headers["content-disposition"]
    assert client.delete(f"{path}/{cues['the end --> now']}").status_code == 200
    for answer in (
        client.delete(f"{path}/{cues['the end --> now']}"),
        client.patch(f"{path}/{cues['a <b>hewn & cry']}", json={"text": "again"}),
        client.get("/videos/nobody/transcript"),
    ):
        assert answer.status_code == 404
    assert client.patch(f"{path}/{cues['EXIT']}", json={"end": 0}).status_code == 422
    with session_scope(write=True) as session:
        store_texts(session, {key: {"speech": heard}}, is_read=True)
    shown = [cue["text"] for cue in client.get(f"/videos/{video}").json()["transcript"]]
    assert shown == ["a <b>hue & cry", "EXIT"]
    assert client.patch(f"/videos/{video}", json={"transcript": None}).json()["transcript"] == []


def test_entity_tag_prevents_lost_updates(client: TestClient, video: str) -> None:
    read = client.get(f"/videos/{video}")
    patch, condition = {"metadata": {"note": "first"}}, {"If-Match": read.headers["etag"]}
    first = client.patch(f"/videos/{video}", json=patch, headers=condition)
    assert (first.status_code, first.headers["etag"]) == (200, client.get(f"/videos/{video}").headers["etag"])
    second = client.patch(f"/videos/{video}", json={"metadata": {"note": "second"}}, headers=condition)
    assert (second.status_code, second.headers["content-type"]) == (412, "application/problem+json")
    assert client.get(f"/videos/{video}").json()["metadata"]["note"] == "first"
    merge = {"Content-Type": "application/merge-patch+json"}
    assert (
        client.patch(f"/videos/{video}", content='{"metadata": {"note": null}}', headers=merge).status_code
        == 200
    )
    assert client.get(f"/videos/{video}").headers["etag"] == read.headers["etag"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"captions": ["\\u0000"]}', "captions[0]"),
        ('{"captions": "x"}', "captions"),
        ('{"captions": [1]}', "captions[0]"),
        ('{"title": "x"}', "title"),
        ('{"metadata": []}', "metadata"),
        ('{"metadata": {"n": 1e999}}', "metadata"),
        ("[]", "body"),
        ("{", "body"),
    ],
)
def test_invalid_edit_names_the_field(client: TestClient, video: str, body: str, field: str) -> None:
    answer = client.patch(f"/videos/{video}", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_edit_of_an_unknown_video_is_not_found(client: TestClient, library: list[str]) -> None:
    assert client.patch("/videos/nowhere", json={}).status_code == 404
    deep = '{"metadata": ' + '{"x": ' * 3000 + "1" + "}" * 3001
    answer = client.patch("/videos/nowhere", content=deep, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404, 422)


def test_captions_of_held_out_videos_are_found_and_not_learned(
    client: TestClient, library: list[str]
) -> None:
    """A caption's words lead to its domain at once; the routing profile covers training videos only."""

    def weights() -> dict[str, float]:
        return {task["task_id"]: task["weight"] for task in _search(client, "bagpipes")["routing"]}

    held_out = client.get("/videos", params={"task": library[0], "split": "test"}).json()["videos"][0]
    before = weights()
    client.patch(f"/videos/{held_out['id']}", json={"captions": ["bagpipes"]})
    assert _search(client, "bagpipes")["results"][0]["video_id"] == held_out["id"]
    by_words = weights()
    assert by_words[library[0]] > before[library[0]]
    _refresh(client)
    assert weights() == pytest.approx(by_words, abs=1e-3)
    client.patch(f"/videos/{held_out['id']}", json={"captions": held_out["captions"]})
    assert weights() == pytest.approx(before, abs=1e-3)


def test_edited_captions_describe_videos(client: TestClient, video: str) -> None:
    before = client.get(f"/videos/{video}").json()["captions"]
    path = f"/videos/{video}/captions?k=50"
    texts = {caption["text"] for caption in client.get(path).json()["captions"]}
    assert before[0] in texts
    client.patch(f"/videos/{video}", json={"captions": ["a caption that is new here"]})
    after = client.get(path).json()["captions"]
    assert [caption["video_id"] for caption in after if caption["text"] == "a caption that is new here"] == [
        video
    ]
    client.patch(f"/videos/{video}", json={"captions": before})
    assert {caption["text"] for caption in client.get(path).json()["captions"]} == texts


SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def guarded(configured: Settings, client: TestClient, library: list[str]) -> TestClient:
    """The learned library behind an API key, which requests without another key send."""
    secured = configured.model_copy(update={"api_key": SecretStr(SECRET)})
    app = create_app(secured)
    app.state.query_service = client.app.state.query_service  # type: ignore[attr-defined]
    return TestClient(app, base_url=BASE_URL, headers={"X-API-Key": SECRET, HEADER: str(LATEST)})


@pytest.fixture
def searchable_video(guarded: TestClient, library: list[str]) -> str:
    """ID of a searchable video."""
    return str(guarded.get("/videos", params={"task": library[0]}).json()["videos"][0]["id"])


def _new_key(scope: AccessScope = "search") -> tuple[str, dict[str, str]]:
    """Return the name of a new key, and the header with it."""
    name = uuid.uuid4().hex
    return name, {"X-API-Key": create_key(KeySpec(name=name, scope=scope)).key}


def _body(searchable_video: str, text: str = "a xylophone", verdict: str = "right") -> dict[str, str]:
    return {"text": text, "video_id": searchable_video, "verdict": verdict}


def test_confirmed_text_changes_the_next_search(guarded: TestClient, searchable_video: str) -> None:
    html = "<img src=x onerror=alert(1)> theremin"
    given = guarded.post("/feedback", json=_body(searchable_video, html))
    assert given.status_code == 200
    assert given.json()["text"] == html
    best = guarded.get("/search", params={"q": "theremin"}).json()["results"][0]
    assert best["video_id"] == searchable_video
    assert (best["words"][0]["kind"], best["words"][0]["text"]) == ("confirmed", html)
    assert guarded.delete(f"/feedback/{given.json()['id']}").status_code == 204
    assert guarded.delete(f"/feedback/{given.json()['id']}").status_code == 404
    assert guarded.get("/search", params={"q": "theremin"}).json()["results"][0]["words"] == []


def test_callers_see_and_delete_their_own_and_administrators_all(
    guarded: TestClient, searchable_video: str
) -> None:
    (ada, ada_key), (_, bob_key), (_, admin_key) = _new_key(), _new_key(), _new_key("admin")
    given = guarded.post("/feedback", json=_body(searchable_video), headers=ada_key).json()
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
    assert guarded.post("/feedback", json=_body(searchable_video), headers=nobody).status_code == 401
    assert guarded.delete(path, headers=nobody).status_code == 401
    assert guarded.get("/feedback", headers=nobody).status_code == 401
    assert guarded.delete(path, headers=admin_key).status_code == 204
    assert listed(ada_key) == []


def test_callers_are_limited_separately(
    guarded: TestClient, searchable_video: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_routes, "RATE", RateLimitItemPerMinute(3))
    (_, ada), (_, bob) = _new_key(), _new_key()
    answers = [
        guarded.post("/feedback", json=_body(searchable_video, f"word{n}"), headers=ada) for n in range(4)
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert guarded.post("/feedback", json=_body(searchable_video), headers=bob).status_code == 200


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
    guarded: TestClient, searchable_video: str, changed: dict[str, Any], status: int, field: str | None
) -> None:
    answer = guarded.post("/feedback", json={**_body(searchable_video), **changed})
    assert answer.status_code == status, answer.text
    assert [error["field"] for error in answer.json().get("errors", [])] == ([field] if field else [])


def test_bad_lists_and_ids_are_refused(guarded: TestClient) -> None:
    for query in ({"limit": "0"}, {"cursor": "x"}, {"verdict": "maybe"}, {"who": "me"}):
        assert guarded.get("/feedback", params=query).status_code == 422, query
    for number in ("0", "-1", "x", str(2**63)):
        assert guarded.delete(f"/feedback/{number}").status_code == 422, number
    assert guarded.delete(f"/feedback/{2**63 - 1}").status_code == 404
