"""CLIP-ViP as a method: what is trained, stored and served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from models.adapters.video_proxy import encode_with_proxies
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release
from models.encoders.tower_forward import encode_texts
from models.releases.release_files import write_release
from trainer.losses import in_task_loss
from trainer.methods import MethodError, configure, start_method
from trainer.methods.clip_vip import ClipVip
from trainer.task_data import Clip, TaskData
from trainer.training_checkpoint import Checkpoint, CheckpointStore
from trainer.training_loop import TrainingProgress, learn_task

torch.set_num_threads(1)

FRAMES = 2
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin", "the ring bounces"]
SETTINGS = {
    "epochs": 2,
    "batch_size": 2,
    "logit_scale": 20.0,
    "learning_rate": 1e-3,
    "proxy_learning_rate": 1e-2,
}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[TaskData]:
    folder = tmp_path_factory.mktemp("frames")
    made = []
    for number in range(2):
        clips = []
        for place, frames in enumerate(_frames(number).numpy()):
            path = folder / f"{number}-{place}.npy"
            np.save(path, frames)
            clips.append(Clip(path.stem, 10 * number + place, path, (TEXTS[place],), "train"))
        made.append(TaskData(f"task-{number}", f"task {number}", tuple(clips)))
    return made


def _frames(seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (4, FRAMES, 56, 56, 3), dtype=np.uint8))


def _start(backbone: Backbone, previous: object = None, **settings: object) -> ClipVip:
    method = start_method("clip_vip", backbone, {**SETTINGS, **settings}, previous)  # type: ignore[arg-type]
    assert isinstance(method, ClipVip)
    return method


def test_the_loss_is_the_contrast_of_proxied_videos(backbone: Backbone) -> None:
    method = _start(backbone)
    method.begin_task("one", "one")
    videos = encode_with_proxies(method.model, _frames(0), method.proxies)
    queries = encode_texts(method.model, method.model.tokenize(TEXTS))[0]
    expected = in_task_loss(queries, videos, 20.0)
    torch.testing.assert_close(method.loss(_frames(0), TEXTS, None), expected)
    torch.testing.assert_close(method.encode_videos(_frames(0)), videos)


def test_a_task_trains_towers_and_proxies_each_at_its_rate(backbone: Backbone, tasks: list[TaskData]) -> None:
    method = _start(backbone)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.begin_task("one", "one")
    rates = {id(p): group["lr"] for group in method.parameter_groups() for p in group["params"]}
    assert {rates[id(p)] for p in method.proxies.parameters()} == {1e-2}
    assert {rates[id(p)] for p in method.model.parameters() if p.requires_grad} == {1e-3}
    method.end_task()
    learn_task(method, tasks[0])
    after = method.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"proxies.added", "proxies.times"} <= moved
    assert any(name.startswith("clip.visual.") for name in moved)
    assert any(not name.startswith(("clip.visual.", "proxies.")) for name in moved)
    assert "clip.logit_scale" not in moved
    assert not any(p.requires_grad for p in [*method.proxies.parameters(), *method.model.parameters()])


def test_a_task_without_training_changes_nothing(backbone: Backbone) -> None:
    method = _start(backbone)
    method.begin_task("bare", "bare", trained=False)
    assert not any(p.requires_grad for p in method.proxies.parameters())


def test_the_proxies_belong_to_the_video_encoder(backbone: Backbone) -> None:
    method = _start(backbone)
    fingerprint = method.fingerprint()
    for tensor in (method.proxies.added, method.proxies.times):
        with torch.no_grad():
            tensor[0, 0] += 1
        assert method.fingerprint() != fingerprint
        fingerprint = method.fingerprint()


def test_queries_are_served_without_the_proxies(
    backbone: Backbone, tasks: list[TaskData], tmp_path: Path
) -> None:
    method = _start(backbone)
    learn_task(method, tasks[0])
    write_release(tmp_path, method.release())
    release = read_query_release(tmp_path)
    assert not [name for name in release.tensors if name.startswith("proxies.")]
    encoder = open_query_encoder(backbone, release, {"task-0": release})
    with torch.no_grad():
        expected = encode_texts(method.model, method.model.tokenize(TEXTS))[0].numpy()
    np.testing.assert_allclose(encoder.encode(TEXTS, ["task-0"])[:, 0], expected, atol=1e-6)


def test_an_interrupted_task_ends_as_an_uninterrupted_one(
    backbone: Backbone, tasks: list[TaskData], tmp_path: Path
) -> None:
    first = _start(backbone)
    learn_task(first, tasks[0])
    straight = _start(backbone, first.release())
    learn_task(straight, tasks[1])

    class Interrupted(Exception):
        pass

    def stop(progress: TrainingProgress) -> None:
        if progress.epoch == 2:
            raise Interrupted

    checkpoints = CheckpointStore(tmp_path / "checkpoints", "same")
    with pytest.raises(Interrupted):
        learn_task(_start(backbone, first.release()), tasks[1], report=stop, checkpoints=checkpoints)
    assert isinstance(checkpoints.load(), Checkpoint)
    resumed = _start(backbone, first.release())
    learn_task(resumed, tasks[1], checkpoints=checkpoints)
    expected = straight.state_dict()
    assert expected.keys() == resumed.state_dict().keys()
    for name, tensor in resumed.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_the_number_of_proxies_stays(backbone: Backbone, tasks: list[TaskData]) -> None:
    method = _start(backbone, proxies=2)
    learn_task(method, tasks[0])
    assert _start(backbone, method.release()).proxies.added.shape == (1, 128)
    with pytest.raises(MethodError, match="proxies is 2; leave them out"):
        _start(backbone, method.release(), proxies=3)


def test_the_recipe_is_that_of_the_papers() -> None:
    config = configure("clip_vip", "open_clip:ViT-B-32/openai", {}).model_dump()
    expected = {"epochs": 20, "batch_size": 8, "proxies": 4, "weight_decay": 0.2, "schedule": "cosine"}
    assert {name: config[name] for name in expected} == expected
    assert configure("clip_vip", "tiny", {}).model_dump()["logit_scale"] == 20.0


@pytest.mark.parametrize(("setting", "value"), [("proxies", 0), ("proxy_learning_rate", 0), ("proxy", 4)])
def test_wrong_settings_are_named(setting: str, value: float) -> None:
    with pytest.raises(MethodError, match=f"{setting}: "):
        configure("clip_vip", "tiny", {setting: value})
