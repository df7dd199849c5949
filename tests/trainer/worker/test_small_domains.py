"""Very small domains with the default backbone and method, among them the example of docs/using.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cinestrata_schemas.tasks import TaskSpec
from media import VideoDecoder
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from service.core.settings import settings
from service.search.engine import SearchEngine
from service.tasks import commands, probing
from service.tasks.task_events import events_after
from tests.claimed_probing import probe
from tests.trainer.worker.conftest import write_video
from tests.trainer.worker.library_state import learn
from trainer.worker import job_environment

DOMAINS = {
    "street": [
        "a red taxi turns left",
        "a truck stops at a light",
        "two buses pass each other",
        "a man waits",
    ],
    "birds": ["a heron stands in water", "an owl lands on a branch", "a duck dives", "gulls circle a mast"],
    "cooking show": [
        "a cook slices bread",
        "a chef tastes the soup",
        "a woman pours tea",
        "eggs boil in a pot",
    ],
    "sea": ["waves break over rocks", "a ferry leaves the harbor", "a whale jumps", "a man throws a net"],
}


@pytest.fixture(scope="module")
def small() -> Backbone:
    return load_backbone("small", frames=2)


@pytest.fixture
def library(
    tmp_path: Path,
    small: Backbone,
    shared_decoder: VideoDecoder,
    settings_factory: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """Settings of an empty library with the backbone ``small``."""
    monkeypatch.setattr(job_environment, "load_backbone", lambda name, frames: small)
    monkeypatch.setattr(probing, "VideoDecoder", lambda limits: shared_decoder)
    job_environment.load_worker_backbone.cache_clear()
    yield settings_factory(tmp_path, backbone="small", frames=2, torch_threads=1, lease_seconds=600)
    job_environment.load_worker_backbone.cache_clear()


def _learn(body: dict[str, Any]) -> str:
    """Return the ID of a task that was posted, probed and learned; its videos are real files with random content."""
    for video in body["videos"]:
        write_video(settings().media_root / video["uri"], video["uri"])
    task = probe(commands.create_task(TaskSpec.model_validate(body)).task.id)
    return learn(task.id).id


def _domain(name: str) -> dict[str, Any]:
    videos = [
        {"uri": f"{name}/{number}.mp4", "captions": [caption], "split": "train"}
        for number, caption in enumerate(DOMAINS[name])
    ]
    return {"name": name, "videos": videos}


def _kitchen() -> dict[str, Any]:
    """Return the body of the request in docs/using.md that adds a domain."""
    readme = (Path(__file__).parents[3] / "docs" / "using.md").read_text(encoding="utf-8")
    (body,) = re.findall(r"-d '(\{\s*\"name\": \"kitchen\".*?\})'", readme, re.DOTALL)
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def _messages(task: str) -> list[str]:
    return [event.data["message"] for event in events_after(task, 0) if event.kind == "log"]


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_example_of_the_readme_is_found_by_its_caption() -> None:
    kitchen = _kitchen()
    train, test = kitchen["videos"]
    assert (train["split"], test["split"]) == ("train", "test")
    first, *others = DOMAINS
    _learn(_domain(first))
    task = _learn(kitchen)
    for name in others:
        _learn(_domain(name))
    engine = SearchEngine(settings())
    try:
        assert engine.snapshots.refresh()
        for query in (train["captions"][0], "eggs are whisked"):
            results = engine.search(query, k=10).results
            assert (results[0].task, results[0].captions) == ("kitchen", train["captions"]), query
    finally:
        engine.close()
    (message,) = [text for text in _messages(task) if text.startswith("Learned from")]
    assert message.startswith("Learned from 1 captioned video; ")


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_task_says_that_its_domain_is_small() -> None:
    body = _domain("street")
    body["videos"] = [
        {**body["videos"][0], "uri": f"street/{number}.mp4", "captions": [f"taxi number {number}"]}
        for number in range(10)
    ]
    assert not [text for text in _messages(_learn(body)) if text.startswith("Learned from")]
    nine = {
        "name": "nine",
        "videos": [{**video, "uri": f"nine/{video['uri']}"} for video in body["videos"][1:]],
    }
    assert any(text.startswith("Learned from 9 captioned videos; ") for text in _messages(_learn(nine)))
    silent = {"name": "silent", "videos": [{"uri": "silent/1.mp4"}]}
    assert not [text for text in _messages(_learn(silent)) if text.startswith("Learned from")]
