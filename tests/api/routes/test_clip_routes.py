"""Search by clip or image, and captions for a video: results, refusals and temporary files."""

from __future__ import annotations

import io
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from models.encoders.encoder_registry import open_query_encoder
from models.releases.release_files import read_lineage, read_release
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core import request_limits
from service.core.settings import Settings
from service.search.clip_search import ClipSearch
from service.search.snapshots.query_vector_cache import QueryVectorCache
from service.search.video_search import CaptionIndex

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, which must be empty after each test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def _post(client: TestClient, content: bytes, name: str = "clip.mp4", **query: Any) -> Any:
    return client.post("/search/clip", params=query, files={"clip": (name, content, "video/mp4")})


def _videos(task: str) -> list[Video]:
    with session_scope() as session:
        return list(session.query(Video).filter(Video.task_id == task).order_by(Video.vector_id))


def _file(configured: Settings, video: Video) -> bytes:
    return (configured.media_root / video.uri).read_bytes()


def _picture(kind: str, pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def test_clip_of_an_indexed_video_finds_that_video(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    for task in library:
        for video in _videos(task)[:3]:
            answer = _post(client, _file(configured, video), k=3).json()
            # Vectors are stored in half precision, and some clips differ in the order of their frames alone.
            scores = {result["video_id"]: result["score"] for result in answer["results"]}
            assert scores[video.id] == pytest.approx(1, abs=2e-3)
            assert max(scores.values()) - scores[video.id] < 1e-3
            assert answer["results"][0]["task_id"] == task
            uris = {result["video_id"]: result["uri"] for result in answer["results"]}
            assert uris[video.id] == video.uri
            assert (answer["kind"], answer["captions"]) == ("video", None)
            assert answer["duration"] == pytest.approx(video.duration)
            assert len(answer["searched"]) == 2


def test_parameters_act_as_in_text_search(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    video = _videos(library[1])[0]
    content = _file(configured, video)
    whole = _post(client, content, k=30).json()["results"]
    one = _post(client, content, k=30, task=library[1]).json()
    assert one["results"] == [
        {**result, "rank": place}
        for place, result in enumerate((r for r in whole if r["task_id"] == library[1]), 1)
    ]
    assert len(one["searched"]) == 1
    least = whole[4]["score"]
    assert _post(client, content, k=30, min_score=least).json()["results"] == whole[:5]
    assert _post(client, content, k=2).json()["results"] == whole[:2]
    nothing = _post(client, content, min_duration=1000).json()
    assert nothing["results"] == []


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_image_is_a_clip_of_one_frame(
    client: TestClient, library: list[str], configured: Settings, kind: str
) -> None:
    pixels = (
        np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8).repeat(2, axis=0).repeat(2, axis=1)
    )
    answer = _post(client, _picture(kind, pixels), "a picture", k=3)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["kind"], body["width"], body["height"], body["duration"]) == ("picture", 128, 96, None)
    assert len(body["results"]) == 3


def _bomb(width: int, height: int) -> bytes:
    """Return a small PNG whose header declares a huge size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 10_000_000, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


NEITHER = {
    "empty": b"",
    "text": b"no video at all",
    "playlist": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
    "script": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "bomb": _bomb(60_000, 60_000),
    "largest": _bomb(2**31 - 1, 2**31 - 1),
    "broken png": b"\x89PNG\r\n\x1a\n" + b"\0" * 100,
    "broken jpeg": b"\xff\xd8\xff\xe0" + b"\x00" * 200,
    "zeros": b"\0" * 4096,
}


@pytest.mark.parametrize("content", NEITHER.values(), ids=NEITHER)
def test_file_that_is_neither_video_nor_image_is_refused(
    client: TestClient, library: list[str], content: bytes
) -> None:
    answer = _post(client, content)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert [error["field"] for error in problem["errors"]] == ["clip"]
    assert "passwd" not in answer.text
    assert "/" not in problem["errors"][0]["message"], "no path of the server is named"


@pytest.mark.parametrize(
    "name",
    [
        *("../../escaped.mp4", "/tmp/escaped.mp4", "..\\escaped.mp4", "%2e%2e/escaped"),
        *("a\0b.mp4", "x" * 5000, ";"),
    ],
)
def test_filename_of_an_upload_is_not_used_as_a_path(
    client: TestClient, library: list[str], configured: Settings, name: str
) -> None:
    before = sorted(configured.data_dir.rglob("*"))
    answer = _post(client, _file(configured, _videos(library[0])[0]), name, k=1)
    assert answer.status_code in (200, 400, 422)
    assert "escaped" not in answer.text
    assert [path for path in sorted(configured.data_dir.rglob("*")) if path not in before] == []
    assert not Path("/tmp/escaped.mp4").exists()


def test_too_large_clip_is_refused(
    client: TestClient, library: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_limits, "MAX_CLIP_BYTES", 100_000)
    answer = _post(client, b"x" * 100_001)
    assert answer.status_code == 413
    assert "100000 bytes" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"k": 0}, "k"),
        ({"task": "nowhere"}, "task"),
        ({"captions": 0}, "captions"),
        ({"where": "{"}, "where"),
    ],
)
def test_invalid_parameter_is_named(
    client: TestClient, library: list[str], configured: Settings, query: dict[str, Any], field: str
) -> None:
    answer = _post(client, _file(configured, _videos(library[0])[0]), **query)
    assert answer.status_code == 422
    assert field in [error["field"] for error in answer.json()["errors"]]


def test_clip_field_must_be_a_file(client: TestClient, library: list[str]) -> None:
    for send in ({}, {"data": {"clip": "text"}}, {"files": {"other": ("x.mp4", b"x")}}):
        answer = client.post("/search/clip", **send)
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert [error["field"] for error in answer.json()["errors"]] == ["clip"]
    broken = client.post("/search/clip", content=b"x", headers={"Content-Type": "multipart/form-data"})
    assert 400 <= broken.status_code < 500


# -- texts for a video --------------------------------------------------------------------------------------


def _scores(
    client: TestClient, task: str, vector: np.ndarray, texts: list[str], configured: Settings
) -> np.ndarray:
    """Compute the cosines between a vector and texts encoded for a task, in a loop."""
    service = client.app.state.query_service  # type: ignore[attr-defined]
    snapshot = service.snapshots.current().index_snapshot
    states = {
        t: read_release(snapshot.release_folder(s.release), profiles=False)
        for t, s in snapshot.manifest.shards.items()
    }
    current = read_release(
        snapshot.release_folder(snapshot.manifest.release),
        read_parent=lambda earlier: read_lineage(snapshot.release_folder(earlier)),
    )
    backbone = service.snapshots.current().lineages[task].query_cache.encoder.backbone
    encoder = open_query_encoder(backbone, current, states)
    return np.array([encoder.encode([text], [task], "pinned")[0, 0] @ vector for text in texts])


@pytest.mark.parametrize("scope", ["task", "all"])
def test_best_captions_of_a_video_are_returned(
    client: TestClient, library: list[str], configured: Settings, scope: str
) -> None:
    task = library[1]
    video = _videos(task)[2]
    shard = client.app.state.query_service.snapshots.current().shards[task]  # type: ignore[attr-defined]
    vector = shard.vectors(np.array([video.vector_id]))[0]
    sources = [task] if scope == "task" else library
    given = {t: {text: v.id for v in reversed(_videos(t)) for text in reversed(v.captions)} for t in sources}
    listed = [(text, t, first) for t in sources for text, first in given[t].items()]
    scores = _scores(client, task, vector, [text for text, *_ in listed], configured)
    answer = client.get(f"/videos/{video.id}/captions", params={"k": 6, "scope": scope}).json()
    assert (answer["task_id"], answer["mode"], answer["candidates"]) == (task, "pinned", len(listed))
    np.testing.assert_allclose(
        [caption["score"] for caption in answer["captions"]], np.sort(scores)[::-1][:6], atol=2e-3
    )
    by_text = {(text, t): (score, first) for (text, t, first), score in zip(listed, scores, strict=True)}
    for caption in answer["captions"]:
        score, first = by_text[caption["text"], caption["task_id"]]
        assert caption["score"] == pytest.approx(score, abs=2e-3)
        assert caption["video_id"] == first
        assert caption["own"] == (caption["text"] in video.captions)
    again = client.get(f"/videos/{video.id}/captions", params={"k": 6, "scope": scope}).json()
    assert again == answer


def test_clip_captions_come_from_the_domain_of_the_best_result(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    video = _videos(library[0])[1]
    answer = _post(client, _file(configured, video), captions=4).json()
    wanted = client.get(f"/videos/{video.id}/captions", params={"k": 4}).json()["captions"]
    assert [caption["text"] for caption in answer["captions"]] == [caption["text"] for caption in wanted]
    np.testing.assert_allclose(
        [caption["score"] for caption in answer["captions"]],
        [caption["score"] for caption in wanted],
        atol=2e-3,
    )
    assert not any(caption["own"] for caption in answer["captions"])


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [("nowhere", {}, 404), (None, {"k": 0}, 422), (None, {"k": 10**9}, 422), (None, {"scope": "world"}, 422)],
)
def test_invalid_caption_requests_are_refused(
    client: TestClient, library: list[str], path: str | None, query: dict[str, Any], status: int
) -> None:
    video = path or _videos(library[0])[0].id
    answer = client.get(f"/videos/{video}/captions", params=query)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_clips_and_captions_count_as_several_searches_in_admission(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    service = client.app.state.query_service  # type: ignore[attr-defined]
    video = _videos(library[0])[0]
    with service.admission.admit(request_limits.MAX_WAITING_TEXTS - 1):
        for refused in (_post(client, _file(configured, video)), client.get(f"/videos/{video.id}/captions")):
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) > 0
    assert client.get(f"/videos/{video.id}/captions").status_code == 200


def test_scores_are_scaled_cosines_of_each_shards_own_encoder(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    serving = client.app.state.query_service.snapshots.current()  # type: ignore[attr-defined]
    video = _videos(library[0])[0]
    results = _post(client, _file(configured, video), k=30).json()["results"]
    assert len(results) == 24
    scores = {result["video_id"]: result["score"] for result in results}
    # Under its own task the clip's vector is the stored one.
    shard = serving.shards[library[0]]
    vectors = shard.vectors(shard.ids)
    stored_vector = vectors[shard.ids.tolist().index(video.vector_id)]
    pairs = [float(a @ b) for i, a in enumerate(vectors) for b in vectors[:i]]
    mean = sum(pairs) / len(pairs)
    for other in _videos(library[0]):
        cosine = float(vectors[shard.ids.tolist().index(other.vector_id)] @ stored_vector)
        assert scores[other.id] == pytest.approx((cosine - mean) / (1 - mean), abs=1e-3)
    assert [result["rank"] for result in results] == list(range(1, 25))
    assert sorted(scores.values(), reverse=True) == [result["score"] for result in results]


def test_domain_with_missing_encoder_is_reported_as_degraded(
    client: TestClient, library: list[str], configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = client.app.state.query_service  # type: ignore[attr-defined]
    serving = service.snapshots.current()
    broken = serving.index_snapshot.manifest.shards[library[0]].release
    folder = configured.index_dir / "releases" / broken
    # Without the cached video encoders.
    monkeypatch.setattr(
        service, "clips", ClipSearch(service.settings, service.read_cache, service.caption_index)
    )
    weights = (folder / "weights.safetensors").read_bytes()
    (folder / "weights.safetensors").write_bytes(weights[:-1])
    try:
        answer = _post(client, _file(configured, _videos(library[1])[0]), k=30).json()
        name = serving.task_names[library[0]]
        assert "video encoder cannot be read" in answer["degraded"][name]
        assert {result["task_id"] for result in answer["results"]} == {library[1]}
        refused = _post(client, _file(configured, _videos(library[1])[0]), task=library[0])
        assert refused.status_code == 503
    finally:
        (folder / "weights.safetensors").write_bytes(weights)
    assert _post(client, _file(configured, _videos(library[1])[0])).json()["degraded"] == {}
    service.clips.close()


def test_caption_vectors_are_cached_within_a_limit(
    client: TestClient, library: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = client.app.state.query_service  # type: ignore[attr-defined]
    encoder = service.snapshots.current().distinct_lineages[0].query_cache
    monkeypatch.setattr(service, "caption_index", CaptionIndex())
    encoded: list[tuple[str, int]] = []
    fresh = type(encoder).encode_uncached

    def counted(self: Any, texts: Any, mode: str, task: str) -> Any:
        encoded.append((task, len(texts)))
        return fresh(self, texts, mode, task)

    monkeypatch.setattr(type(encoder), "encode_uncached", counted)
    one, two = (_videos(task)[0].id for task in library)
    for video in (one, one, two, one):
        client.get(f"/videos/{video}/captions")
    assert [task for task, _ in encoded] == library
    monkeypatch.setattr(service, "caption_index", CaptionIndex(max_bytes=1))
    for video in (one, two, one, one):
        client.get(f"/videos/{video}/captions")
    assert [task for task, _ in encoded] == [*library, *library, library[0]]


def test_captions_of_a_deleted_video_are_not_returned(
    client: TestClient, library: list[str], configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs last, because it deletes videos."""
    stays, goes, shares = _videos(library[0])[:3]
    service = client.app.state.query_service  # type: ignore[attr-defined]
    content = _file(configured, goes)

    def outcome() -> dict[str, str]:
        every = [
            client.get(f"/videos/{stays.id}/captions", params={"k": 100, "scope": "all"}).json(),
            _post(client, content, captions=100, task=library[0]).json(),
        ]
        return {text["text"]: text["video_id"] for answer in every for text in answer["captions"]}

    for video, captions in ((goes, ["only its own", "one of both"]), (shares, ["one of both"])):
        assert client.patch(f"/videos/{video.id}", json={"captions": captions}).status_code == 200
    before = outcome()
    assert (before["only its own"], before["one of both"]) == (goes.id, goes.id)
    encoded: list[str] = []
    encode = QueryVectorCache.encode_uncached
    monkeypatch.setattr(
        QueryVectorCache,
        "encode_uncached",
        lambda self, texts, *where: encoded.extend(texts) or encode(self, texts, *where),
    )
    monkeypatch.setattr(service.snapshots, "refresh", lambda: False)  # a server that has not seen it yet
    assert client.delete(f"/videos/{goes.id}").status_code < 300
    after = outcome()
    assert "only its own" not in after
    assert after["one of both"] == shares.id
    monkeypatch.undo()
    service.snapshots.refresh()
    assert outcome() == after
    assert encoded == [], "remaining captions are not encoded again"
