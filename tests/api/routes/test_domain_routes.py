"""Quality of single domains and results over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cinestrata_schemas.tasks import TaskSpec
from service.tasks import commands
from tests.api.learned_library import FIRST, SECOND


def test_report_describes_the_held_out_captions(client: TestClient, library: list[str]) -> None:
    report = client.get(f"/tasks/{library[0]}/queries").json()
    assert (report["task"], report["split"], report["held_out"]) == (FIRST, "test", True)
    assert (report["captions"], report["queries"]) == (6, 12)
    assert {share["task"] for share in report["first_results"]} <= {FIRST, SECOND}
    assert sum(share["queries"] for share in report["first_results"]) == 12
    ranks = [outcome["rank"] or 10**6 for outcome in report["worst"]]
    assert ranks == sorted(ranks, reverse=True)
    assert len(ranks) == min(10, round(12 * (1 - report["recall_at_1"])))
    stored = client.get("/forgetting").json()["newest"]
    assert report["measured"]["local"] == stored["local"][0]
    # The stored recall of this gallery belongs to the same queries and videos.
    assert report["measured"]["global_all"]["r1"] == pytest.approx(report["recall_at_1"])


def test_explanation_adds_up_to_the_score_of_the_search(client: TestClient, library: list[str]) -> None:
    query = {"q": "a ball moves left"}
    result = client.get("/search", params=query).json()["results"][3]
    answer = client.get(f"/videos/{result['video_id']}/explanation", params=query).json()
    assert (answer["rank"], answer["task"], answer["query"]) == (4, result["task"], query["q"])
    assert answer["score"] == pytest.approx(result["score"], abs=1e-5)
    assert answer["visual_term"] + answer["routing_term"] + answer["words_term"] == pytest.approx(
        answer["score"], abs=1e-5
    )
    assert answer["depth"] == 100


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/tasks/nowhere/queries", 404, None),
        ("/videos/nothing/explanation?q=x", 404, None),
        ("/tasks/{task}/queries?worst=1000", 422, "worst"),
        ("/tasks/{task}/queries?best=1", 422, "best"),
        ("/videos/nothing/explanation", 422, "q"),
        ("/videos/nothing/explanation?q=x&k=0", 422, "k"),
        ("/videos/nothing/explanation?q=x&cursor=y", 422, "cursor"),
    ],
)
def test_invalid_request_is_named(
    client: TestClient, library: list[str], path: str, status: int, field: str | None
) -> None:
    answer = client.get(path.format(task=library[0]))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    if field:
        assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_waiting_task_has_no_report(client: TestClient, library: list[str], world: Path) -> None:
    videos = [{"uri": f"{FIRST}/{next((world / FIRST).glob('*.mp4')).name}"}]
    task = commands.create_task(TaskSpec.model_validate({"name": "later", "videos": videos})).task
    answer = client.get(f"/tasks/{task.id}/queries")
    assert (answer.status_code, "queued" in answer.json()["detail"]) == (409, True)


@pytest.mark.parametrize("path", ["/domains", "/watch"])
def test_ids_in_addresses_are_text(client: TestClient, path: str) -> None:
    answer = client.get(f'{path}/"><img src=x onerror=alert(1)>')
    assert answer.status_code == 200
    assert "<img" not in answer.text
    assert "&lt;img" in answer.text
