"""Progress of a task that a worker embeds, as clients read them over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from service.core.settings import Settings
from service.tasks import lifecycle
from service.tasks.lifecycle import claims
from trainer.worker import learning_job, shared_embedding

VIDEOS, CHUNK = 12, 2


class _Embedding:
    """The embedding of chunks.

    Attributes:
        answers: Response of ``GET /tasks/{id}`` before each chunk.
    """

    def __init__(self, client: TestClient, task_id: str) -> None:
        self._client, self._task_id = client, task_id
        self._embed = shared_embedding.embed_clips
        self.answers: list[dict[str, Any]] = []

    def __call__(self, encode: Any, clips: Any, **options: Any) -> Any:
        self.answers.append(self._client.get(f"/tasks/{self._task_id}").raise_for_status().json())
        return self._embed(encode, clips, **options)


def _learn(task_id: str, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Learn a task; returns the responses during its embedding."""
    claim = lifecycle.claim_training(task_id, "worker")
    assert claim is not None
    embedding = _Embedding(client, task_id)
    with monkeypatch.context() as patch, claim:
        patch.setattr(shared_embedding, "embed_clips", embedding)
        learning_job.process_claim(claim)
    return embedding.answers


@pytest.mark.slow
def test_indexing_shows_done_and_total(
    library: Settings, post_videos: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "EVENT_SECONDS", 0)
    monkeypatch.setattr(shared_embedding, "CHUNK_VIDEOS", CHUNK)
    with TestClient(create_app(library), base_url="http://127.0.0.1") as client:
        first = post_videos("day", videos=VIDEOS, captions=0)
        answers = _learn(first, client, monkeypatch)
        assert [answer["state"] for answer in answers] == ["indexing"] * (VIDEOS // CHUNK)
        progress = [answer["progress"] for answer in answers]
        assert [(p["stage"], p["done"], p["total"]) for p in progress] == [
            ("indexing", done, VIDEOS) for done in range(0, VIDEOS, CHUNK)
        ]
