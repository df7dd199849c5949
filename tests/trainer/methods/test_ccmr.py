"""Continual cross-modal retrieval: each equation against loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from tests.trainer.methods.method_driver import FRAMES, SIDE, TEXTS, create_method, random_unit_vectors
from trainer.methods.ccmr import Ccmr, distances
from trainer.task_data import Clip, Pair, TaskData


def ccmr_method(backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> Ccmr:
    method = create_method("ccmr", backbone, previous, **settings)
    assert isinstance(method, Ccmr)
    return method


def uniform_frames(seed: int, videos: int = 4) -> Tensor:
    """Return videos of uniform color, which an untrained tower distinguishes."""
    rng = np.random.default_rng(seed)
    colors = rng.integers(0, 256, (videos, FRAMES, 1, 1, 3), dtype=np.uint8)
    return torch.from_numpy(np.broadcast_to(colors, (videos, FRAMES, SIDE, SIDE, 3)).copy())


def test_equation_3(backbone: Backbone) -> None:
    torch.manual_seed(1)
    texts, videos, margin = random_unit_vectors(4), random_unit_vectors(4), 0.9
    method = ccmr_method(backbone, margin=margin, video_to_text=0.7, text_to_video=1.5)
    total = 0.0
    for anchors, others, weight in ((videos, texts, 0.7), (texts, videos, 1.5)):
        hinges = []
        for i in range(4):
            right = float((anchors[i] - others[i]).norm())
            wrong = [float((anchors[i] - others[k]).norm()) for k in range(4) if k != i]
            hinges += [max(0.0, right + margin - distance) for distance in wrong]
        total += weight * sum(hinges) / len(hinges)
    assert float(method.contrastive_loss(texts, videos)) == pytest.approx(total, rel=1e-5)


def test_distances_are_euclidean_with_a_finite_gradient_at_zero() -> None:
    torch.manual_seed(2)
    rows, columns = random_unit_vectors(3), random_unit_vectors(4)
    for i in range(3):
        for j in range(4):
            expected = (rows[i] - columns[j]).norm()
            torch.testing.assert_close(distances(rows, columns)[i, j], expected, atol=1e-5, rtol=1e-4)
    same = rows.clone().requires_grad_()
    distances(same, same).sum().backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()


def test_batch_of_one_pair_has_zero_loss(backbone: Backbone) -> None:
    method = ccmr_method(backbone)
    method.begin_task("one", "one")
    loss = method.loss(uniform_frames(1, videos=1), TEXTS[:1], None)
    loss.backward()
    assert loss.item() == 0


def write_captioned_task(folder: Path, name: str, videos: int = 3) -> TaskData:
    clips = []
    for number in range(videos):
        path = folder / f"{name}-{number}.npy"
        np.save(path, uniform_frames(10 * len(name) + number, videos=1)[0].numpy())
        texts = (f"{name} number {number} caption", f"video {number} of {name}")
        clips.append(Clip(f"{name}-{number}", number, path, texts, "train"))
    return TaskData(name, name, tuple(clips))


def training_pairs(folder: Path, videos: int) -> list[Pair]:
    return [Pair(clip, clip.captions[0]) for clip in write_captioned_task(folder, "task", videos).clips]


def run_empty_task(method: Ccmr, pairs: list[Pair]) -> dict[str, Tensor]:
    """Run a task without a step; return the weights that it unfreezes."""
    method.begin_task("task", "task")
    unfrozen = {name: p.detach() for name, p in method.model.named_parameters() if p.requires_grad}
    method.end_task(pairs)
    return unfrozen


def test_equation_5(backbone: Backbone, tmp_path: Path) -> None:
    """Two pairs are one batch, so the expectation has one term."""
    pairs = training_pairs(tmp_path, 2)
    method = ccmr_method(backbone, margin=1.0)
    run_empty_task(method, pairs)
    towers = backbone.clone().requires_grad_(True)
    frames = torch.stack([torch.from_numpy(np.load(pair.clip.frames_path)) for pair in pairs])
    texts = encode_texts(towers, towers.tokenize([pair.caption for pair in pairs]))[0]
    videos = encode_frames(towers, frames)[0]
    loss = torch.zeros(())
    for i, k in ((0, 1), (1, 0)):
        right = (videos[i] - texts[i]).norm()
        loss = loss + 1.0 * (right + 1 - (videos[i] - texts[k]).norm()).relu() / 2
        loss = loss + 1.5 * (right + 1 - (texts[i] - videos[k]).norm()).relu() / 2
    loss.backward()
    text_branch = {n for n, _ in towers.named_parameters() if not n.startswith("clip.visual.")}
    assert method.importance.keys() == text_branch - {"clip.logit_scale"}
    for name, importance in method.importance.items():
        gradient = towers.get_parameter(name).grad
        assert gradient is not None
        expected = gradient.square()
        torch.testing.assert_close(importance, expected, atol=1e-3 * float(expected.max()), rtol=1e-2)


@pytest.mark.parametrize("decay", [0.0, 0.25])
def test_equation_5_keeps_the_decayed_importance_of_earlier_tasks(
    backbone: Backbone, tmp_path: Path, decay: float
) -> None:
    method = ccmr_method(backbone, fisher_decay=decay, fisher_batch=4, margin=1.0)
    pairs = training_pairs(tmp_path, 4)
    run_empty_task(method, pairs)
    first = {name: importance.clone() for name, importance in method.importance.items()}
    run_empty_task(method, pairs)
    for name, importance in method.importance.items():
        torch.testing.assert_close(importance, (1 + decay) * first[name], atol=1e-9, rtol=1e-4)
    assert max(float(importance.max()) for importance in first.values()) > 1e-6


def test_equation_4_penalizes_the_text_branch(backbone: Backbone) -> None:
    torch.manual_seed(5)
    method = ccmr_method(backbone, penalty=4.0)
    unfrozen = run_empty_task(method, [])
    for importance in method.importance.values():
        importance.uniform_()
    method.begin_task("two", "two")
    total = 0.0
    for name, weight in unfrozen.items():
        step = 0.01 * torch.randn_like(weight)
        weight += step
        if not name.startswith("clip.visual."):
            total += float((method.importance[name] * step.square()).sum())
    with torch.no_grad():
        whole, task = (f(uniform_frames(1), TEXTS, None) for f in (method.loss, method.task_loss))
    assert float(whole - task) == pytest.approx(2.0 * total, rel=1e-3), "λ3 is half of λ"
