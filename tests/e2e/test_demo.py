"""The demo on a reduced world (slow): learning and search from an empty folder, repetition, and a killed worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


@pytest.mark.endurance  # repeated requests and a restart of the service have tests of their own
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
