"""Drift-Adapter and QDC: each fit against slow references, composition of maps, and drift over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.rivals.drift_adapter import procrustes
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from tests.trainer.methods.method_driver import create_method, index_task, random_frames, write_task
from trainer.methods.base import in_task_loss
from trainer.task_data import Clip, Pair, load_frames

NAMES = ["drift_adapter", "qdc"]
WORDS = [
    "red",
    "blue",
    "circle",
    "square",
    "star",
    "ring",
    "moves",
    "left",
    "spins",
    "vanishes",
    "fast",
    "twice",
]


def _mean_angle(before: np.ndarray, after: np.ndarray) -> float:
    """Return the mean angle in degrees between unit vectors ``[n, dim]``."""
    return float(np.degrees(np.arccos(np.clip((before * after).sum(axis=1), -1, 1))).mean())


def query_map_method(
    name: str, backbone: Backbone, previous: ReleaseState | None = None, **settings: Any
) -> Any:
    return create_method(name, backbone, previous, **{"batch_size": 4, **settings})


def random_captions(seed: int, count: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6)) for _ in range(count)]


def caption_pairs(captions: Sequence[str]) -> list[Pair]:
    return [Pair(Clip(str(n), n, Path("unused"), (text,), "train"), text) for n, text in enumerate(captions)]


def transform_text_tower(model: Backbone, by: Tensor) -> None:
    """Multiply every text vector by a matrix, before normalization."""
    with torch.no_grad():
        model.text.text_projection.copy_(model.text.text_projection @ by)


def random_rotation(dim: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed)))[0]


def learn_transformation(method: Any, task: str, captions: Sequence[str], by: Tensor | None = None) -> None:
    """Learn a task whose training is one known transformation of the text tower."""
    method.begin_task(task, task)
    if by is not None:
        transform_text_tower(method.model, by)
    method.end_task(caption_pairs(captions))
    method.record_task(task, task, captions)


def text_vectors(model: Backbone, captions: Sequence[str]) -> np.ndarray:
    return encode_texts(model, model.tokenize(captions))[0].double().numpy()


@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_procrustes_in_the_plane_is_optimal_among_all_rotations_and_reflections(weight: float) -> None:
    rng = np.random.default_rng(2)
    new, old = rng.normal(size=(2, 9, 2))

    def distance(r: np.ndarray) -> float:
        return float(((new @ r - old) ** 2).sum() + weight * ((r - np.eye(2)) ** 2).sum())

    tried = []
    for angle in np.linspace(0, 2 * np.pi, 4001):
        c, s = np.cos(angle), np.sin(angle)
        tried += [distance(np.array(r)) for r in ([[c, s], [-s, c]], [[c, s], [s, -c]])]
    found = procrustes(torch.from_numpy(new), torch.from_numpy(old), weight)
    assert distance(found.numpy()) == pytest.approx(min(tried), rel=1e-5)


def test_procrustes_is_the_identity_in_directions_without_examples() -> None:
    """Three examples in the first three of eight dimensions rotate only these three."""
    turn = random_rotation(3, 3).double()
    new = torch.zeros(3, 8, dtype=torch.float64)
    new[:, :3] = torch.eye(3)
    old = new.clone()
    old[:, :3] = new[:, :3] @ turn
    fitted = procrustes(new, old, 1e-3)
    torch.testing.assert_close(fitted[:3, :3], turn, atol=2e-3, rtol=0)
    torch.testing.assert_close(fitted[3:, 3:], torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(procrustes(new, new, 1e-3), torch.eye(8, dtype=torch.float64))


def test_qdc_shift_is_the_mean_drift(backbone: Backbone) -> None:
    torch.manual_seed(4)
    new, old = torch.randn(5, backbone.dim), torch.randn(5, backbone.dim)
    step = query_map_method("qdc", backbone).fit_map(new, old)
    for column in range(0, backbone.dim, 17):
        drift = sum(float(new[row, column] - old[row, column]) for row in range(5)) / 5
        assert step.shift[column].item() == pytest.approx(-drift, abs=1e-5)
    assert torch.equal(step.matrix, torch.eye(backbone.dim))


def test_qdc_loss_adds_the_cosine_distance_to_the_old_vectors(backbone: Backbone) -> None:
    method = query_map_method("qdc", backbone, distillation=0.7)
    learn_transformation(method, "one", random_captions(1, 4))
    method.begin_task("two", "two")
    transform_text_tower(method.model, random_rotation(backbone.dim, 5))
    frames = random_frames(6, 3)
    texts = random_captions(7, 3)
    with torch.no_grad():
        found = method.loss(frames, texts, None).item()
        queries, videos = method.embed(frames, texts)
        before = encode_texts(backbone, backbone.tokenize(texts))[0], encode_frames(backbone, frames)[0]
        distance = 0.0
        for now, then in ((queries, before[0]), (videos, before[1])):
            cosines = [float(now[n] @ then[n]) / float(now[n].norm() * then[n].norm()) for n in range(3)]
            distance += sum(1 - cosine for cosine in cosines) / 3
        contrast = in_task_loss(queries, videos, method.config.logit_scale).item()
    assert distance > 0.1
    assert found == pytest.approx(contrast + 0.7 * distance, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_maps_are_composed_from_the_newest_task_backwards(name: str, backbone: Backbone) -> None:
    method = query_map_method(name, backbone)
    captions = [random_captions(seed, 30) for seed in range(3)]
    models = []
    for seed, task in enumerate(["one", "two", "three"]):
        mixed = torch.eye(backbone.dim) + 0.05 * torch.randn(
            backbone.dim, backbone.dim, generator=torch.Generator().manual_seed(seed)
        )
        learn_transformation(method, task, captions[seed], mixed)
        models.append(method.model.clone())

    def step(task: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the map from the space after a task to the space before it."""
        new, old = (text_vectors(models[i], captions[task]) for i in (task, task - 1))
        if name == "qdc":
            return np.eye(backbone.dim), (old - new).mean(axis=0)
        u, _, vh = np.linalg.svd(new.T @ old + method.config.identity_weight * np.eye(backbone.dim))
        return u @ vh, np.zeros(backbone.dim)

    queries = text_vectors(models[2], random_captions(9, 5))
    (second, second_shift), (third, third_shift) = step(1), step(2)
    to_two = queries @ third + third_shift
    to_one = to_two @ second + second_shift
    encoder = method.query_encoder()
    for task, expected in (("one", to_one), ("two", to_two), ("three", queries)):
        mapped = encoder.encode(random_captions(9, 5), [task], "mapped")[:, 0]
        np.testing.assert_allclose(
            mapped, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-4
        )
    assert method.maps.shape == (3, backbone.dim, backbone.dim)
    assert torch.equal(method.maps[2], torch.eye(backbone.dim))
    assert method.shifts[2].abs().max() == 0
    if name == "qdc":
        assert torch.equal(method.maps, torch.eye(backbone.dim).expand(3, -1, -1))


@pytest.mark.parametrize("name", NAMES)
def test_task_without_training_does_not_change_the_maps(name: str, backbone: Backbone) -> None:
    method = query_map_method(name, backbone)
    learn_transformation(method, "one", random_captions(1, 8))
    learn_transformation(method, "two", random_captions(2, 8), random_rotation(backbone.dim, 1))
    before = method.maps.clone(), method.shifts.clone()
    method.begin_task("bare", "bare", trained=False)
    assert method.previous_model is None
    method.end_task()
    method.record_task("bare", "bare", [])
    assert torch.equal(method.maps[:2], before[0])
    assert torch.equal(method.shifts[:2], before[1])
    encoder = method.query_encoder()
    assert np.array_equal(encoder.encode(WORDS, ["two"], "mapped"), encoder.encode(WORDS, ["bare"], "mapped"))


@pytest.mark.parametrize("name", NAMES)
def test_queries_are_mapped_to_shards_of_a_zero_shot_library(name: str, backbone: Backbone) -> None:
    frozen = create_method("zero_shot", backbone)
    for task in ("bare", "also-bare"):
        index_task(frozen, task)
    method = query_map_method(name, backbone, frozen.release())
    method.begin_task("one", "one")
    captions, turned = random_captions(1, 60), torch.eye(backbone.dim)
    turned[:4, :4] = random_rotation(4, 2)
    transform_text_tower(method.model, turned)
    method.end_task(caption_pairs(captions))
    method.record_task("one", "one", captions)
    encoder = method.query_encoder()
    frozen_queries = encoder.encode_with_backbone(captions)
    latest = _mean_angle(frozen_queries, encoder.encode(captions, ["bare"], "latest")[:, 0])
    mapped = _mean_angle(frozen_queries, encoder.encode(captions, ["bare"], "mapped")[:, 0])
    assert mapped < 0.7 * latest
    assert np.array_equal(
        encoder.encode(WORDS, ["bare"], "mapped"), encoder.encode(WORDS, ["also-bare"], "mapped")
    )


def test_fit_uses_each_video_once(backbone: Backbone, tmp_path: Path) -> None:
    task = write_task(tmp_path, "one", [(text, f"{text} again") for text in random_captions(3, 6)])
    alone, both = (query_map_method("drift_adapter", backbone, videos=videos) for videos in (False, True))
    captions = alone.example_vectors(backbone, task.pairs)
    np.testing.assert_allclose(captions.numpy(), text_vectors(backbone, task.training_captions), atol=1e-6)
    examples = both.example_vectors(backbone, task.pairs)
    videos = encode_frames(backbone, load_frames(task.clips))[0]
    torch.testing.assert_close(examples, torch.cat([captions, videos]), atol=1e-6, rtol=0)
