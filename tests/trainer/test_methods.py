"""What every method must do, and what FFA + TAME does in particular."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.adapters.tame import NO_EXPERT, ROUTED
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.encoder_registry import open_query_encoder
from models.errors import ReleaseError
from models.releases.release_files import read_release, write_release
from models.releases.release_state import ReleaseState
from service.core.method_names import METHOD_NAMES
from trainer.losses import cross_task_loss, in_task_loss
from trainer.methods import METHODS, Method, MethodError, configure, start_method
from trainer.methods.ffa_tame import FfaTame

FRAMES = 3
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin", "the ring bounces"]
SMALL = {"experts": 3, "rank": 4, "dropout": 0.0}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


def _frames(seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (4, FRAMES, 56, 56, 3), dtype=np.uint8))


def _start(name: str, backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> Method:
    settings = {**(SMALL if name == "ffa_tame" else {}), **settings}
    return start_method(name, backbone, settings, previous)


def _learn(method: Method, task: str, *, seed: int, steps: int = 3, references: Tensor | None = None) -> None:
    method.begin_task(task, task)
    method.train(True)
    groups = method.parameter_groups()
    if groups:
        torch.manual_seed(seed)
        optimiser = torch.optim.AdamW(groups)
        for _ in range(steps):
            optimiser.zero_grad()
            method.loss(_frames(seed), TEXTS, references).backward()
            optimiser.step()
            method.after_step()
    method.train(False)
    method.end_task()
    method.record_task(task, task, TEXTS)


def test_the_service_offers_every_method_that_leaves_old_videos_alone() -> None:
    assert set(METHOD_NAMES) == {name for name, method in METHODS.items() if not method.requires_all_videos}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_two_tasks_then_a_release_that_serves(name: str, backbone: Backbone, tmp_path: Path) -> None:
    method = _start(name, backbone)
    _learn(method, "one", seed=1)
    first = method.release()
    resumed = _start(name, backbone, first)
    _learn(resumed, "two", seed=2)
    write_release(tmp_path, resumed.release())
    second = read_release(tmp_path)
    assert [t.task_id for t in second.tasks] == ["one", "two"]
    encoder = open_query_encoder(backbone, second, {"one": first, "two": second})
    for mode in encoder.modes:
        vectors = encoder.encode(TEXTS, ["two", "one"], mode)
        assert vectors.shape == (4, 2, backbone.dim)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-5)
    alive = resumed.query_encoder().encode(TEXTS, ["one", "two"], "latest")
    np.testing.assert_allclose(encoder.encode(TEXTS, ["one", "two"], "latest"), alive, atol=1e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_continues_where_its_release_stopped(name: str, backbone: Backbone) -> None:
    method = _start(name, backbone)
    _learn(method, "one", seed=1)
    resumed = _start(name, backbone, method.release())
    assert resumed.fingerprint() == method.fingerprint() == method.learned_tasks[0].fingerprint
    torch.testing.assert_close(resumed.encode_videos(_frames(5)), method.encode_videos(_frames(5)))
    for run in (method, resumed):
        _learn(run, "two", seed=2)
    assert resumed.fingerprint() == method.fingerprint()


@pytest.mark.parametrize("name", sorted(n for n in METHODS if METHODS[n].is_trainable))
def test_training_lowers_the_loss_and_spares_the_backbone(name: str, backbone: Backbone) -> None:
    torch.manual_seed(0)  # of random sentences, masked words and the like
    before = backbone.fingerprint
    method = _start(name, backbone, learning_rate=1e-4)  # small enough for eight steps on four pairs
    method.begin_task("one", "one")
    start = method.loss(_frames(1), TEXTS, None).item()
    optimiser = torch.optim.AdamW(method.parameter_groups())
    for _ in range(8):
        optimiser.zero_grad()
        loss = method.loss(_frames(1), TEXTS, None)
        loss.backward()
        optimiser.step()
    assert loss.item() < start
    assert backbone.compute_fingerprint() == before


def test_pinned_queries_never_move_and_latest_ones_do(backbone: Backbone) -> None:
    method = _start("ffa_tame", backbone)
    _learn(method, "one", seed=1)
    first = method.release()
    earlier = open_query_encoder(backbone, first, {"one": first}).encode(TEXTS, ["one"], "pinned")
    _learn(method, "two", seed=2)
    second = method.release()
    later = open_query_encoder(backbone, second, {"one": first, "two": second})
    assert np.array_equal(later.encode(TEXTS, ["one"], "pinned"), earlier)
    assert not np.allclose(later.encode(TEXTS, ["one"], "latest"), earlier)
    together = later.encode(TEXTS, ["one", "two"], "pinned")
    np.testing.assert_allclose(together[:, :1], earlier, atol=1e-6)
    np.testing.assert_allclose(together[:, 1:], later.encode(TEXTS, ["two"], "latest"), atol=1e-6)


def test_equation_9(backbone: Backbone) -> None:
    method = _start("ffa_tame", backbone, cross_task=0.25)
    _learn(method, "one", seed=1)
    method.begin_task("two", "two")
    references = torch.nn.functional.normalize(torch.randn(5, backbone.dim), dim=-1)
    with torch.no_grad():
        videos = method.encode_videos(_frames(3)).clone()
        queries = torch.from_numpy(_queries_of_current_task(method))
        scale = method.config.logit_scale
        expected = 0.75 * in_task_loss(queries, videos, scale)
        expected += 0.25 * cross_task_loss(queries, videos, references, scale)
        torch.testing.assert_close(method.loss(_frames(3), TEXTS, references), expected, atol=1e-4, rtol=1e-4)
        alone = in_task_loss(queries, videos, scale)
        torch.testing.assert_close(method.loss(_frames(3), TEXTS, None), alone, atol=1e-4, rtol=1e-4)


def _queries_of_current_task(method: Method) -> np.ndarray:
    method.record_task("current", "current", TEXTS)
    vectors = method.query_encoder().encode(TEXTS, ["current"])[:, 0]
    method.learned_tasks.pop()
    return vectors


def test_the_first_task_trains_one_expert_and_the_second_starts_from_its_copies(backbone: Backbone) -> None:
    method = _start("ffa_tame", backbone)
    assert isinstance(method, FfaTame)
    _learn(method, "one", seed=1)
    b = method.tame.b
    assert b[:, :, 0].abs().max() > 0
    assert b[:, :, 1:].abs().max() == 0
    method.begin_task("two", "two")
    assert method.tame.task_experts == [0, ROUTED]
    assert torch.equal(b[:, :, 1], b[:, :, 0])
    assert method.tame.router.requires_grad


def test_earlier_prototypes_stay_as_they_were(backbone: Backbone) -> None:
    method = _start("ffa_tame", backbone)
    for seed, task in enumerate(["one", "two"]):
        _learn(method, task, seed=seed)
    before = method.tame.prototypes[1].detach().clone()
    _learn(method, "three", seed=3)
    assert torch.equal(method.tame.prototypes[1], before)


def test_without_tame_queries_pass_the_frozen_tower(backbone: Backbone) -> None:
    method = _start("ffa_tame", backbone, tame=False)
    for seed, task in enumerate(["one", "two"]):
        _learn(method, task, seed=seed)
    encoder = method.query_encoder()
    np.testing.assert_allclose(
        encoder.encode(TEXTS, ["two"])[:, 0], encoder.encode_with_backbone(TEXTS), atol=1e-6
    )
    assert any(gate.abs() > 0 for gate in method.fusion.gates())


def test_without_ffa_videos_pass_the_frozen_tower(backbone: Backbone) -> None:
    method = _start("ffa_tame", backbone, ffa_layers=0)
    _learn(method, "one", seed=1)
    frozen = _start("zero_shot", backbone)
    torch.testing.assert_close(method.encode_videos(_frames(1)), frozen.encode_videos(_frames(1)))


def test_a_task_without_captions_borrows_the_newest_prototype(backbone: Backbone) -> None:
    method = _start("ffa_tame", backbone)
    for seed, task in enumerate(["one", "two"]):
        _learn(method, task, seed=seed)
    method.begin_task("bare", "bare", trained=False)
    method.end_task()
    method.record_task("bare", "bare", [])
    encoder = method.query_encoder()
    vectors = encoder.encode(TEXTS, ["two", "bare"])
    np.testing.assert_allclose(vectors[:, 0], vectors[:, 1], atol=1e-6)
    assert method.learned_tasks[2].fingerprint == method.learned_tasks[1].fingerprint


def test_a_library_that_began_without_captions_can_start_to_learn(backbone: Backbone) -> None:
    frozen = _start("zero_shot", backbone)
    _learn(frozen, "bare", seed=0)
    first = frozen.release()
    method = _start("ffa_tame", backbone, first)
    _learn(method, "one", seed=1)
    second = method.release()
    assert method.tame.task_experts == [NO_EXPERT, 0]
    encoder = open_query_encoder(backbone, second, {"bare": first, "one": second})
    for mode in encoder.modes:
        np.testing.assert_allclose(
            encoder.encode(TEXTS, ["bare"], mode)[:, 0], encoder.encode_with_backbone(TEXTS), atol=1e-6
        )


def test_a_profile_knows_the_words_of_the_training_captions(backbone: Backbone) -> None:
    method = _start("zero_shot", backbone)
    _learn(method, "one", seed=0)
    encoder = method.query_encoder()
    told, other = encoder.token_presence(["a red circle"])[0], encoder.token_presence(["zebras sleeping"])[0]
    profile = method.profiles.to_dense()[0]
    assert told @ profile > 10
    assert other @ profile == 0


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("magic", {}, "unknown method 'magic': choose one of base_moco"),
        ("ffa_tame", {"epoch": 3}, "epoch: Extra inputs"),
        ("ffa_tame", {"epochs": 0, "rank": "x"}, "epochs: .*rank: "),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        configure(name, "tiny", settings)


def test_a_library_keeps_its_method_backbone_and_architecture(backbone: Backbone) -> None:
    method = _start("ffa_tame", backbone)
    _learn(method, "one", seed=1)
    release = method.release()
    with pytest.raises(MethodError, match="method 'ffa_tame', which 'finetune' cannot continue"):
        _start("finetune", backbone, release)
    with pytest.raises(MethodError, match="rank is 4"):
        _start("ffa_tame", backbone, release, rank=5)
    assert start_method("ffa_tame", backbone, {}, release).config.model_dump()["rank"] == 4, (
        "kept, not asked for"
    )
    torch.manual_seed(9)
    other = tiny_backbone(frames=FRAMES)
    with pytest.raises(MethodError, match="learned on backbone"):
        _start("ffa_tame", other, release)
    with pytest.raises(ReleaseError, match="learned on another backbone"):
        open_query_encoder(other, release, {"one": release})


def test_a_query_for_an_unknown_task_or_mode_is_refused_by_name(backbone: Backbone) -> None:
    method = _start("finetune", backbone)
    _learn(method, "one", seed=1)
    encoder = method.query_encoder()
    with pytest.raises(ReleaseError, match="not learned two"):
        encoder.encode(TEXTS, ["two"])
    with pytest.raises(ReleaseError, match="mode 'pinned', only in latest"):
        encoder.encode(TEXTS, ["one"], "pinned")
