"""The demo on a reduced world (slow): learning and search from an empty folder, repetition, and a killed worker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Machine

pytestmark = pytest.mark.slow  # the tests of the API, the workers and the CLI cover each step of the demo

DOMAINS = ["street", "sea"]
TRAIN, VAL, TEST = 12, 5, 6
SMALL = ("--domains", 2, "--train", TRAIN, "--test", TEST)


@pytest.fixture(scope="module")
def data(machine: Machine) -> Path:
    return machine.folder / "data"


@pytest.fixture(scope="module")
def report(machine: Machine, data: Path) -> dict[str, Any]:
    """Report of the demo on an empty data folder."""
    path = machine.folder / "report.json"
    completed = machine.run("demo", "--exit", "--report", path, "--data", data, "--port", 0, *SMALL)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "BWF local" in completed.stdout
    assert "BWF global" in completed.stdout
    assert machine.processes(data) == []
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts


def test_demo_learns_all_domains_in_order(report: dict[str, Any]) -> None:
    tasks = report["tasks"]
    assert [task["name"] for task in tasks] == DOMAINS
    assert [task["state"] for task in tasks] == ["ready", "ready"]
    assert [task["learned_order"] for task in tasks] == [1, 2]
    for task in tasks:
        assert task["rejected"] == []
        assert task["counts"]["accepted"] == TRAIN + VAL + TEST
        assert task["counts"]["train"] == TRAIN
        assert task["counts"]["test"] == TEST
    assert len({task["release"] for task in tasks}) == 2


def test_demo_report_has_a_triangular_recall_matrix_and_its_bwf(report: dict[str, Any]) -> None:
    assert report["domains"] == DOMAINS
    for matrix, bwf in (("matrix_local", "bwf_local"), ("matrix_global", "bwf_global")):
        (first, undefined), (later, second) = report[matrix]
        assert undefined is None
        assert all(0 <= value <= 1 for value in (first, later, second))
        assert report[bwf] == pytest.approx(first - later)
    assert len(report["zero_shot"]) == 2


def test_demo_reports_no_local_forgetting_with_pinned_queries(report: dict[str, Any]) -> None:
    assert report["mode"] == "pinned"
    assert report["bwf_local"] == 0


def test_demo_searches_by_a_word_a_sentence_and_a_text_that_nothing_matches(report: dict[str, Any]) -> None:
    word, sentence, nothing = report["searches"]
    assert [search["kind"] for search in report["searches"]] == ["word", "sentence", "nothing"]
    assert word["query"] == "dog"
    assert word["right_first"] == len(word["right"]) > 1, "all videos with the word come first"
    assert word["matches"]
    assert word["matching"] >= len(word["right"])
    assert sentence["rank"] == 1
    assert sentence["matches"]
    assert nothing["matches"] is False
    for search in report["searches"]:
        scores = [result["score"] for result in search["results"]]
        assert scores == sorted(scores, reverse=True)
        assert len({result["video_id"] for result in search["results"]}) == len(scores) >= 10


def test_repeated_demo_learns_no_task_twice(machine: Machine, data: Path, report: dict[str, Any]) -> None:
    path = machine.folder / "again.json"
    completed = machine.run("demo", "--exit", "--report", path, "--data", data, "--port", 0, *SMALL)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    again = json.loads(path.read_text())
    assert [task["id"] for task in again["tasks"]] == [task["id"] for task in report["tasks"]]
    for key in ("matrix_local", "matrix_global", "zero_shot"):
        assert again[key] == report[key]
    for before, after in zip(report["searches"], again["searches"], strict=True):
        assert [r["video_id"] for r in before["results"]] == [r["video_id"] for r in after["results"]]


@pytest.mark.endurance  # the tests of the Celery workers kill a learning worker, too
def test_killed_learning_worker_loses_nothing(machine: Machine, data: Path, report: dict[str, Any]) -> None:
    up, url = machine.up(data)
    refused = machine.run("up", "--data", data, "--port", 0)
    assert refused.returncode == 1
    assert f"process {up.pid}" in refused.stderr
    assert url in refused.stderr

    media = data / "media" / "world" / "third"
    _write_third_domain(media)
    query = {"q": "a car moves", "k": 5}
    with httpx.Client(base_url=url, timeout=60) as client:
        before = client.get("/search", params={**query, "task": DOMAINS[0]}).raise_for_status().json()
        videos = [
            {**json.loads(line), "uri": f"world/third/kitchen-table/{json.loads(line)['uri']}"}
            for line in (media / "kitchen-table" / "manifest.jsonl").read_text().splitlines()
        ]
        body = {"name": "third", "videos": videos}
        posted = client.post("/tasks", json=body, headers={"Idempotency-Key": "third"})
        assert posted.status_code == 202, posted.text
        location = posted.headers["Location"]

        def task() -> dict[str, Any]:
            view: dict[str, Any] = client.get(location).raise_for_status().json()
            return view

        machine.until(lambda: task()["state"] == "training", "training")
        (worker,) = machine.processes(data, "--queue gpu")
        os.kill(worker, signal.SIGKILL)
        after = client.get("/search", params={**query, "task": DOMAINS[0]}).raise_for_status().json()
        assert after["results"] == before["results"]

        machine.until(lambda: task()["state"] == "ready", "the task continues in another worker")
        assert len(_learners(client, location)) == 2, "two workers have learned the task"
        machine.until(
            lambda: len(client.get("/forgetting").json()["tasks"]) == 3, "three tasks are evaluated"
        )

        def kept() -> dict[str, Any]:
            view: dict[str, Any] = client.get("/search", params={**query, "task": DOMAINS[0]}).json()
            return view

        machine.until(lambda: kept()["generation"] > before["generation"], "the new release answers")
        assert _rank(kept()) == _rank(before), "only the confidence is that of the new release"

    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0
    machine.until(lambda: machine.processes(data) == [], "all processes have ended", 5)


def _rank(answer: dict[str, Any]) -> list[tuple[str, float]]:
    return [(result["video_id"], result["score"]) for result in answer["results"]]


def _learners(client: httpx.Client, location: str) -> set[str]:
    lines = client.get(f"{location}/events").text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    messages = [event["data"].get("message", "") for event in events if event["kind"] == "log"]
    # The first worker that takes the task examines its videos.
    return set([message for message in messages if message.startswith("Taken by ")][1:])


def _write_third_domain(folder: Path) -> None:
    from tests.drawn_videos import write_domains

    write_domains(folder, domains=["kitchen-table"], train=24, val=2, test=4)
