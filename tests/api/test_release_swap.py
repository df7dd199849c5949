"""Publishing of releases while clients search."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import uvicorn

from api.app import create_app
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from service.core.settings import Settings
from service.search.snapshots import generation_loader, snapshot_manager
from tests.service.search.caption_library import BIRDS, CARS, SEA
from tests.service.search.probed_library import Probed

CLIENTS = 4


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("tiny")


@pytest.fixture
def library(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
) -> Probed:
    monkeypatch.setattr(generation_loader, "load_backbone", lambda name, frames: backbone)
    monkeypatch.setattr(snapshot_manager, "POLL_SECONDS", 0.02)
    return Probed(settings_factory(tmp_path), backbone, "ffa_tame", experts=2, rank=2)


@pytest.fixture
def server(library: Probed) -> Iterator[str]:
    """A real server on a real port; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            create_app(library.settings), log_level="warning", timeout_graceful_shutdown=5
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def _wait(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


@pytest.mark.slow
def test_published_releases_interrupt_no_search_and_no_response_mixes_releases(
    library: Probed, server: str
) -> None:
    """Six releases, the fourth of them wrong, while four clients search in both modes without a pause."""
    torch.set_num_threads(1)
    names: list[str] = []
    published: dict[int, tuple[str, set[str]]] = {}  # generation → its release, and the videos of its tasks
    answers: list[dict[str, Any]] = []
    failed: list[str] = []
    enough = threading.Event()

    def publish(name: str, captions: list[str]) -> int:
        names.append(name)
        # The expected answer is stored first, because a search may return it before publishing ends.
        generation = len(names)
        published[generation] = ("", {f"{task}-{n}" for task in names for n in range(3)})
        manifest = library.add_task(name, captions)
        assert manifest.generation == generation
        published[generation] = (str(manifest.release), published[generation][1])
        return generation

    def client(number: int) -> None:
        mode = ("pinned", "latest")[number % 2]
        with httpx.Client(base_url=server, timeout=60) as http:
            count = 0
            while not enough.is_set():
                count += 1  # most texts are new to the server
                answer = http.get(
                    "/search", params={"q": f"an owl, {number} {count % 50}", "k": 100, "mode": mode}
                )
                if answer.status_code != 200:
                    failed.append(f"{answer.status_code} {answer.text[:200]}")
                else:
                    answers.append(answer.json())

    with httpx.Client(base_url=server, timeout=60) as http:
        publish("birds", BIRDS)
        _wait(lambda: http.get("/readyz").json()["generation"] == 1)
        clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        for thread in clients:
            thread.start()
        try:
            for name, captions in (("cars", CARS), ("sea", SEA)):
                served = publish(name, captions)
                _wait(lambda served=served: http.get("/readyz").json()["generation"] == served)  # type: ignore[misc]
            library.change = lambda probes: replace(probes, vectors=-probes.vectors)
            broken = publish("broken", BIRDS)
            _wait(lambda: "does not answer as it did" in http.get("/readyz").json()["checks"]["index"])
            outcome = http.get("/readyz").json()
            assert (outcome["ready"], outcome["generation"]) == (True, broken - 1)
            seen = len(answers)
            _wait(lambda: len(answers) > seen + 5)
            library.change = lambda probes: probes
            for name, captions in (("lake", SEA), ("rail", CARS)):
                served = publish(name, captions)
                _wait(lambda served=served: http.get("/readyz").json()["generation"] == served)  # type: ignore[misc]
            seen = len(answers)
            _wait(lambda: len(answers) > seen + 5)
        finally:
            enough.set()
            for thread in clients:
                thread.join()
    assert failed == []
    for answer in answers:
        release, videos = published[answer["generation"]]
        assert answer["release"] == release
        assert sorted(result["video_id"] for result in answer["results"]) == sorted(videos)
        assert {entry["task"] for entry in answer["routing"]} == {video.split("-")[0] for video in videos}
        assert answer["degraded"] == {}
    assert {answer["generation"] for answer in answers} == set(published) - {broken}
