"""Edits over HTTP, and searches that use them."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from cinestrata_schemas.search import SearchResponse
from service.search.engine import SearchEngine
from service.search.snapshots import snapshot_manager


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
