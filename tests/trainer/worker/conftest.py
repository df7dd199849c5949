"""Fixtures of the learning worker's tests: libraries, decoded tasks of real videos, and a learned library to copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import av
import numpy as np
import pytest

from cinestrata_schemas.tasks import TaskSpec
from service.core.settings import settings
from service.tasks import commands
from tests.claimed_probing import probe
from tests.shared_folders import restore_or_make
from tests.trainer.conftest import untrained_backbone
from trainer import training_loop
from trainer.training_memory import MemoryPlan
from trainer.worker import job_environment, learning_job

SMALL = {"epochs": 1, "batch_size": 4, "experts": 2, "rank": 2}  # one optimizer step per task
TWO_EPOCHS = {**SMALL, "epochs": 2, "batch_size": 2}  # two optimizer steps per epoch


@pytest.fixture
def library(tmp_path: Path, settings_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings of an empty library; its learning worker has two untrained small backbones."""
    monkeypatch.setattr(
        job_environment, "load_backbone", lambda name, frames: untrained_backbone(frames, name)
    )
    # Its measurement takes half as long as the training, and has tests of its own.
    monkeypatch.setattr(training_loop, "plan_memory", lambda *_, **__: MemoryPlan(None, 0, 0))
    job_environment.load_worker_backbone.cache_clear()
    yield settings_factory(tmp_path, frames=2, torch_threads=1, lease_seconds=600)
    job_environment.load_worker_backbone.cache_clear()


@pytest.fixture(scope="session")
def saved_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of libraries that tests copy instead of learning them again."""
    return tmp_path_factory.mktemp("saved_libraries")


@pytest.fixture
def learned_task(library: Any, post_videos: Callable[..., str], saved_libraries: Path) -> str:
    """ID of the task ``day``, learned with the defaults of ``post_videos`` in the library of this test."""
    restore_or_make(saved_libraries / "learned", lambda: learning_job.run_learning_job(post_videos("day")))
    (task,) = commands.list_tasks()
    assert task.state == "ready"
    return task.id


@pytest.fixture
def post_videos() -> Callable[..., str]:
    """``post_videos(name, videos=6, captions=1, **fields)``: ID of a task whose real videos were probed.

    The first ``tests`` videos are held out. Videos last a second, or as given in ``seconds`` by their number.
    """

    def make(
        name: str,
        videos: int = 6,
        captions: int = 1,
        tests: int = 2,
        seconds: Mapping[int, int] = MappingProxyType({}),
        **fields: Any,
    ) -> str:
        entries = []
        for number in range(videos):
            write_video(
                settings().media_root / name / f"{number}.mp4", f"{name} {number}", seconds.get(number, 1)
            )
            entries.append(
                {
                    "uri": f"{name}/{number}.mp4",
                    "id": f"{name}-{number}",
                    "captions": [f"{name} number {number} said {c}" for c in range(captions)],
                    **({"split": "test" if number < tests else "train"} if captions and tests else {}),
                }
            )
        fields = {"method": "ffa_tame", "settings": SMALL, **fields}
        spec = TaskSpec.model_validate({"name": name, "videos": entries, **fields})
        return probe(commands.create_task(spec).task.id).id

    return make


def write_video(path: Path, content: str, seconds: int = 1) -> None:
    """Write a small real H.264 video whose pixels are derived from ``content``; its second half is another scene."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_video(content, seconds))


@lru_cache(maxsize=256)
def encode_video(content: str, seconds: int) -> bytes:
    """Return the MP4 file as bytes; cached, because encoding a long video twice gives slightly different files."""
    rng = np.random.default_rng(list(content.encode()))
    scenes = [
        rng.integers(0, 255, (4, 4, 3), dtype=np.uint8).repeat(16, axis=0).repeat(16, axis=1)
        for _ in range(2 if seconds > 1 else 1)
    ]
    file = BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for shift in range(4 * seconds):
            scene = scenes[len(scenes) * shift // (4 * seconds)]
            frame = av.VideoFrame.from_ndarray(np.roll(scene, 9 * shift, axis=1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()
