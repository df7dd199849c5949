"""Continual cross-modal retrieval: each equation against loops, and the effect of each remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix
from tests.trainer.methods.method_driver import FRAMES, SIDE, TEXTS, create_method, random_unit_vectors
from trainer.methods.base import in_task_loss
from trainer.methods.ccmr import Ccmr, distances, ranking_loss
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


def learn(method: Ccmr, task: str, *, seed: int, steps: int = 3, references: Tensor | None = None) -> None:
    method.begin_task(task, task)
    optimizer = torch.optim.AdamW(method.parameter_groups())
    torch.manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        method.loss(uniform_frames(seed), TEXTS, references).backward()
        optimizer.step()
        method.after_step()
    method.end_task()
    method.record_task(task, task, TEXTS)


# -- ranking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hard", [0, 1, 2])
def test_equation_3(backbone: Backbone, hard: int) -> None:
    torch.manual_seed(1)
    texts, videos, margin = random_unit_vectors(4), random_unit_vectors(4), 0.9
    method = ccmr_method(backbone, margin=margin, video_to_text=0.7, text_to_video=1.5, hard_negatives=hard)
    total = 0.0
    for anchors, others, weight in ((videos, texts, 0.7), (texts, videos, 1.5)):
        hinges = []
        for i in range(4):
            own = float((anchors[i] - others[i]).norm())
            wrong = sorted(float((anchors[i] - others[k]).norm()) for k in range(4) if k != i)
            hinges += [max(0.0, own + margin - d) for d in (wrong[:hard] if hard else wrong)]
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


def test_negatives_beyond_the_margin_have_no_gradient() -> None:
    own = torch.tensor([0.2, 0.4], requires_grad=True)
    negatives = torch.tensor([[0.3, 0.2], [0.5, 0.6]], requires_grad=True)
    loss = ranking_loss(own, negatives, 0.05)
    loss.backward()
    assert loss.item() == pytest.approx((0.2 + 0.05 - 0.2) / 4)
    assert negatives.grad is not None
    assert negatives.grad.tolist() == [[0.0, -0.25], [0.0, 0.0]]


def test_batch_of_one_pair_has_zero_loss(backbone: Backbone) -> None:
    method = ccmr_method(backbone)
    method.begin_task("one", "one")
    loss = method.loss(uniform_frames(1, videos=1), TEXTS[:1], None)
    loss.backward()
    assert loss.item() == 0


def test_contrastive_objective_is_the_loss_of_clip(backbone: Backbone) -> None:
    method = ccmr_method(backbone, objective="contrastive")
    method.begin_task("one", "one")
    texts, videos = method.embed(uniform_frames(1), TEXTS)
    expected = in_task_loss(texts, videos, method.config.logit_scale)
    torch.testing.assert_close(method.loss(uniform_frames(1), TEXTS, None), expected)


def test_stored_videos_are_negatives_of_the_captions(backbone: Backbone) -> None:
    torch.manual_seed(3)
    references = random_unit_vectors(3, backbone.dim)
    method = ccmr_method(backbone, cross_task_negatives=True, margin=1.0)
    plain = ccmr_method(backbone, margin=1.0)
    method.begin_task("two", "two")
    torch.testing.assert_close(
        method.loss(uniform_frames(1), TEXTS, None), plain.loss(uniform_frames(1), TEXTS, None)
    )
    with torch.no_grad():
        texts, videos = method.embed(uniform_frames(1), TEXTS)
        more = 0.0
        for i in range(4):
            own = float((texts[i] - videos[i]).norm())
            more += sum(max(0.0, own + 1 - float((texts[i] - r).norm())) for r in references) / 12
        found = method.loss(uniform_frames(1), TEXTS, references) - plain.loss(
            uniform_frames(1), TEXTS, references
        )
    assert float(found) == pytest.approx(1.5 * more, rel=1e-3)


# -- the shared top layer -------------------------------------------------------------------------------


def test_shared_layer_starts_as_identity(backbone: Backbone) -> None:
    method = ccmr_method(backbone, tied=True)
    texts, videos = method.embed(uniform_frames(1), TEXTS)
    torch.testing.assert_close(
        texts, encode_texts(backbone, backbone.tokenize(TEXTS))[0], atol=1e-6, rtol=1e-5
    )
    torch.testing.assert_close(videos, encode_frames(backbone, uniform_frames(1))[0], atol=1e-6, rtol=1e-5)
    assert method.fingerprint() == ccmr_method(backbone).fingerprint()


def test_release_contains_the_shared_layer_within_both_projections(backbone: Backbone) -> None:
    method = ccmr_method(backbone, tied=True)
    method.model.get_parameter("top").data.normal_()
    learn(method, "one", seed=1)
    texts, videos = method.embed(uniform_frames(2), TEXTS)
    release = method.release()
    served = open_query_encoder(backbone, release, {"one": release}).encode(TEXTS, ["one"])[:, 0]
    np.testing.assert_allclose(served, texts.numpy(), atol=1e-5)
    torch.testing.assert_close(method.encode_videos(uniform_frames(2)), videos)
    towers = backbone.clone()
    weights = tensors_with_prefix("", release.tensors)
    towers.load_tensors({n: t for n, t in weights.items() if n.startswith("clip.")})
    torch.testing.assert_close(encode_frames(towers, uniform_frames(2))[0], videos, atol=1e-5, rtol=1e-4)


def test_projections_change_by_the_shared_layer_only(backbone: Backbone) -> None:
    method = ccmr_method(backbone, tied=True)
    for seed, task in enumerate(["one", "two"]):
        learn(method, task, seed=seed)
    top, tensors, before = method.model.get_parameter("top"), method.state_dict(), backbone.tensors()
    assert (top - torch.eye(backbone.dim)).abs().max() > 1e-4
    for name in ("clip.visual.proj", "clip.text_projection"):
        torch.testing.assert_close(tensors[name], before[name] @ top)
        assert torch.equal(method.model.tensors()[name], before[name])
    resumed = ccmr_method(backbone, method.release())
    assert resumed.config.tied
    assert resumed.fingerprint() == method.fingerprint()
    torch.testing.assert_close(
        resumed.embed(uniform_frames(2), TEXTS), method.embed(uniform_frames(2), TEXTS)
    )


# -- importance -----------------------------------------------------------------------------------------


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


def branch_of(name: str) -> str:
    return "video" if name.startswith("clip.visual.") else "text"


def test_equation_5(backbone: Backbone, tmp_path: Path) -> None:
    """Two pairs are one batch, so the expectation has one term."""
    pairs = training_pairs(tmp_path, 2)
    method = ccmr_method(backbone, regularized="both", margin=1.0)
    run_empty_task(method, pairs)
    towers = backbone.clone().requires_grad_(True)
    frames = torch.stack([torch.from_numpy(np.load(pair.clip.frames_path)) for pair in pairs])
    texts = encode_texts(towers, towers.tokenize([pair.caption for pair in pairs]))[0]
    videos = encode_frames(towers, frames)[0]
    loss = torch.zeros(())
    for i, k in ((0, 1), (1, 0)):
        own = (videos[i] - texts[i]).norm()
        loss = loss + 1.0 * (own + 1 - (videos[i] - texts[k]).norm()).relu() / 2
        loss = loss + 1.5 * (own + 1 - (texts[i] - videos[k]).norm()).relu() / 2
    loss.backward()
    assert method.importance.keys() == {n for n, _ in towers.named_parameters()} - {"clip.logit_scale"}
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


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("regularized", ["both", "text", "video"])
def test_equation_6(backbone: Backbone, tmp_path: Path, regularized: str, tied: bool) -> None:
    pairs = training_pairs(tmp_path, 2)
    method = ccmr_method(backbone, regularizer="mas", regularized=regularized, tied=tied)
    top = torch.eye(backbone.dim)
    if tied:
        torch.manual_seed(4)
        top = method.model.get_parameter("top").data.normal_()
    unfrozen = run_empty_task(method, pairs)
    towers = backbone.clone().requires_grad_(True)
    top = top.clone().requires_grad_()
    expected = {name: torch.zeros_like(weight) for name, weight in unfrozen.items()}
    for pair in pairs:
        outputs = []
        if regularized != "text":
            frames = torch.from_numpy(np.load(pair.clip.frames_path)).permute(0, 3, 1, 2)
            outputs.append(towers.clip.encode_image((frames - towers.mean) / towers.std).mean(dim=0))
        if regularized != "video":
            ids = towers.tokenize([pair.caption])
            outputs.append(
                towers.clip.encode_text(
                    F.pad(ids, (0, len(towers.text.positional_embedding) - ids.shape[1]))
                )[0]
            )
        for output in outputs:
            towers.zero_grad()
            top.grad = None
            (output @ top).square().sum().backward()
            for name, total in expected.items():
                gradient = top.grad if name == "top" else towers.get_parameter(name).grad
                if gradient is not None:
                    total += gradient.abs() / len(pairs)
    penalized = {name for name in unfrozen if name == "top" or regularized in ("both", branch_of(name))}
    assert ("top" in penalized) == tied
    for times in (1, 2):  # equation 6 adds to the earlier importance
        assert method.importance.keys() == penalized
        for name, importance in method.importance.items():
            near = 1e-3 * float(expected[name].max())
            torch.testing.assert_close(importance, times * expected[name], atol=near, rtol=1e-2)
        run_empty_task(method, pairs)


@pytest.mark.parametrize("regularized", ["both", "text", "video"])
def test_equation_4_penalizes_the_selected_branches(backbone: Backbone, regularized: str) -> None:
    torch.manual_seed(5)
    method = ccmr_method(backbone, regularized=regularized, penalty=4.0)
    unfrozen = run_empty_task(method, [])
    for importance in method.importance.values():
        importance.uniform_()
    method.begin_task("two", "two")
    total = 0.0
    for name, weight in unfrozen.items():
        step = 0.01 * torch.randn_like(weight)
        weight += step
        if regularized in ("both", branch_of(name)):
            total += float((method.importance[name] * step.square()).sum())
    with torch.no_grad():
        whole, task = (f(uniform_frames(1), TEXTS, None) for f in (method.loss, method.task_loss))
    assert float(whole - task) == pytest.approx(2.0 * total, rel=1e-3), "λ3 is half of λ"


def test_release_without_regularizer_has_no_importance(backbone: Backbone, tmp_path: Path) -> None:
    method = ccmr_method(backbone, regularizer="none")
    run_empty_task(method, training_pairs(tmp_path, 2))
    assert method.release().tensors.keys() == backbone.tensors().keys()
