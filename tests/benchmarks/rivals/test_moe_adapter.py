"""MoE-Adapters: experts, routers, activate-freeze, and the selection of a query's router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks.rivals.encoders.experts_family import (
    NO_ROUTER,
    ExpertLayer,
    ExpertTower,
    TaskSelector,
    encode_frames_with_experts,
    encode_texts_with_experts,
)
from benchmarks.rivals.moe_adapter import MoeAdapter
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import ReleaseError
from models.releases.release_files import write_release
from models.releases.release_state import ReleaseState
from tests.trainer.methods.method_driver import (
    create_method,
    index_task,
    learn_steps,
    random_frames,
)
from trainer.methods.base import in_task_loss

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


def expert_layer(experts: int = 4, top_k: int = 2, routers: int = 2) -> ExpertLayer:
    torch.manual_seed(1)
    layer = ExpertLayer(6, experts=experts, rank=3, top_k=top_k, scale=0.5, dropout=0.0).eval()
    for _ in range(routers):
        layer.add_router()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


# -- the mixture ----------------------------------------------------------------------------------------


def test_mixture_is_the_weighted_sum_of_the_selected_experts() -> None:
    layer = expert_layer()
    hidden, tasks = torch.randn(3, 5, 6), torch.tensor([0, 1, 0])
    with torch.no_grad():
        mixed = layer(hidden, tasks)
        for row, task in enumerate(tasks.tolist()):
            logits = (hidden[row, 0] @ layer.routers[task]).tolist()
            chosen = sorted(range(4), key=lambda e: -logits[e])[:2]
            weights = torch.tensor([logits[e] for e in chosen]).softmax(dim=0).tolist()
            expected = torch.zeros(5, 6)
            for weight, number in zip(weights, chosen, strict=True):
                expert: Any = layer.experts[number]
                for token in range(5):
                    low = (expert.down.weight @ hidden[row, token] + expert.down.bias).clamp(min=0)
                    expected[token] += weight * 0.5 * (expert.up.weight @ low + expert.up.bias)
            torch.testing.assert_close(mixed[row], expected)


def test_routing_noise_and_counters_are_active_in_training_only() -> None:
    layer, first, tasks = expert_layer(), torch.randn(6, 6), torch.zeros(6, dtype=torch.int64)
    assert torch.equal(layer.gates(first, tasks), layer.gates(first, tasks))
    layer(first.unsqueeze(1), tasks)
    assert layer.used.sum() == 0
    layer.train()
    torch.manual_seed(5)
    gates = layer.gates(first, tasks)
    torch.manual_seed(5)
    deviation = F.softplus(first @ layer.noises[0]) + 1e-2
    logits = first @ layer.routers[0] + torch.randn(6, 4) * deviation
    kept, experts = logits.topk(2)
    torch.testing.assert_close(gates.gather(1, experts), kept.softmax(dim=-1))
    layer(first.unsqueeze(1), tasks)
    assert layer.used.sum() == 12


def test_task_freezes_its_most_selected_experts() -> None:
    layer = expert_layer(experts=5)
    layer.used.copy_(torch.tensor([3, 9, 0, 4, 1]))
    layer.freeze_most_used()
    assert layer.frozen.tolist() == [False, True, False, True, False]
    assert layer.used.sum() == 0
    layer.freeze_most_used()
    assert int(layer.frozen.sum()) == 2, "a task without training freezes no expert"
    layer.requires_grad_(False)
    layer.unfreeze_newest()
    trained = [all(p.requires_grad for p in expert.parameters()) for expert in layer.experts]
    assert trained == [True, False, True, False, True]
    assert [router.requires_grad for router in layer.routers] == [False, True]


def test_new_experts_do_not_change_the_towers(backbone: Backbone) -> None:
    tower = ExpertTower(backbone.text_width, len(backbone.text_blocks), experts=3, rank=2).eval()
    tower.add_router()
    ids = backbone.tokenize(TEXTS)
    with torch.no_grad():
        frozen = encode_frames(backbone, random_frames(1, 3))[0], encode_texts(backbone, ids)[0]
        torch.testing.assert_close(
            encode_frames_with_experts(backbone, random_frames(1, 3), tower, 0), frozen[0]
        )
        torch.testing.assert_close(encode_texts_with_experts(backbone, ids, tower, [0, 0, 0]), frozen[1])
        for parameter in tower.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        moved = (
            encode_frames_with_experts(backbone, random_frames(1, 3), tower, 0),
            encode_texts_with_experts(backbone, ids, tower, [0, 0, 0]),
        )
        for now, before in zip(moved, frozen, strict=True):
            assert not torch.allclose(now, before, atol=1e-3)
        torch.testing.assert_close(
            encode_texts_with_experts(backbone, ids, tower, [NO_ROUTER] * 3), frozen[1]
        )


def test_each_text_of_a_batch_uses_the_router_of_its_task(backbone: Backbone) -> None:
    tower = ExpertTower(backbone.text_width, len(backbone.text_blocks), experts=4, rank=2).eval()
    for _ in range(2):
        tower.add_router()
    for parameter in tower.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    ids = backbone.tokenize(TEXTS)
    with torch.no_grad():
        together = encode_texts_with_experts(backbone, ids, tower, [1, NO_ROUTER, 0])
        apart = torch.cat(
            [
                encode_texts_with_experts(backbone, ids[i : i + 1], tower, [task])
                for i, task in enumerate([1, NO_ROUTER, 0])
            ]
        )
    torch.testing.assert_close(together, apart)


# -- the selector ---------------------------------------------------------------------------------------


def test_selector_returns_the_task_with_the_lowest_reconstruction_error() -> None:
    torch.manual_seed(0)
    selector = TaskSelector(8, 3)
    assert selector.select(torch.randn(2, 8)).tolist() == [NO_ROUTER, NO_ROUTER]
    known = [F.normalize(torch.randn(1, 8) + 0.2 * torch.randn(40, 8), dim=-1) for _ in range(3)]
    for task, features in enumerate(known):
        selector.add_task()
        optimizer = torch.optim.Adam(selector.encoders[task].parameters(), lr=0.02)
        for _ in range(60):
            optimizer.zero_grad()
            selector.reconstruction_error(features[:30], task).mean().backward()
            optimizer.step()
    with torch.no_grad():
        for task, features in enumerate(known):
            assert selector.select(features[30:]).tolist() == [task] * 10


def test_selector_error_is_that_of_a_sigmoid_autoencoder() -> None:
    torch.manual_seed(0)
    selector = TaskSelector(4, 3)
    selector.add_task()
    first, _, second, _ = (module for module in selector.encoders[0])  # type: ignore[attr-defined]
    features = F.normalize(torch.randn(2, 4), dim=-1)
    for row, error in zip(features, selector.reconstruction_error(features, 0).tolist(), strict=True):
        target = 1 / (1 + torch.exp(-2 * row))  # √4
        code = (first.weight @ target + first.bias).clamp(min=0)
        rebuilt = 1 / (1 + torch.exp(-(second.weight @ code + second.bias)))
        assert error == pytest.approx(sum((rebuilt - target).tolist()[i] ** 2 for i in range(4)) / 4)


# -- the method -----------------------------------------------------------------------------------------


def moe_method(backbone: Backbone, release: ReleaseState | None = None, **settings: Any) -> MoeAdapter:
    settings = {
        "experts": 6,
        "rank": 4,
        "learning_rate": 1e-2,
        "selector_width": 8,
        **settings,
    }
    method = create_method("moe_adapter", backbone, release, **settings)
    assert isinstance(method, MoeAdapter)
    return method


def test_loss_is_contrast_plus_reconstruction_error(backbone: Backbone) -> None:
    method = moe_method(backbone, logit_scale=20.0)
    method.begin_task("one", "one")
    for parameter in [*method.visual.parameters(), *method.text.parameters()]:
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.05)
    ids = backbone.tokenize(TEXTS)
    with torch.no_grad():
        queries = encode_texts_with_experts(backbone, ids, method.text, [0] * 3)
        videos = method.encode_videos(random_frames(1, 3)).clone()
        error = method.selector.reconstruction_error(encode_texts(backbone, ids)[0], 0).mean()
        expected = in_task_loss(queries, videos, 20.0) + error
        torch.testing.assert_close(method.loss(random_frames(1, 3), TEXTS, None), expected)
    alone = moe_method(backbone, selector=False)
    alone.begin_task("one", "one")
    blocks = len(backbone.visual_blocks) + len(backbone.text_blocks)
    assert [len(group["params"]) for group in alone.parameter_groups()] == [blocks * (6 * 4 + 2)]
    assert len(method.parameter_groups()) == 2


def test_later_tasks_do_not_change_frozen_experts_and_earlier_routers(backbone: Backbone) -> None:
    method = moe_method(backbone)
    learn_steps(method, "one", range(4), TEXTS)
    frozen = {}
    for side in ("visual", "text"):
        for number, layer in enumerate(getattr(method, side).blocks):
            assert int(layer.frozen.sum()) == 2
            for expert in layer.frozen.nonzero().flatten().tolist():
                frozen[f"moe.{side}.layers.{number}.experts.{expert}."] = True
            frozen[f"moe.{side}.layers.{number}.routers.0"] = True
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    learn_steps(method, "two", range(4), TEXTS)
    after = method.state_dict()
    kept = {name for name in before if name.startswith(tuple(frozen))}
    blocks = len(backbone.visual_blocks) + len(backbone.text_blocks)
    assert len(kept) == blocks * (2 * 4 + 1)
    assert all(torch.equal(after[name], before[name]) for name in kept)
    moved = {name for name in before if name not in kept and not torch.equal(after[name], before[name])}
    assert any(".experts." in name for name in moved)
    assert not any("selector.encoders.0" in name for name in moved)
    assert all(int(layer.frozen.sum()) >= 2 for layer in method.text.blocks)
    assert method.routers == [0, 1]


def test_queries_use_the_selected_router_or_that_of_each_shard(backbone: Backbone, tmp_path: Path) -> None:
    for selector in (True, False):
        method = moe_method(backbone, selector=selector)
        for name in ("one", "two"):
            learn_steps(method, name, range(4), TEXTS)
        folder = tmp_path / str(selector)
        folder.mkdir()
        write_release(folder, method.release())
        release = read_query_release(folder)
        assert not any("visual" in name for name in release.tensors)
        encoder = open_query_encoder(backbone, release, {})
        vectors = encoder.encode(TEXTS, ["two", "one"])
        ids = backbone.tokenize(TEXTS)
        with torch.no_grad():
            selected = method.selector.select(encode_texts(backbone, ids)[0])
            for position, task in enumerate([1, 0]):
                tasks = selected if selector else torch.tensor([task] * 3)
                expected = encode_texts_with_experts(backbone, ids, method.text, tasks)
                np.testing.assert_allclose(vectors[:, position], expected.numpy(), atol=1e-6)
        assert np.allclose(vectors[:, 0], vectors[:, 1], atol=1e-4) == selector
        assert encoder.modes == ("latest",)


def test_task_without_training_uses_the_newest_router_or_none(backbone: Backbone) -> None:
    frozen = create_method("zero_shot", backbone)
    index_task(frozen, "bare")
    method = moe_method(backbone, frozen.release(), selector=False)
    index_task(method, "mute")
    assert method.routers == [NO_ROUTER, NO_ROUTER]
    assert method.fingerprint() == frozen.fingerprint()
    learn_steps(method, "one", range(4), TEXTS)
    index_task(method, "silent")
    assert method.routers == [NO_ROUTER, NO_ROUTER, 0, 0]
    assert method.learned_tasks[3].fingerprint == method.learned_tasks[2].fingerprint
    encoder = method.query_encoder()
    vectors = encoder.encode(TEXTS, ["bare", "one", "silent"])
    np.testing.assert_allclose(vectors[:, 0], encoder.encode_with_backbone(TEXTS), atol=1e-6)
    np.testing.assert_allclose(vectors[:, 1], vectors[:, 2], atol=1e-6)
    assert not np.allclose(vectors[:, 0], vectors[:, 1], atol=1e-3)


def test_router_is_trained_when_all_experts_are_frozen(backbone: Backbone) -> None:
    method = moe_method(backbone, experts=2)
    learn_steps(method, "one", range(4), TEXTS)
    before = method.text.blocks[0].experts[0].state_dict()["up.weight"].clone()
    learn_steps(method, "two", range(4), TEXTS)
    assert torch.equal(method.text.blocks[0].experts[0].state_dict()["up.weight"], before)
    assert method.text.blocks[0].routers[1].abs().max() > 0


def test_release_with_mismatched_rank_is_refused(backbone: Backbone) -> None:
    method = moe_method(backbone)
    learn_steps(method, "one", range(4), TEXTS)
    release = method.release()
    release.config["rank"] = 5
    with pytest.raises(ReleaseError, match="the experts of the release do not fit its configuration"):
        open_query_encoder(backbone, release, {})
