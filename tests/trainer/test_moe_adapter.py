"""MoE-Adapters: experts, routers, activate-freeze, and the selector of a query's task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.mixture_of_experts import (
    NO_ROUTER,
    ExpertLayer,
    ExpertTower,
    TaskSelector,
    encode_frames_with_experts,
    encode_texts_with_experts,
)
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.encoder_registry import open_query_encoder, read_query_release
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import ReleaseError
from models.releases.release_files import write_release
from models.releases.release_state import ReleaseState
from tests.trainer.killing import Killed, kill_at
from trainer.losses import in_task_loss
from trainer.methods import MethodError, configure, start_method
from trainer.methods.moe_adapter import MoeAdapter
from trainer.task_data import Clip, TaskData
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task

FRAMES, SIDE = 2, 56
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


def _layer(experts: int = 4, top_k: int = 2, routers: int = 2) -> ExpertLayer:
    torch.manual_seed(1)
    layer = ExpertLayer(6, experts=experts, rank=3, top_k=top_k, scale=0.5, dropout=0.0).eval()
    for _ in range(routers):
        layer.add_router()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def _frames(seed: int, count: int = 3) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, FRAMES, SIDE, SIDE, 3), dtype=np.uint8))


# -- the mixture ----------------------------------------------------------------------------------------


def test_a_mixture_is_the_weighted_sum_of_the_chosen_experts() -> None:
    layer = _layer()
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


def test_gates_are_k_that_sum_to_one_and_none_for_the_frozen_towers() -> None:
    layer = _layer()
    gates = layer.gates(torch.randn(5, 6), torch.tensor([0, NO_ROUTER, 1, 1, NO_ROUTER]))
    assert (gates > 0).sum(dim=-1).tolist() == [2, 0, 2, 2, 0]
    torch.testing.assert_close(gates.sum(dim=-1), torch.tensor([1.0, 0, 1, 1, 0]))


def test_routing_explores_and_counts_in_training_alone() -> None:
    layer, first, tasks = _layer(), torch.randn(6, 6), torch.zeros(6, dtype=torch.int64)
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


def test_a_task_freezes_the_experts_that_it_chose_most() -> None:
    layer = _layer(experts=5)
    layer.used.copy_(torch.tensor([3, 9, 0, 4, 1]))
    layer.freeze_most_used()
    assert layer.frozen.tolist() == [False, True, False, True, False]
    assert layer.used.sum() == 0
    layer.freeze_most_used()
    assert int(layer.frozen.sum()) == 2, "a task that was not trained freezes nothing"
    layer.requires_grad_(False)
    layer.unfreeze_newest()
    trained = [all(p.requires_grad for p in expert.parameters()) for expert in layer.experts]
    assert trained == [True, False, True, False, True]
    assert [router.requires_grad for router in layer.routers] == [False, True]


def test_new_experts_leave_both_towers_as_they_are(backbone: Backbone) -> None:
    width, depth = 128, len(backbone.text_blocks)
    tower = ExpertTower(width, depth, experts=3, rank=2).eval()
    tower.add_router()
    ids = backbone.tokenize(TEXTS)
    with torch.no_grad():
        frozen = encode_frames(backbone, _frames(1))[0], encode_texts(backbone, ids)[0]
        torch.testing.assert_close(encode_frames_with_experts(backbone, _frames(1), tower, 0), frozen[0])
        torch.testing.assert_close(encode_texts_with_experts(backbone, ids, tower, [0, 0, 0]), frozen[1])
        for parameter in tower.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        moved = (
            encode_frames_with_experts(backbone, _frames(1), tower, 0),
            encode_texts_with_experts(backbone, ids, tower, [0, 0, 0]),
        )
        for now, before in zip(moved, frozen, strict=True):
            assert not torch.allclose(now, before, atol=1e-3)
        torch.testing.assert_close(
            encode_texts_with_experts(backbone, ids, tower, [NO_ROUTER] * 3), frozen[1]
        )


def test_every_text_is_encoded_under_its_own_task(backbone: Backbone) -> None:
    tower = ExpertTower(128, len(backbone.text_blocks), experts=4, rank=2).eval()
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


def test_the_selector_takes_the_task_that_knows_an_input_best() -> None:
    torch.manual_seed(0)
    selector = TaskSelector(8, 3)
    assert selector.select(torch.randn(2, 8)).tolist() == [NO_ROUTER, NO_ROUTER]
    known = [F.normalize(torch.randn(1, 8) + 0.2 * torch.randn(40, 8), dim=-1) for _ in range(3)]
    for task, features in enumerate(known):
        selector.add_task()
        optimiser = torch.optim.Adam(selector.encoders[task].parameters(), lr=0.02)
        for _ in range(60):
            optimiser.zero_grad()
            selector.reconstruction_error(features[:30], task).mean().backward()
            optimiser.step()
    with torch.no_grad():
        for task, features in enumerate(known):
            assert selector.select(features[30:]).tolist() == [task] * 10


def test_the_error_is_that_of_a_sigmoid_autoencoder() -> None:
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


def _task(folder: Path, name: str, *, videos: int = 4, captions: int = 1) -> TaskData:
    rng = np.random.default_rng(list(name.encode()))
    clips = []
    for number in range(videos):
        path = folder / f"{name}-{number}.npy"
        np.save(path, rng.integers(0, 256, (FRAMES, SIDE, SIDE, 3), dtype=np.uint8))
        texts = tuple(f"{name} number {number} again {c}" for c in range(captions))
        clips.append(Clip(f"{name}-{number}", number, path, texts, "train"))
    return TaskData(name, name, tuple(clips))


def _start(backbone: Backbone, release: ReleaseState | None = None, **settings: Any) -> MoeAdapter:
    settings = {
        "epochs": 2,
        "batch_size": 2,
        "experts": 6,
        "rank": 4,
        "learning_rate": 1e-2,
        "selector_width": 8,
        **settings,
    }
    method = start_method("moe_adapter", backbone, settings, release)
    assert isinstance(method, MoeAdapter)
    return method


def test_the_loss_is_contrast_and_reconstruction(backbone: Backbone) -> None:
    method = _start(backbone, logit_scale=20.0)
    method.begin_task("one", "one")
    for parameter in [*method.visual.parameters(), *method.text.parameters()]:
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.05)
    ids = backbone.tokenize(TEXTS)
    with torch.no_grad():
        queries = encode_texts_with_experts(backbone, ids, method.text, [0] * 3)
        videos = method.encode_videos(_frames(1)).clone()
        error = method.selector.reconstruction_error(encode_texts(backbone, ids)[0], 0).mean()
        expected = in_task_loss(queries, videos, 20.0) + error
        torch.testing.assert_close(method.loss(_frames(1), TEXTS, None), expected)
    alone = _start(backbone, selector=False)
    alone.begin_task("one", "one")
    assert [len(group["params"]) for group in alone.parameter_groups()] == [2 * 4 * (6 * 4 + 2)]
    assert len(method.parameter_groups()) == 2


def test_later_tasks_leave_what_earlier_ones_rely_on(backbone: Backbone, tmp_path: Path) -> None:
    method = _start(backbone)
    learn_task(method, _task(tmp_path, "one"))
    frozen = {}
    for side in ("visual", "text"):
        for number, layer in enumerate(getattr(method, side).blocks):
            assert int(layer.frozen.sum()) == 2
            for expert in layer.frozen.nonzero().flatten().tolist():
                frozen[f"moe.{side}.layers.{number}.experts.{expert}."] = True
            frozen[f"moe.{side}.layers.{number}.routers.0"] = True
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    learn_task(method, _task(tmp_path, "two"))
    after = method.state_dict()
    kept = {name for name in before if name.startswith(tuple(frozen))}
    assert len(kept) == 2 * 4 * (2 * 4 + 1)
    assert all(torch.equal(after[name], before[name]) for name in kept)
    moved = {name for name in before if name not in kept and not torch.equal(after[name], before[name])}
    assert any(".experts." in name for name in moved)
    assert not any("selector.encoders.0" in name for name in moved)
    assert all(int(layer.frozen.sum()) >= 2 for layer in method.text.blocks)
    assert method.routers == [0, 1]


def test_a_resumed_second_task_ends_with_the_same_bits(backbone: Backbone, tmp_path: Path) -> None:
    first, second = _task(tmp_path, "one"), _task(tmp_path, "two")
    method = _start(backbone)
    learn_task(method, first)
    release = method.release()
    whole = _start(backbone, release)
    learn_task(whole, second)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    with pytest.raises(Killed):
        learn_task(_start(backbone, release), second, checkpoints=checkpoints, report=kill_at(3))
    resumed = _start(backbone, release)
    steps: list[int] = []
    learn_task(resumed, second, checkpoints=checkpoints, report=lambda p: steps.append(p.step))
    assert steps == [3, 4]
    expected, tensors = whole.release().tensors, resumed.release().tensors
    assert expected.keys() == tensors.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())
    assert resumed.fingerprint() == whole.fingerprint()
    assert resumed.learned_tasks[0].fingerprint != resumed.learned_tasks[1].fingerprint


def test_queries_take_the_selected_router_or_each_shards_own(backbone: Backbone, tmp_path: Path) -> None:
    for selector in (True, False):
        method = _start(backbone, selector=selector)
        for name in ("one", "two"):
            learn_task(method, _task(tmp_path, name))
        folder = tmp_path / str(selector)
        folder.mkdir()
        write_release(folder, method.release())
        release = read_query_release(folder)
        assert not any("visual" in name for name in release.tensors)
        encoder = open_query_encoder(backbone, release, {})
        vectors = encoder.encode(TEXTS, ["two", "one"])
        ids = backbone.tokenize(TEXTS)
        with torch.no_grad():
            chosen = method.selector.select(encode_texts(backbone, ids)[0])
            for place, task in enumerate([1, 0]):
                tasks = chosen if selector else torch.tensor([task] * 3)
                expected = encode_texts_with_experts(backbone, ids, method.text, tasks)
                np.testing.assert_allclose(vectors[:, place], expected.numpy(), atol=1e-6)
        assert np.allclose(vectors[:, 0], vectors[:, 1], atol=1e-4) == selector
        assert encoder.modes == ("latest",)


def test_untrained_tasks_borrow_the_newest_router_or_none(backbone: Backbone, tmp_path: Path) -> None:
    frozen = start_method("zero_shot", backbone, {}, None)
    learn_task(frozen, _task(tmp_path, "bare"))
    method = _start(backbone, frozen.release(), selector=False)
    learn_task(method, _task(tmp_path, "mute", captions=0))
    assert method.routers == [NO_ROUTER, NO_ROUTER]
    assert method.fingerprint() == frozen.fingerprint()
    learn_task(method, _task(tmp_path, "one"))
    learn_task(method, _task(tmp_path, "silent", captions=0))
    assert method.routers == [NO_ROUTER, NO_ROUTER, 0, 0]
    assert method.learned_tasks[3].fingerprint == method.learned_tasks[2].fingerprint
    encoder = method.query_encoder()
    vectors = encoder.encode(TEXTS, ["bare", "one", "silent"])
    np.testing.assert_allclose(vectors[:, 0], encoder.encode_with_backbone(TEXTS), atol=1e-6)
    np.testing.assert_allclose(vectors[:, 1], vectors[:, 2], atol=1e-6)
    assert not np.allclose(vectors[:, 0], vectors[:, 1], atol=1e-3)


def test_with_every_expert_frozen_a_router_is_still_learned(backbone: Backbone, tmp_path: Path) -> None:
    method = _start(backbone, experts=2)
    learn_task(method, _task(tmp_path, "one"))
    before = method.text.blocks[0].experts[0].state_dict()["up.weight"].clone()
    learn_task(method, _task(tmp_path, "two"))
    assert torch.equal(method.text.blocks[0].experts[0].state_dict()["up.weight"], before)
    assert method.text.blocks[0].routers[1].abs().max() > 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"experts": 0}, "experts: "),
        ({"dropout": 1, "top_k": 0}, "top_k: .*dropout: "),
        ({"selector_width": 0}, "selector_width: "),
        ({"threshold": 0.06}, "threshold: Extra inputs"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        configure("moe_adapter", "tiny", settings)


def test_a_library_keeps_its_experts(backbone: Backbone, tmp_path: Path) -> None:
    method = _start(backbone, epochs=1)
    learn_task(method, _task(tmp_path, "one", videos=2))
    release = method.release()
    with pytest.raises(MethodError, match="experts is 6"):
        _start(backbone, release, experts=7)
    release.config["rank"] = 5
    with pytest.raises(ReleaseError, match="the experts of the release do not fit its configuration"):
        open_query_encoder(backbone, release, {})
