"""Write the snapshot of a tiny learned library: ``python -m tests.tiny_library FILE``."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

DOMAINS = ("street", "sea")


def main(target: Path) -> None:
    """Learn two domains of two clips, append two clips to the first, delete one of them, and write the snapshot."""
    with tempfile.TemporaryDirectory() as temporary:
        os.environ |= {
            "CINESTRATA_DATA_DIR": temporary,
            "CINESTRATA_BACKBONE": "tiny",
            "CINESTRATA_FRAMES": "2",
            "CINESTRATA_TORCH_THREADS": "1",
        }
        _write_library()
        from cli.commands.backup_commands import run_snapshot

        run_snapshot(target, None, index_only=False)


def _write_library() -> None:
    from cinestrata_schemas.tasks import AppendSpec, TaskSpec
    from service.catalog.migrations import upgrade
    from service.celery_worker import probe
    from service.core.settings import settings
    from service.library import deletion
    from service.tasks import commands
    from tests.drawn_videos import write_domains
    from trainer.worker.append_job import run_append_job
    from trainer.worker.learning_job import run_learning_job

    upgrade(settings())
    media = settings().media_root
    write_domains(media, domains=DOMAINS, train=3, val=0, test=1)
    settings_of_method = {"epochs": 1, "batch_size": 4, "experts": 1, "rank": 1}
    for domain in DOMAINS:
        lines = (media / domain / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
        spec = TaskSpec.model_validate_json(f'{{"name": "x", "videos": [{",".join(lines)}]}}')
        videos = [
            {
                **video.model_dump(exclude_none=True),
                "uri": f"{domain}/{Path(video.uri).name}",
                "id": f"{domain}-{n}",
            }
            for n, video in enumerate(sorted(spec.videos, key=lambda video: video.split != "test"))
        ]
        learned, appended = videos[:2], videos[2:]  # the first is the test video
        task = commands.create_task(
            TaskSpec.model_validate(
                {"name": domain, "method": "ffa_tame", "settings": settings_of_method, "videos": learned}
            )
        ).task
        probe(task.id)
        run_learning_job(task.id)
        if domain == DOMAINS[0]:
            append = commands.append_videos(
                task.id, AppendSpec.model_validate({"videos": [{**v, "split": None} for v in appended]})
            ).task
            probe(append.id)
            run_append_job(append.id)
            assert commands.get_task(append.id).state == "ready", commands.get_task(append.id).error
            deletion.delete_videos([f"{domain}-3"])
        assert commands.get_task(task.id).state == "ready", commands.get_task(task.id).error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
