"""What the trainer's tests share: one thread, an untrained small backbone, tasks of real videos that were probed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import av
import numpy as np
import pytest
import torch

from media import VideoDecoder
from models.backbones.backbone import Backbone
from trainer.task_data import Clip, Split, TaskData

# Small tensors: a second thread costs more than it brings, most of all beside other processes.
torch.set_num_threads(1)

SMALL = {"epochs": 3, "batch_size": 3, "experts": 2, "rank": 2}


FRAMES, SIDE = 2, 56  # frames per video of the small backbone, and their size in pixels


@pytest.fixture(scope="session")
def small_backbone() -> Backbone:
    """An untrained small backbone with :data:`FRAMES` frames per video; tests must not change it."""
    return untrained_backbone(FRAMES)


@pytest.fixture
def random_task(tmp_path: Path) -> Callable[..., TaskData]:
    """``random_task(name, captions, splits=None, first_id=0)``: a task whose videos are random frames.

    Each element of ``captions`` is the captions of one video; videos without a split in ``splits`` are training videos.
    """

    def make(
        name: str,
        captions: Sequence[Sequence[str]],
        splits: Sequence[Split] = (),
        first_id: int = 0,
    ) -> TaskData:
        clips = []
        for number, texts in enumerate(captions):
            path = tmp_path / f"{name}-{number}.npy"
            rng = np.random.default_rng([*name.encode(), number])
            np.save(path, rng.integers(0, 256, (FRAMES, SIDE, SIDE, 3), dtype=np.uint8))
            split = splits[number] if number < len(splits) else "train"
            clips.append(Clip(f"{name}-{number}", first_id + number, path, tuple(texts), split))
        return TaskData(name, name, tuple(clips))

    return make


@pytest.fixture
def library(tmp_path: Path, settings_factory: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings of an empty library; its learning worker has an untrained small backbone."""
    from trainer.worker import learning_job

    monkeypatch.setattr(learning_job, "load_backbone", lambda name, frames: untrained_backbone(frames))
    learning_job.load_worker_backbone.cache_clear()
    yield settings_factory(tmp_path, frames=2, torch_threads=1, lease_seconds=600)
    learning_job.load_worker_backbone.cache_clear()


def untrained_backbone(frames: int) -> Any:
    """The same weights in every process."""
    from models.backbones.backbone_loading import tiny_backbone

    torch.manual_seed(0)
    return tiny_backbone(frames)


class _WarmExaminer(VideoDecoder):
    """Keeps its child from one task to the next: starting one costs more than all of a test's videos."""

    def __exit__(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def warm_examiner() -> Iterator[VideoDecoder]:
    """A decoder for the whole session."""
    examiner = _WarmExaminer()
    yield examiner
    examiner.close()


@pytest.fixture
def post_videos(warm_examiner: VideoDecoder, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``post_videos(name, videos=6, captions=1, **fields)``: id of a task whose videos were really examined.

    Videos last a second, or as long as ``seconds`` says for their numbers.
    """
    from service.core.schemas import TaskSpec
    from service.core.settings import settings
    from service.tasks import lifecycle, probing
    from service.tasks.commands import create_task

    monkeypatch.setattr(probing, "VideoDecoder", lambda limits: warm_examiner)

    def make(
        name: str,
        videos: int = 6,
        captions: int = 1,
        tests: int = 2,
        seconds: Mapping[int, int] = MappingProxyType({}),
        **fields: Any,
    ) -> str:
        listed = []
        for number in range(videos):
            write_video(
                settings().media_root / name / f"{number}.mp4", f"{name} {number}", seconds.get(number, 1)
            )
            listed.append(
                {
                    "uri": f"{name}/{number}.mp4",
                    "id": f"{name}-{number}",
                    "captions": [f"{name} number {number} said {c}" for c in range(captions)],
                    **({"split": "test" if number < tests else "train"} if captions and tests else {}),
                }
            )
        fields = {"method": "ffa_tame", "settings": SMALL, **fields}
        spec = TaskSpec.model_validate({"name": name, "videos": listed, **fields})
        task = create_task(spec).task.id
        claim = lifecycle.claim_probing(task, "prober")
        assert claim is not None
        with claim:
            probing.probe(claim)
        return task

    return make


def write_video(path: Path, content: str, seconds: int = 1) -> None:
    """A small real H.264 mp4 whose pictures follow from the text; after its first half it shows another scene."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_encoded(content, seconds))


@lru_cache(maxsize=256)
def _encoded(content: str, seconds: int) -> bytes:
    """Kept, for a long video comes out a little different each time it is encoded."""
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
