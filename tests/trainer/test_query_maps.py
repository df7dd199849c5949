"""Query maps: each fit against slow references, how steps are composed, and what they win back over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from trainer.evaluation.retrieval_metrics import mean_angle
from trainer.losses import in_task_loss
from trainer.methods import MethodError, configure, start_method
from trainer.methods.drift_adapter import procrustes
from trainer.task_data import Clip, Pair, TaskData, load_frames
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import TrainingProgress, learn_task

FRAMES = 2
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


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=FRAMES)


def _start(name: str, backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> Any:
    return start_method(name, backbone, {"batch_size": 4, **settings}, previous)


def _captions(seed: int, count: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6)) for _ in range(count)]


def _pairs(captions: Sequence[str]) -> list[Pair]:
    return [Pair(Clip(str(n), n, Path("unused"), (text,), "train"), text) for n, text in enumerate(captions)]


def _task(folder: Path, name: str, videos: int = 6) -> TaskData:
    clips = []
    for number, text in enumerate(_captions(len(name), videos)):
        path = folder / f"{name}-{number}.npy"
        rng = np.random.default_rng([len(name), number])
        np.save(path, rng.integers(0, 256, (FRAMES, 56, 56, 3), dtype=np.uint8))
        vector_id = 100 * len(name) + number
        clips.append(Clip(f"{name}-{number}", vector_id, path, (text, f"{text} again"), "train"))
    return TaskData(name, name, tuple(clips))


def _move(model: Backbone, by: Tensor) -> None:
    """Every text vector x becomes x · by (and unit length again)."""
    with torch.no_grad():
        model.text.text_projection.copy_(model.text.text_projection @ by)


def _orthogonal(dim: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed)))[0]


def _learn(method: Any, task: str, captions: Sequence[str], by: Tensor | None = None) -> None:
    """A task whose training is nothing but a known movement of the text tower."""
    method.begin_task(task, task)
    if by is not None:
        _move(method.model, by)
    method.end_task(_pairs(captions))
    method.record_task(task, task, captions)


def _vectors(model: Backbone, captions: Sequence[str]) -> np.ndarray:
    return encode_texts(model, model.tokenize(captions))[0].double().numpy()


# -- the fits -------------------------------------------------------------------------------------------


def test_procrustes_finds_the_rotation() -> None:
    torch.manual_seed(0)
    new, rotation = torch.randn(40, 7, dtype=torch.float64), _orthogonal(7, 1).double()
    torch.testing.assert_close(procrustes(new, new @ rotation), rotation)
    noisy = procrustes(new, new @ rotation + 0.01 * torch.randn(40, 7, dtype=torch.float64))
    torch.testing.assert_close(noisy @ noisy.T, torch.eye(7, dtype=torch.float64))
    torch.testing.assert_close(noisy, rotation, atol=0.02, rtol=0)


@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_procrustes_in_the_plane_against_all_rotations_and_reflections(weight: float) -> None:
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


def test_where_no_example_points_nothing_turns() -> None:
    """Three examples in the first three of eight dimensions turn these three alone."""
    turn = _orthogonal(3, 3).double()
    new = torch.zeros(3, 8, dtype=torch.float64)
    new[:, :3] = torch.eye(3)
    old = new.clone()
    old[:, :3] = new[:, :3] @ turn
    fitted = procrustes(new, old, 1e-3)
    torch.testing.assert_close(fitted[:3, :3], turn, atol=2e-3, rtol=0)
    torch.testing.assert_close(fitted[3:, 3:], torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(procrustes(new, new, 1e-3), torch.eye(8, dtype=torch.float64))


def test_the_drift_of_qdc_is_a_mean(backbone: Backbone) -> None:
    torch.manual_seed(4)
    new, old = torch.randn(5, backbone.dim), torch.randn(5, backbone.dim)
    step = _start("qdc", backbone).fit_map(new, old)
    for column in range(0, backbone.dim, 17):
        drift = sum(float(new[row, column] - old[row, column]) for row in range(5)) / 5
        assert step.shift[column].item() == pytest.approx(-drift, abs=1e-5)
    assert torch.equal(step.matrix, torch.eye(backbone.dim))


def test_qdc_holds_queries_and_videos_by_their_cosines(backbone: Backbone) -> None:
    method = _start("qdc", backbone, distillation=0.7)
    _learn(method, "one", _captions(1, 4))
    method.begin_task("two", "two")
    _move(method.model, _orthogonal(backbone.dim, 5))
    frames = torch.from_numpy(
        np.random.default_rng(6).integers(0, 256, (3, FRAMES, 56, 56, 3), dtype=np.uint8)
    )
    texts = _captions(7, 3)
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


def test_qdc_has_nothing_to_hold_in_the_first_task(backbone: Backbone) -> None:
    method = _start("qdc", backbone, distillation=1000.0)
    method.begin_task("one", "one")
    _move(method.model, _orthogonal(backbone.dim, 5))
    frames = torch.zeros(2, FRAMES, 56, 56, 3, dtype=torch.uint8)
    with torch.no_grad():
        plain = in_task_loss(*method.embed(frames, WORDS[:2]), method.config.logit_scale)
        assert torch.equal(method.loss(frames, WORDS[:2], None), plain)


# -- composition ----------------------------------------------------------------------------------------


def test_a_tower_that_only_turns_is_turned_back(backbone: Backbone) -> None:
    """Over two further tasks; queries of all shards are again what they were, also those that were never seen."""
    method = _start("drift_adapter", backbone, identity_weight=0)
    seen, unseen = _captions(1, 250), _captions(2, 20)
    spaces = []
    for seed, task in enumerate(["one", "two", "three"]):
        _learn(method, task, seen, _orthogonal(backbone.dim, seed))
        spaces.append(_vectors(method.model, unseen))
    encoder = method.query_encoder()
    for position, task in enumerate(["one", "two", "three"]):
        mapped = encoder.encode(unseen, [task], "mapped")[:, 0]
        np.testing.assert_allclose(mapped, spaces[position], atol=2e-3)
    assert mean_angle(spaces[0], encoder.encode(unseen, ["one"], "latest")[:, 0]) > 30  # type: ignore[operator]


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_composed_from_the_newest_back(name: str, backbone: Backbone) -> None:
    method = _start(name, backbone)
    captions = [_captions(seed, 30) for seed in range(3)]
    models = []
    for seed, task in enumerate(["one", "two", "three"]):
        mixed = torch.eye(backbone.dim) + 0.05 * torch.randn(
            backbone.dim, backbone.dim, generator=torch.Generator().manual_seed(seed)
        )
        _learn(method, task, captions[seed], mixed)
        models.append(method.model.clone())

    def step(task: int) -> tuple[np.ndarray, np.ndarray]:
        """From the space after a task to the one before, by hand."""
        new, old = (_vectors(models[i], captions[task]) for i in (task, task - 1))
        if name == "qdc":
            return np.eye(backbone.dim), (old - new).mean(axis=0)
        u, _, vh = np.linalg.svd(new.T @ old + method.config.identity_weight * np.eye(backbone.dim))
        return u @ vh, np.zeros(backbone.dim)

    queries = _vectors(models[2], _captions(9, 5))
    (second, second_shift), (third, third_shift) = step(1), step(2)
    to_two = queries @ third + third_shift
    to_one = to_two @ second + second_shift
    encoder = method.query_encoder()
    for task, expected in (("one", to_one), ("two", to_two), ("three", queries)):
        mapped = encoder.encode(_captions(9, 5), [task], "mapped")[:, 0]
        np.testing.assert_allclose(
            mapped, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-4
        )
    assert method.maps.shape == (3, backbone.dim, backbone.dim)
    assert torch.equal(method.maps[2], torch.eye(backbone.dim))
    assert method.shifts[2].abs().max() == 0
    if name == "qdc":
        assert torch.equal(method.maps, torch.eye(backbone.dim).expand(3, -1, -1))


@pytest.mark.parametrize("name", NAMES)
def test_a_task_that_is_only_indexed_moves_nothing(name: str, backbone: Backbone) -> None:
    method = _start(name, backbone)
    _learn(method, "one", _captions(1, 8))
    _learn(method, "two", _captions(2, 8), _orthogonal(backbone.dim, 1))
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
def test_shards_of_the_backbone_as_it_came_are_reached_too(name: str, backbone: Backbone) -> None:
    frozen = start_method("zero_shot", backbone, {}, None)
    for task in ("bare", "barer"):
        frozen.begin_task(task, task)
        frozen.end_task()
        frozen.record_task(task, task, [])
    method = _start(name, backbone, frozen.release())
    method.begin_task("one", "one")
    captions, turned = _captions(1, 60), torch.eye(backbone.dim)
    turned[:8, :8] = _orthogonal(8, 2)
    _move(method.model, turned)
    method.end_task(_pairs(captions))
    method.record_task("one", "one", captions)
    encoder = method.query_encoder()
    frozen_queries = encoder.encode_with_backbone(captions)
    latest = mean_angle(frozen_queries, encoder.encode(captions, ["bare"], "latest")[:, 0])
    mapped = mean_angle(frozen_queries, encoder.encode(captions, ["bare"], "mapped")[:, 0])
    assert latest is not None
    assert mapped is not None
    assert mapped < 0.7 * latest
    assert np.array_equal(
        encoder.encode(WORDS, ["bare"], "mapped"), encoder.encode(WORDS, ["barer"], "mapped")
    )


# -- over real tasks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "at_most"),
    [("drift_adapter", {}, 0.8), ("drift_adapter", {"videos": True}, 0.9), ("qdc", {}, 0.99)],
)
def test_old_queries_drift_less_when_they_are_mapped(
    name: str, settings: dict[str, Any], at_most: float, backbone: Backbone, tmp_path: Path
) -> None:
    tasks = [_task(tmp_path, task) for task in ("one", "second")]
    method = _start(name, backbone, epochs=3, learning_rate=1e-3, **settings)
    learn_task(method, tasks[0])
    asked = tasks[1].training_captions  # what the step was fitted on
    then = method.query_encoder().encode(asked, ["one"], "latest")[:, 0]
    method = _start(name, backbone, method.release(), epochs=3, learning_rate=1e-3, **settings)
    learn_task(method, tasks[1])
    encoder = method.query_encoder()
    drift = {mode: mean_angle(then, encoder.encode(asked, ["one"], mode)[:, 0]) for mode in encoder.modes}
    assert 0 < drift["mapped"] < at_most * drift["latest"]  # type: ignore[operator]


def test_videos_join_the_fit_once_each(backbone: Backbone, tmp_path: Path) -> None:
    task = _task(tmp_path, "one")
    alone, both = (_start("drift_adapter", backbone, videos=videos) for videos in (False, True))
    captions = alone.example_vectors(backbone, task.pairs)
    np.testing.assert_allclose(captions.numpy(), _vectors(backbone, task.training_captions), atol=1e-6)
    examples = both.example_vectors(backbone, task.pairs)
    videos = encode_frames(backbone, load_frames(task.clips))[0]
    torch.testing.assert_close(examples, torch.cat([captions, videos]), atol=1e-6, rtol=0)


class _Stop(Exception):
    pass


@pytest.mark.parametrize("name", NAMES)
def test_resuming_in_the_second_task_gives_the_same_maps(
    name: str, backbone: Backbone, tmp_path: Path
) -> None:
    tasks = [_task(tmp_path, task) for task in ("one", "second")]
    first = _start(name, backbone, epochs=1)
    learn_task(first, tasks[0])

    def continued() -> Any:
        return _start(name, backbone, first.release(), epochs=3, learning_rate=1e-3)

    whole = continued()
    learn_task(whole, tasks[1])

    def stop(at: TrainingProgress) -> None:
        if at.epoch == 3:
            raise _Stop

    checkpoints = CheckpointStore(tmp_path / "checkpoints", "run")
    with pytest.raises(_Stop):
        learn_task(continued(), tasks[1], report=stop, checkpoints=checkpoints)
    resumed = continued()
    learn_task(resumed, tasks[1], checkpoints=checkpoints)
    expected, found = whole.release().tensors, resumed.release().tensors
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[tensor_name]) for tensor_name, tensor in expected.items())
    assert not torch.equal(found["maps"][0], torch.eye(backbone.dim)) or found["shifts"][0].any()


@pytest.mark.parametrize("name", NAMES)
def test_no_second_encoder_and_no_old_data_are_kept(name: str, backbone: Backbone) -> None:
    method = _start(name, backbone)
    for seed, task in enumerate(["one", "two"]):
        _learn(method, task, _captions(seed, 8), _orthogonal(backbone.dim, seed))
    state = method.release()
    assert state.kind == "mapped"
    assert method.previous_model is None
    assert set(state.tensors) == {*backbone.tensors(), "maps", "shifts"}
    assert open_query_encoder(backbone, state, {}).modes == ("latest", "mapped")


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("drift_adapter", {"identity_weight": -1.0}, "identity_weight: "),
        ("drift_adapter", {"videos": "some"}, "videos: "),
        ("qdc", {"distillation": -0.1}, "distillation: "),
        ("qdc", {"identity_weight": 0.1}, "identity_weight: Extra inputs"),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(MethodError, match=says):
        configure(name, "tiny", settings)
