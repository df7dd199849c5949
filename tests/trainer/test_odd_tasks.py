"""Every method gets through tasks that hold next to nothing, and stops a bad one before it does harm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from tests.trainer.conftest import untrained_backbone
from trainer.errors import TrainingDiverged
from trainer.methods import METHODS, Method, MethodError, start_method
from trainer.task_data import Clip, StoredVectors, TaskData
from trainer.training_loop import learn_task
from trainer.video_embedding import embed_clips

FRAMES = 2
TRAINING = sorted(name for name, method in METHODS.items() if method.is_trainable)
SMALL = {"experts": 2, "rank": 2}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    loaded = untrained_backbone(FRAMES)
    assert isinstance(loaded, Backbone)
    return loaded


def _start(name: str, backbone: Backbone, previous: Method | None = None) -> Method:
    fields = METHODS[name].config_class.model_fields
    small = {key: value for key, value in SMALL.items() if key in fields}
    settings = {"epochs": 1, "batch_size": 4, **small}
    return start_method(name, backbone, settings, previous.release() if previous else None)


def _task(folder: Path, name: str, captions: list[list[str]], *, identical: bool = False) -> TaskData:
    clips = []
    for number, texts in enumerate(captions):
        rng = np.random.default_rng(0 if identical else [len(name), number])
        path = folder / f"{name}-{number}.npy"
        np.save(path, rng.integers(0, 256, (FRAMES, 56, 56, 3), dtype=np.uint8))
        clips.append(Clip(f"{name}-{number}", 100 * len(name) + number, path, tuple(texts), "train"))
    return TaskData(name, name, tuple(clips))


@pytest.mark.parametrize("name", TRAINING)
def test_one_video_then_one_caption_then_identical_videos(
    name: str, backbone: Backbone, tmp_path: Path
) -> None:
    tasks = [
        _task(tmp_path, "one", [["a red circle moves left", "a circle", "it moves"]]),
        _task(tmp_path, "other", [["a blue square"], ["a green star spins"]]),
        _task(tmp_path, "thirds", [["a ring"], ["a ring"], ["a ring"]], identical=True),
    ]
    method: Method | None = None
    releases = {}
    for task in tasks:
        method = _start(name, backbone, method)
        losses = learn_task(method, task, StoredVectors())
        assert len(losses) == 1
        assert np.isfinite(losses).all()
        vectors = embed_clips(method.encode_videos, task.clips)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
        releases[task.task_id] = method.release()
    encoder = open_query_encoder(backbone, releases["thirds"], releases)
    for mode in encoder.modes:
        assert np.isfinite(encoder.encode(["a ring"], list(releases), mode)).all()


@pytest.mark.parametrize("name", TRAINING)
def test_numbers_that_run_away_stop_the_task_by_name(name: str, backbone: Backbone, tmp_path: Path) -> None:
    method = _start(name, backbone)
    task = _task(tmp_path, "bad", [["a ring"], ["a star"], ["a square"], ["a circle"]])
    honest = method.loss

    def broken(*args: object) -> torch.Tensor:
        return honest(*args) * float("nan")  # type: ignore[arg-type]

    method.loss = broken  # type: ignore[method-assign]
    with pytest.raises(TrainingDiverged, match=r"loss became nan at step 1 with learning rate"):
        learn_task(method, task, StoredVectors())
    assert method.learned_tasks == []


@pytest.mark.parametrize("name", TRAINING)
def test_another_methods_release_is_refused_by_name(name: str, backbone: Backbone, tmp_path: Path) -> None:
    other = "ffa_tame" if name != "ffa_tame" else "finetune"
    before = _start(other, backbone)
    learn_task(before, _task(tmp_path, "one", [["a ring"], ["a star"]]), StoredVectors())
    with pytest.raises(MethodError, match=f"learned with method '{other}', which '{name}' cannot continue"):
        _start(name, backbone, before)
