"""Write the stored library: a snapshot of a tiny library of this version, with the answers that it gives.

Every later version must restore the snapshot on both databases and give these answers. Run this script only to add a
library of a newer schema to the existing ones. Its name is the revision of the schema:
``python -m tests.stored_library.write_stored_library 0009``.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).parent
DOMAINS = ("microscope", "snowfield")
QUERIES = ("a cell divides", "bright sparks in the night", "round", "appended clip", "nothing of this kind")


def main(name: str) -> None:
    """Learn two domains of two clips, append a clip to the first, delete one, and store snapshot and answers."""
    with tempfile.TemporaryDirectory() as temporary:
        os.environ |= {
            "CINESTRATA_DATA_DIR": temporary,
            "CINESTRATA_BACKBONE": "tiny",
            "CINESTRATA_FRAMES": "2",
        }
        os.environ["CINESTRATA_TORCH_THREADS"] = "1"
        _write_library(Path(temporary))
        target = Path(temporary) / "library.tar"
        from cli.commands.backup_commands import run_snapshot

        run_snapshot(target, None, index_only=False)
        with target.open("rb") as plain, gzip.GzipFile(FOLDER / f"{name}.tar.gz", "wb", mtime=0) as packed:
            shutil.copyfileobj(plain, packed)
        (FOLDER / f"{name}.json").write_text(json.dumps(read_answers(), indent=1) + "\n", encoding="utf-8")


def read_answers() -> dict[str, list[dict[str, object]]]:
    """Answers of the library in this process: query → videos with their scores."""
    from fastapi.testclient import TestClient

    from api.app import create_app
    from service.core.settings import settings

    with TestClient(create_app(settings()), base_url="http://127.0.0.1:8000") as client:
        for _ in range(600):
            if client.get("/readyz").status_code == 200:
                break
            time.sleep(0.1)
        answers = {}
        for query in QUERIES:
            response = client.get("/search", params={"q": query, "k": 10})
            response.raise_for_status()
            answers[query] = [
                {key: result[key] for key in ("video_id", "task", "score", "confidence", "captions")}
                for result in response.json()["results"]
            ]
        return answers


def _write_library(folder: Path) -> None:
    from benchmarks.data.world import write_world
    from service.catalog.migrations import upgrade
    from service.celery_worker import probe
    from service.core.schemas import AppendSpec, TaskSpec
    from service.core.settings import settings
    from service.library import deletion
    from service.tasks import commands
    from trainer.worker.append_job import run_append_job
    from trainer.worker.learning_job import run_learning_job

    upgrade(settings())
    media = settings().media_root
    write_world(
        media, domains=list(DOMAINS), seed=3, train=3, val=0, test=1, categories=1, captions=1, workers=1
    )
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
            for n, video in enumerate(sorted(spec.videos, key=lambda video: video.uri))
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
    main(sys.argv[1])
