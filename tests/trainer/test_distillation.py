"""Distillation: each loss against loops, who teaches when, and what it does over two tasks."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from tests.trainer.killing import Killed, kill_at
from trainer.losses import in_task_loss
from trainer.methods import MethodError, configure, start_method
from trainer.methods.shared.distillation import distillation_loss, random_sentences
from trainer.methods.zscl import Zscl, ZsclConfig
from trainer.task_data import Clip, TaskData
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task

FRAMES = 2
NAMES = ["lwf", "vr_lwf", "zscl"]
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin", "the ring bounces"]
SMALL: dict[str, Any] = {"sentences": 5, "words": 3}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


def _start(name: str, backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> Any:
    small = SMALL if name in ("vr_lwf", "zscl") else {}
    return start_method(name, backbone, {**small, **settings}, previous)


def _frames(seed: int, videos: int = 4) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (videos, FRAMES, 56, 56, 3), dtype=np.uint8))


def _task(folder: Path, name: str) -> TaskData:
    clips = []
    for number, text in enumerate(TEXTS):
        path = folder / f"{name}-{number}.npy"
        np.save(path, _frames(10 * len(name) + number, 1)[0].numpy())
        clips.append(Clip(f"{name}-{number}", 100 * len(name) + number, path, (f"{text} {name}",), "train"))
    return TaskData(name, name, tuple(clips))


def _weights(model: Backbone) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def _disturb(model: Backbone) -> None:
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.02 * torch.randn_like(weight)


def _learn(method: Any, task: str, seed: int, steps: int = 2) -> None:
    method.begin_task(task, task)
    optimiser = torch.optim.AdamW(method.parameter_groups())
    torch.manual_seed(seed)
    for _ in range(steps):
        _step(method, optimiser, seed)
    method.end_task()
    method.record_task(task, task, TEXTS)


def _step(method: Any, optimiser: torch.optim.Optimizer, seed: int) -> None:
    optimiser.zero_grad()
    method.loss(_frames(seed), TEXTS, None).backward()
    optimiser.step()
    method.after_step()


def _softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp((value - max(row)) / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def _by_hand(now: Tensor, before: Tensor, temperature: float) -> float:
    """T² times the cross-entropy of softened rows, mean over rows."""
    total = 0.0
    for row, old_row in zip(now.tolist(), before.tolist(), strict=True):
        soft, old_soft = _softmax(row, temperature), _softmax(old_row, temperature)
        total -= sum(target * math.log(share) for target, share in zip(old_soft, soft, strict=True))
    return temperature**2 * total / len(now)


# -- what all share -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_distillation_loss_against_a_loop(temperature: float) -> None:
    torch.manual_seed(1)
    now, before = 4 * torch.randn(3, 5), 4 * torch.randn(3, 5)
    found = distillation_loss(now, before, temperature).item()
    assert found == pytest.approx(_by_hand(now, before, temperature), rel=1e-4)
    assert found > distillation_loss(before, before, temperature).item()


def test_the_distillation_loss_is_least_at_the_teacher_up_to_a_constant() -> None:
    torch.manual_seed(1)
    before = torch.randn(3, 5)
    now = (before + torch.tensor([[1.0], [2.0], [-3.0]])).requires_grad_()
    (gradient,) = torch.autograd.grad(distillation_loss(now, before, 2.0), [now])
    assert gradient.abs().max() < 1e-6


def test_random_sentences_are_sentences(backbone: Backbone) -> None:
    torch.manual_seed(1)
    ids = random_sentences(backbone, 50, 4)
    start, end = backbone.tokenize([""])[0].tolist()
    assert ids.shape == (50, 6)
    assert ids[:, 0].tolist() == [start] * 50
    assert ids[:, -1].tolist() == [end] * 50
    assert backbone.end_of_text(ids).tolist() == [5] * 50
    assert int(ids[:, 1:-1].min()) >= 0
    assert int(ids[:, 1:-1].max()) < min(start, end)
    assert len(ids[:, 1:-1].unique()) > 150, "of the whole vocabulary"
    torch.manual_seed(1)
    assert torch.equal(random_sentences(backbone, 50, 4), ids)
    real = backbone.tokenize(["a red circle"])[0].tolist()
    assert (real[0], real[-1]) == (start, end)


def test_random_sentences_spare_special_tokens_wherever_they_are() -> None:
    few: Any = SimpleNamespace(vocabulary=6, tokenize=lambda texts: torch.tensor([[4, 1]]))
    words = random_sentences(few, 200, 3)[:, 1:-1]
    assert words.unique().tolist() == [0, 2, 3, 5]


def test_who_teaches_when(backbone: Backbone) -> None:
    for name, first in (("lwf", False), ("vr_lwf", True), ("zscl", True)):
        method = _start(name, backbone)
        method.begin_task("bare", "bare", trained=False)
        assert method.teacher is None
        method.end_task()
        method.record_task("bare", "bare", [])
        method.begin_task("one", "one")
        assert (method.teacher is not None) == first, name
        method.end_task()
        _learn(method, "one", seed=1, steps=1)
        assert method.teacher is None
        found = _weights(method.model)
        resumed = _start(name, backbone, method.release())
        for run in (method, resumed):
            run.begin_task("two", "two")
            taught = _weights(run.teacher)
            like = _weights(backbone) if name == "zscl" else found
            assert all(torch.equal(taught[n], weight) for n, weight in like.items()), name
            _disturb(run.model)
            assert all(torch.equal(_weights(run.teacher)[n], weight) for n, weight in taught.items())
            assert not any(weight.requires_grad for weight in run.teacher.parameters())


# -- the methods ----------------------------------------------------------------------------------------


def _second_task(name: str, backbone: Backbone, **settings: Any) -> Any:
    """In its second task, some way from its teacher."""
    method = _start(name, backbone, **settings)
    _learn(method, "one", seed=1, steps=1)
    method.begin_task("two", "two")
    _disturb(method.model)
    return method


def test_lwf_against_loops(backbone: Backbone) -> None:
    method = _second_task("lwf", backbone, distillation=0.7, temperature=3.0, logit_scale=20.0)
    with torch.no_grad():
        queries, videos = method.embed(_frames(2), TEXTS)
        old_queries, old_videos = method.embed(_frames(2), TEXTS, method.teacher)
        now, before = 20 * queries @ videos.T, 20 * old_queries @ old_videos.T
        kept = (_by_hand(now, before, 3.0) + _by_hand(now.T, before.T, 3.0)) / 2
        expected = in_task_loss(queries, videos, 20.0).item() + 0.7 * kept
        assert method.loss(_frames(2), TEXTS, None).item() == pytest.approx(expected, rel=1e-4)


def _sentences(backbone: Backbone, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return random_sentences(backbone, SMALL["sentences"], SMALL["words"])


def test_vr_lwf_against_loops(backbone: Backbone) -> None:
    method = _second_task("vr_lwf", backbone, distillation=0.7, temperature=3.0, logit_scale=20.0)
    ids = _sentences(backbone, 5)
    with torch.no_grad():
        queries, videos = method.embed(_frames(2), TEXTS)
        now = 20 * videos @ encode_texts(method.model, ids)[0].T
        before = 20 * encode_frames(method.teacher, _frames(2))[0] @ encode_texts(method.teacher, ids)[0].T
        expected = in_task_loss(queries, videos, 20.0).item() + 0.7 * _by_hand(now, before, 3.0)
        torch.manual_seed(5)
        first = method.loss(_frames(2), TEXTS, None).item()
        assert first == pytest.approx(expected, rel=1e-4)
        assert method.loss(_frames(2), TEXTS, None).item() != first, "other sentences in every step"


def test_zscl_against_loops(backbone: Backbone) -> None:
    method = _second_task("zscl", backbone, distillation=0.7, temperature=3.0, logit_scale=20.0)
    ids = _sentences(backbone, 5)
    with torch.no_grad():
        queries, videos = method.embed(_frames(2), TEXTS)
        sentences = encode_texts(method.model, ids)[0]
        old_videos, old_sentences = encode_frames(backbone, _frames(2))[0], encode_texts(backbone, ids)[0]
        before = 20 * old_videos @ old_sentences.T
        kept = _by_hand(20 * videos @ old_sentences.T, before, 3.0)
        kept += _by_hand(20 * sentences @ old_videos.T, before.T, 3.0)
        expected = in_task_loss(queries, videos, 20.0).item() + 0.7 * kept
        torch.manual_seed(5)
        assert method.loss(_frames(2), TEXTS, None).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_both_towers_are_taught(name: str, backbone: Backbone) -> None:
    method = _second_task(name, backbone)
    queries, videos = method.embed(_frames(2), TEXTS)
    method.teacher_loss(method.teacher, _frames(2), TEXTS, queries, videos).backward()
    for weight in (method.model.clip.visual.proj, method.model.clip.text_projection):
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0
    assert all(weight.grad is None for weight in method.teacher.parameters())


@pytest.mark.parametrize(("interval", "joining"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (100, [5])])
def test_the_ensemble_of_zscl_is_the_mean_of_the_way(
    interval: int, joining: list[int], backbone: Backbone
) -> None:
    method = Zscl(backbone, ZsclConfig(**SMALL, ensemble_interval=interval, learning_rate=1e-3))
    method.begin_task("one", "one")
    optimiser = torch.optim.AdamW(method.parameter_groups())
    way = [_weights(method.model)]
    for _ in range(5):
        _step(method, optimiser, seed=1)
        way.append(_weights(method.model))
    method.end_task()
    for name, weight in method.model.named_parameters():
        mean = sum(way[step][name].double() for step in [0, *joining]) / (1 + len(joining))
        torch.testing.assert_close(weight.double(), mean, rtol=1e-4, atol=1e-6)
    assert (way[5]["clip.visual.proj"] - way[0]["clip.visual.proj"]).abs().max() > 1e-3
    assert not any(name.startswith("ensemble.") for name in method.state_dict())


# -- over two tasks -------------------------------------------------------------------------------------


def test_without_weight_lwf_is_fine_tuning(backbone: Backbone) -> None:
    method = _start("lwf", backbone, distillation=0.0, learning_rate=1e-4)
    plain = _start("finetune", backbone, learning_rate=1e-4)
    for run in (method, plain):
        for seed, task in enumerate(("one", "two")):
            _learn(run, task, seed)
    assert all(torch.equal(method.model.tensors()[n], t) for n, t in plain.model.tensors().items())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_to_the_teacher_stays_nearer_to_it(name: str, backbone: Backbone) -> None:
    method = _start(name, backbone)
    _learn(method, "one", seed=1)
    release = method.release()
    drifts = []
    for weight in (0.0, 10.0):
        method = _start(name, backbone, release, distillation=weight)
        method.begin_task("two", "two")
        optimiser = torch.optim.SGD([p for p in method.model.parameters() if p.requires_grad], lr=1e-2)
        torch.manual_seed(1)
        for _ in range(4):
            optimiser.zero_grad()
            method.loss(_frames(2), TEXTS, None).backward()
            torch.nn.utils.clip_grad_norm_(method.model.parameters(), 1.0)
            optimiser.step()
        with torch.no_grad():
            torch.manual_seed(9)  # videos and sentences that it has not seen
            vectors = method.embed(_frames(50), TEXTS)
            drifts.append(float(method.teacher_loss(method.teacher, _frames(50), TEXTS, *vectors)))
    assert drifts[1] < drifts[0] - 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_a_second_task_resumes_to_the_same_bits(name: str, backbone: Backbone, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 4}
    if name == "zscl":
        settings["ensemble_interval"] = 2  # more than the step of an epoch
    method = _start(name, backbone, **settings)
    learn_task(method, _task(tmp_path, "one"))
    release, second = method.release(), _task(tmp_path, "other")
    whole, broken, resumed = (_start(name, backbone, release, **settings) for _ in range(3))
    learn_task(whole, second)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    with pytest.raises(Killed):
        learn_task(broken, second, checkpoints=checkpoints, report=kill_at(2))
    steps: list[int] = []
    learn_task(resumed, second, checkpoints=checkpoints, report=lambda p: steps.append(p.step))
    assert steps == [2]
    expected, found = whole.release().tensors, resumed.release().tensors
    assert expected.keys() == found.keys()
    for key, tensor in found.items():
        assert torch.equal(tensor, expected[key]), key
    assert int(found["tasks"]) == 2


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("lwf", {"temperature": 0.0}, "temperature: "),
        ("lwf", {"sentences": 5}, "sentences: Extra inputs"),
        ("vr_lwf", {"distillation": -1.0, "words": 63}, "distillation: .*words: "),
        ("vr_lwf", {"sentences": 1}, "sentences: "),
        ("zscl", {"ensemble_interval": 0}, "ensemble_interval: "),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        configure(name, "tiny", settings)
