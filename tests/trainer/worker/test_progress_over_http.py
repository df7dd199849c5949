"""Progress and remaining time of a task that a worker embeds, as clients read them over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from service.core.settings import Settings
from service.tasks import lifecycle, task_details
from service.tasks.lifecycle import lease
from trainer.worker import learning_job, shared_embedding

VIDEOS, CHUNK = 12, 2
SECONDS_PER_VIDEO = 3.0


class _Embedding:
    """The embedding of chunks, on a clock that advances with the videos.

    Attributes:
        seconds: Current time.
        answers: Response of ``GET /tasks/{id}`` before each chunk.
    """

    def __init__(self, client: TestClient, task_id: str) -> None:
        self._client, self._task_id = client, task_id
        self._embed = shared_embedding.embed_clips
        self.seconds = 0.0
        self.answers: list[dict[str, Any]] = []

    def __call__(self, encode: Any, clips: Any, **options: Any) -> Any:
        self.answers.append(self._client.get(f"/tasks/{self._task_id}").raise_for_status().json())
        self.seconds += SECONDS_PER_VIDEO * len(clips)
        return self._embed(encode, clips, **options)

    def read_clock(self) -> float:
        return self.seconds


def _learn(task_id: str, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Learn a task; returns the responses during its embedding."""
    claim = lifecycle.claim_training(task_id, "worker")
    assert claim is not None
    embedding = _Embedding(client, task_id)
    with monkeypatch.context() as patch, claim:
        patch.setattr(task_details, "monotonic", embedding.read_clock)
        patch.setattr(shared_embedding, "embed_clips", embedding)
        learning_job.process_claim(claim)
    return embedding.answers


@pytest.mark.slow
def test_indexing_shows_done_total_and_time_left(
    library: Settings, post_videos: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "EVENT_SECONDS", 0)
    monkeypatch.setattr(
        task_details, "monotonic", lambda: 0.0
    )  # stages outside of the embedding take no time
    monkeypatch.setattr(shared_embedding, "CHUNK_VIDEOS", CHUNK)
    with TestClient(create_app(library), base_url="http://127.0.0.1") as client:
        first = post_videos("day", videos=VIDEOS, captions=0)
        answers = _learn(first, client, monkeypatch)
        assert [answer["state"] for answer in answers] == ["indexing"] * (VIDEOS // CHUNK)
        progress = [answer["progress"] for answer in answers]
        assert [(p["stage"], p["done"], p["total"]) for p in progress] == [
            ("indexing", done, VIDEOS) for done in range(0, VIDEOS, CHUNK)
        ]
        left = [SECONDS_PER_VIDEO * (VIDEOS - done) for done in range(0, VIDEOS, CHUNK)]
        assert [p["eta_seconds"] for p in progress] == [None, *left[1:]], "the first report gives no rate"
        assert progress[-1]["videos_per_second"] == pytest.approx(1 / SECONDS_PER_VIDEO)
        assert {answer["eta_seconds"] for answer in answers} == {None}, "no task has finished before"

        ready = client.get(f"/tasks/{first}").json()
        assert (ready["state"], ready["eta_seconds"], ready["progress"]["eta_seconds"]) == (
            "ready",
            None,
            None,
        )
        assert ready["progress"]["times"]["seconds"]["indexing"] == SECONDS_PER_VIDEO * VIDEOS

        second = post_videos("night", videos=VIDEOS, captions=0)
        waiting = client.get(f"/tasks/{second}").json()
        assert waiting["eta_seconds"] == SECONDS_PER_VIDEO * VIDEOS
        answers = _learn(second, client, monkeypatch)
        assert [answer["eta_seconds"] for answer in answers] == left
