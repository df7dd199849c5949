"""CLIP-ViP: training, fingerprint and releases of the video proxies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.rivals.clip_vip import ClipVip
from benchmarks.rivals.encoders.proxy_family import encode_with_proxies
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release
from models.encoders.tower_forward import encode_texts
from models.releases.release_files import write_release
from tests.trainer.methods.method_driver import TEXTS, create_method, random_frames, write_task
from trainer.methods.base import in_task_loss
from trainer.task_data import TaskData
from trainer.training_loop import learn_task

SETTINGS = {
    "epochs": 2,
    "batch_size": 2,
    "logit_scale": 20.0,
    "learning_rate": 1e-3,
    "proxy_learning_rate": 1e-2,
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TaskData:
    return write_task(tmp_path_factory.mktemp("frames"), "one", [[text] for text in TEXTS])


def clip_vip_method(backbone: Backbone, **settings: Any) -> ClipVip:
    method = create_method("clip_vip", backbone, **{**SETTINGS, **settings})
    assert isinstance(method, ClipVip)
    return method


def test_loss_is_the_contrast_of_videos_encoded_with_proxies(backbone: Backbone) -> None:
    method = clip_vip_method(backbone)
    method.begin_task("one", "one")
    videos = encode_with_proxies(method.model, random_frames(0), method.proxies)
    queries = encode_texts(method.model, method.model.tokenize(TEXTS))[0]
    expected = in_task_loss(queries, videos, 20.0)
    torch.testing.assert_close(method.loss(random_frames(0), TEXTS, None), expected)
    torch.testing.assert_close(method.encode_videos(random_frames(0)), videos)


def test_towers_and_proxies_are_trained_at_their_own_rates(backbone: Backbone, task: TaskData) -> None:
    method = clip_vip_method(backbone)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.begin_task("one", "one")
    rates = {id(p): group["lr"] for group in method.parameter_groups() for p in group["params"]}
    assert {rates[id(p)] for p in method.proxies.parameters()} == {1e-2}
    assert {rates[id(p)] for p in method.model.parameters() if p.requires_grad} == {1e-3}
    method.end_task()
    learn_task(method, task)
    after = method.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"proxies.added", "proxies.times"} <= moved
    assert any(name.startswith("clip.visual.") for name in moved)
    assert any(not name.startswith(("clip.visual.", "proxies.")) for name in moved)
    assert "clip.logit_scale" not in moved
    assert not any(p.requires_grad for p in [*method.proxies.parameters(), *method.model.parameters()])


def test_task_without_training_keeps_the_proxies_frozen(backbone: Backbone) -> None:
    method = clip_vip_method(backbone)
    method.begin_task("bare", "bare", trained=False)
    assert not any(p.requires_grad for p in method.proxies.parameters())


def test_fingerprint_depends_on_the_proxies(backbone: Backbone) -> None:
    method = clip_vip_method(backbone)
    fingerprint = method.fingerprint()
    for tensor in (method.proxies.added, method.proxies.times):
        with torch.no_grad():
            tensor[0, 0] += 1
        assert method.fingerprint() != fingerprint
        fingerprint = method.fingerprint()


def test_query_encoder_does_not_need_the_proxies(backbone: Backbone, task: TaskData, tmp_path: Path) -> None:
    method = clip_vip_method(backbone)
    learn_task(method, task)
    write_release(tmp_path, method.release())
    release = read_query_release(tmp_path)
    assert not [name for name in release.tensors if name.startswith("proxies.")]
    encoder = open_query_encoder(backbone, release, {"one": release})
    with torch.no_grad():
        expected = encode_texts(method.model, method.model.tokenize(TEXTS))[0].numpy()
    np.testing.assert_allclose(encoder.encode(TEXTS, ["one"])[:, 0], expected, atol=1e-6)
