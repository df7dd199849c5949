"""A CLIP of realistic size, with random weights in the files of the model hub, from a task over HTTP to a search."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.data.random_checkpoint import write_random_checkpoint
from media.scenes.scene_domains import make_scenes
from media.scenes.scene_files import manifest_line, write_scene
from tests.e2e.conftest import Machine

pytestmark = pytest.mark.endurance  # the path of the default backbone, on towers of 150 million parameters

MODEL = "ViT-B-32"
VIDEOS = 12
SETTINGS = {"epochs": 3, "batch_size": 4, "checkpointing": True}
FRAMES = 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a backbone whose folder holds the files of the hub."""
    return write_random_checkpoint(MODEL, tmp_path_factory.mktemp("weights"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Data folder of an empty library, with the videos of the domain ``sea`` below its media root."""
    folder = tmp_path / "media" / "sea"
    folder.mkdir(parents=True)
    scenes = make_scenes("sea", train=VIDEOS - 2, val=0, test=2)
    for scene in scenes:
        write_scene(folder, scene)
    (folder / "manifest.jsonl").write_text("".join(map(manifest_line, scenes)))
    return tmp_path


@pytest.fixture
def client(machine: Machine, data: Path, checkpoint: str) -> Iterator[httpx.Client]:
    """Client of ``cinestrata up`` on the folder."""
    process, url = machine.up(data, {"CINESTRATA_BACKBONE": checkpoint, "CINESTRATA_FRAMES": FRAMES})
    with httpx.Client(base_url=url, timeout=60) as opened:
        yield opened
    process.terminate()
    process.wait()


@pytest.mark.timeout(1300)
def test_method_learns_and_resumes_in_an_epoch(machine: Machine, data: Path, client: httpx.Client) -> None:
    lines = (data / "media" / "sea" / "manifest.jsonl").read_text().splitlines()
    videos = [{**json.loads(line), "uri": f"sea/{json.loads(line)['uri']}"} for line in lines]
    body = {"name": "sea", "method": "ffa_tame", "settings": SETTINGS, "videos": videos}
    posted = client.post("/tasks", json=body)
    assert posted.status_code == 202, posted.text
    location = posted.headers["Location"]

    def task() -> dict[str, Any]:
        view: dict[str, Any] = client.get(location).raise_for_status().json()
        assert view["state"] != "failed", view["error"]
        return view

    machine.until(lambda: (task()["progress"].get("epoch") or 0) >= 2, "the second epoch", 600)
    (worker,) = machine.processes(data, "--queue gpu")
    os.kill(worker, signal.SIGKILL)
    machine.until(lambda: task()["state"] == "ready", "another worker finishes the task", 600)

    view = task()
    assert (view["trained"], view["counts"]["accepted"]) == (True, VIDEOS)
    epochs = _epochs_by_worker(client, location)
    assert len(epochs) == 2, "two workers have trained the task"
    assert epochs[0][0] == 1
    assert min(epochs[1]) >= 2, "the second worker resumed from a checkpoint"
    assert max(epochs[1]) == SETTINGS["epochs"]
    query = {"q": videos[0]["captions"][0], "k": VIDEOS}
    machine.until(lambda: client.get("/search", params=query).is_success, "the API serves the release")
    results = client.get("/search", params=query).json()["results"]
    assert {result["video_id"] for result in results} == {video["id"] for video in videos}


def _epochs_by_worker(client: httpx.Client, location: str) -> list[list[int]]:
    """Return the epochs in the progress events, for each worker that trained the task."""
    lines = client.get(f"{location}/events").text.splitlines()
    epochs: list[list[int]] = []
    for event in (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")):
        if event["data"].get("message", "").startswith("Taken by "):
            epochs.append([])
        elif "epoch" in event["data"]:
            epochs[-1].append(event["data"]["epoch"])
    return [found for found in epochs if found]
