"""CTP + ER and CLIP-ViP + VR-LwF: each is the composition of its two parts."""

from __future__ import annotations

import pytest
import torch

from benchmarks.rivals.encoders.proxy_family import encode_with_proxies
from benchmarks.rivals.shared.distillation import random_sentences
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_texts
from tests.trainer.methods.method_driver import (
    begin_second_task,
    create_method,
    learn_steps,
    random_frames,
    replay_method,
    run_steps,
    scale_projections,
)
from trainer.methods.base import in_task_loss

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


@pytest.mark.parametrize("masked_language", [False, True])
def test_loss_of_ctp_er_is_equation_10_over_the_union(backbone: Backbone, masked_language: bool) -> None:
    replay = replay_method("ctp_er", backbone, fill="reservoir", masked_language=masked_language)
    plain = create_method("ctp", backbone, masked_language=masked_language)
    for method in (replay, plain):
        torch.manual_seed(1)
        learn_steps(method, "one", range(1))
        method.begin_task("two", "two")
        scale_projections(method.model, seed=8)
    frames = random_frames(1, 3)
    with torch.no_grad():
        torch.manual_seed(2)
        loss = float(replay.loss(frames, TEXTS, None))
        torch.manual_seed(2)
        past = replay.memory.sample(3, before=1)
        ids = torch.cat([replay.tokenize(TEXTS), past["ids"]])
        expected = float(plain.pair_loss(torch.cat([frames, past["frames"]]), ids[:, : ids.any(dim=0).sum()]))
    assert len(ids) == 6
    assert loss == pytest.approx(expected, rel=1e-5)


def test_step_of_ctp_er_updates_momentum_networks_queues_and_memory(backbone: Backbone) -> None:
    method = replay_method("ctp_er", backbone, fill="reservoir")
    begin_second_task(method)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    run_steps(method, [1], texts=TEXTS)
    run_steps(method, [2], texts=TEXTS)
    moved = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {"queues.texts", "queues.videos", "memory.seen"} <= moved
    assert any(name.startswith("momentum.") for name in moved)
    assert len(method.memory) == 6


def test_loss_of_clip_vip_with_vr_lwf(backbone: Backbone) -> None:
    method = create_method("clip_vip_vr_lwf", backbone, logit_scale=20.0, distillation=0.5, temperature=2.0)
    learn_steps(method, "one", range(2))
    method.begin_task("two", "two")
    old_proxies, teacher = method.teacher_proxies, method.teacher
    assert teacher is not None
    scale_projections(method.model, seed=8)
    with torch.no_grad():
        method.proxies.added.mul_(1.5)
    frames = random_frames(1, 3)
    with torch.no_grad():
        torch.manual_seed(2)
        loss = float(method.loss(frames, TEXTS, None))
        torch.manual_seed(2)
        ids = random_sentences(method.model, 5, 3)
        videos = encode_with_proxies(method.model, frames, method.proxies)
        now = 20 * videos @ encode_texts(method.model, ids)[0].T
        before = 20 * encode_with_proxies(teacher, frames, old_proxies) @ encode_texts(teacher, ids)[0].T
        queries = encode_texts(method.model, method.model.tokenize(TEXTS))[0]
        expected = float(in_task_loss(queries, videos, 20.0))
    for row, old in zip(now, before, strict=True):
        p, q = torch.exp(row / 2) / torch.exp(row / 2).sum(), torch.exp(old / 2) / torch.exp(old / 2).sum()
        expected -= 0.5 * 4 * float((q * p.log()).sum()) / 3
    assert loss == pytest.approx(expected, rel=1e-4)


def test_teacher_of_clip_vip_with_vr_lwf_keeps_its_proxies(backbone: Backbone) -> None:
    method = create_method("clip_vip_vr_lwf", backbone, proxy_learning_rate=1e-2)
    before = method.proxies.added.clone()
    method.begin_task("one", "one")
    run_steps(method, range(2))
    assert torch.equal(method.teacher_proxies.added, before), "the first task has a teacher too"
    assert not torch.equal(method.proxies.added, before)
    assert not any(p.requires_grad for p in method.teacher_proxies.parameters())
    assert not any("teacher" in name for name in method.state_dict())
    assert torch.equal(
        method.encode_videos(random_frames(3)),
        encode_with_proxies(method.model, random_frames(3), method.proxies),
    )
