"""A method that trains adapters of the default backbone, over HTTP and with a killed learning worker.

The contract of the methods interrupts every method, without processes.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from media.scenes.scene_domains import make_scenes
from media.scenes.scene_files import write_scene
from tests.e2e.conftest import Machine

METHOD, VIDEOS, EPOCHS = "strata", 12, 6


def _write_task(media: Path) -> dict[str, Any]:
    media.mkdir(parents=True)
    scenes = make_scenes("sea", train=VIDEOS - 4, val=2, test=2)
    for scene in scenes:
        write_scene(media, scene)
    videos = [
        {"uri": f"{scene.id}.mp4", "captions": list(scene.captions), "split": scene.split} for scene in scenes
    ]
    return {"name": "sea", "videos": videos, "settings": {"epochs": EPOCHS, "batch_size": 4}}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_method_resumes_after_its_worker_was_killed(machine: Machine, tmp_path: Path) -> None:
    body = _write_task(tmp_path / "media")
    process, url = machine.up(tmp_path, {"CINESTRATA_BACKBONE": "small"})
    epochs: list[int] = []
    with httpx.Client(base_url=url, timeout=60) as api:
        answer = api.post("/tasks", json={**body, "method": METHOD})
        assert answer.status_code == 202, answer.text
        route = answer.headers["location"]

        def has_reached(epoch: int) -> bool:
            task = api.get(route).json()
            assert task["state"] not in ("failed", "cancelled"), task
            if task["progress"]["stage"] == "training":
                epochs.append(task["progress"]["epoch"] or 0)
            return task["state"] == "ready" or (task["progress"]["epoch"] or 0) >= epoch

        machine.until(lambda: has_reached(3), "the third epoch")
        assert min(epochs) < 3, "progress reports the epochs"
        assert list((tmp_path / "checkpoints").rglob("checkpoint.json"))
        (worker,) = machine.processes(tmp_path, "--queue gpu")
        os.kill(worker, signal.SIGKILL)
        epochs.clear()
        machine.until(lambda: has_reached(EPOCHS + 1), "the end", seconds=600)
        assert min(epochs) >= 3, "the epochs before the kill are not learned again"
        task = api.get(route).json()
        assert (task["method"], task["trained"]) == (METHOD, True)
        query = body["videos"][0]["captions"][0]
        search = {"q": query, "k": 3}
        machine.until(lambda: api.get("/search", params=search).is_success, "searches use the release")
        assert len(api.get("/search", params=search).json()["results"]) == 3
        assert api.get("/forgetting").json()["tasks"] == ["sea"]
    process.terminate()
    process.wait()
