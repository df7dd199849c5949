"""``cinestrata sync`` with real videos, probing and append jobs, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.commands import sync_command
from cli.commands.sync_command import run_sync
from cli.service_client import ServiceClient
from media import VideoDecoder
from service.tasks import commands, lifecycle, probing
from tests.trainer.worker.conftest import write_video
from tests.trainer.worker.library_state import catalog_vector_ids, shard_vectors
from trainer.worker.append_job import run_append_job
from trainer.worker.learning_job import run_learning_job

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(autouse=True)
def workers(shared_decoder: VideoDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the jobs of a task where the command would wait for the workers."""
    monkeypatch.setattr(probing, "VideoDecoder", lambda limits: shared_decoder)

    def follow(client: ServiceClient, tasks: list[str]) -> list[Any]:
        for task in tasks:
            claim = lifecycle.claim_probing(task, "prober")
            assert claim is not None
            with claim:
                probing.probe(claim)
            run_learning_job(task)
            run_append_job(task)
        return [client.get_task(task) for task in tasks]

    monkeypatch.setattr(sync_command, "follow", follow)


def sync(source: Path, vanished: Any = "keep", dry_run: bool = False) -> None:
    run_sync(source, None, vanished, dry_run, False, None, False, None, None)


def domain() -> str:
    """Id of the only domain, whose shard and catalog agree."""
    (task,) = [task for task in commands.list_tasks() if task.into is None]
    assert set(shard_vectors(task.id)) == set(catalog_vector_ids(task.id).values())
    return task.id


def test_domain_follows_its_folder(tmp_path: Path) -> None:
    source = tmp_path / "films"
    for name in ("a", "b"):
        write_video(source / f"{name}.mp4", name)
    sync(source, dry_run=True)
    assert commands.list_tasks() == []
    sync(source)
    first = catalog_vector_ids(domain())
    assert len(first) == 2
    sync(source)
    assert len(commands.list_tasks()) == 1

    write_video(source / "c.mp4", "c")
    write_video(source / "a.mp4", "another a")
    (source / "b.mp4").unlink()
    sync(source)
    second = catalog_vector_ids(domain())
    assert sorted(video[0] for video in second) == ["a", "b", "c"]
    assert first.keys() & second.keys() == {video for video in first if video.startswith("b-")}
    sync(source, vanished="delete")
    assert sorted(video[0] for video in catalog_vector_ids(domain())) == ["a", "c"]
