"""Domains of rendered videos, learned in the test's process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cinestrata_schemas.tasks import TaskSpec
from media.scenes.scene_domains import SCENE_DOMAINS
from service.celery_worker import probe
from service.tasks import commands
from trainer.worker.learning_job import run_learning_job

FIRST, SECOND = list(SCENE_DOMAINS)[:2]
FAST_TRAINING = {"epochs": 1, "rank": 4}


def read_manifest(root: Path, domain: str) -> list[dict[str, Any]]:
    """Return the videos of a rendered domain in the form of ``POST /tasks``, with two captions each."""
    lines = (root / domain / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    videos = [
        TaskSpec.model_validate_json(f'{{"name": "x", "videos": [{line}]}}').videos[0] for line in lines
    ]
    return [
        {
            **video.model_dump(exclude_none=True),
            "uri": f"{domain}/{Path(video.uri).name}",
            "captions": video.captions[:2],
        }
        for video in videos
    ]


def learn(domain: str, videos: list[dict[str, Any]], **fields: Any) -> str:
    """Create a task and run the jobs of both workers; returns the ID of the task."""
    defaults = {"name": domain, "method": "ffa_tame", "settings": FAST_TRAINING, "videos": videos}
    task = commands.create_task(TaskSpec.model_validate(defaults | fields)).task
    probe(task.id)
    run_learning_job(task.id)
    return task.id


def learn_two_domains(root: Path) -> list[str]:
    """Learn the two rendered domains below ``root``; returns the IDs of the tasks."""
    tasks = [learn(domain, read_manifest(root, domain)) for domain in (FIRST, SECOND)]
    states = [commands.get_task(task).state for task in tasks]
    assert states == ["ready", "ready"], [commands.get_task(task).error for task in tasks]
    return tasks
