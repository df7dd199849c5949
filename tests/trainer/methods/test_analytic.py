"""The analytic method: joint solutions of sequential tasks, neutral maps, and the cache of features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.learning.sequential_learning import SequentialLearner
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders.encoder_registry import open_query_encoder, select_video_tensors
from models.encoders.tower_forward import encode_texts
from models.encoders.video_encoder import VideoEncoder
from models.releases.release_state import video_fingerprint
from models.routing.routing_profiles import distinct_pieces
from tests.trainer.methods.method_driver import (
    create_method,
    equal_tensors,
    index_task,
    learn_steps,
    random_backbone,
    random_frames,
    reserved_backbone,
    write_task,
)
from trainer.methods import MethodError, can_continue, start_method

DAY = ["a red circle moves left", "a square vanishes", "two stars spin", "the ring bounces"]
NIGHT = ["a dog barks", "an owl flies over the barn", "a cat sleeps"]
SEMANTIC, LEXICAL = 10, 126
SETTINGS = {"semantic_penalty": 3.0, "lexical_penalty": 2.0}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return reserved_backbone()


def _captions(backbone: Backbone, texts: list[str]) -> Tensor:
    return encode_texts(backbone, backbone.tokenize(texts))[0][:, :SEMANTIC]


def _learn(backbone: Backbone, *tasks: tuple[int, list[str]], **settings: Any) -> Any:
    """Return the method after tasks, each given by the seed of its frames and its captions, one per video."""
    method = create_method("analytic", backbone, **SETTINGS, **settings)
    for seed, texts in tasks:
        learn_steps(method, f"task-{seed}", [seed], texts)
    return method


def _semantic_weight(method: Any) -> Tensor:
    return method.video_tensors()["video.weight"][:, :SEMANTIC]


@pytest.mark.slow
def test_penalties_are_chosen_on_a_second_encoder() -> None:
    backbone = load_backbone("lite2", 1)
    method = start_method("analytic", backbone, {}, None)
    colors, things = ("red", "blue", "dark"), ("house", "dog", "tree", "car")
    texts = [f"a {color} {thing}" for color in colors for thing in things]
    rng = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (2 * len(texts), 1, 260, 260, 3), dtype=torch.uint8, generator=rng)
    method.begin_task("one", "one")
    method.observe(frames, [[text] for text in texts * 2])
    method.end_task()
    method.record_task("one", "one", texts)
    release = method.release()
    chosen = float(release.tensors["penalty"])
    assert chosen > 1000, "the captions of noise are learned with a large penalty"
    part = method.refit(range(6), texts[:6])
    assert part is not None
    assert float(part.release().tensors["penalty"]) == chosen, "a part of a task is learned like the whole"
    resumed = start_method("analytic", backbone, {}, release)
    for each in (method, resumed):
        index_task(each, "two")
    assert equal_tensors(method.release().tensors, resumed.release().tensors)
    fixed = start_method("analytic", backbone, {"semantic_penalty": 7}, release)
    assert fixed.release().tensors["penalty"] == 7


def test_second_task_has_the_joint_semantic_solution_of_both(backbone: Backbone) -> None:
    tasks = ((1, DAY), (2, NIGHT))
    features = torch.cat([backbone.video_features(random_frames(seed, len(texts))) for seed, texts in tasks])
    targets = _captions(backbone, DAY + NIGHT) - 0.3 * backbone.project_features(features)[:, :SEMANTIC]
    x, y = features.double().numpy(), targets.double().numpy()
    std = x.std(axis=0) + 0.02 * np.sqrt((x**2).mean())
    z = (x - x.mean(axis=0)) / std
    joint = np.linalg.solve(z.T @ z + 3.0 * np.eye(z.shape[1]), z.T @ (y - y.mean(axis=0))) / std[:, None]

    sequential = _learn(backbone, *tasks)
    np.testing.assert_allclose(_semantic_weight(sequential), joint, rtol=1e-3, atol=1e-4)
    reverse = _learn(backbone, *tasks[::-1])
    torch.testing.assert_close(_semantic_weight(reverse), _semantic_weight(sequential), rtol=1e-3, atol=1e-4)
    alone = _learn(backbone, tasks[1])
    assert not np.allclose(_semantic_weight(alone), joint, rtol=0.1, atol=1e-3)


def test_training_videos_are_predicted_around_a_share_of_their_mean(backbone: Backbone) -> None:
    """The unnormalized predictions of n training videos have the mean (1 − n / (n + k)) times that of the targets."""
    method = _learn(backbone, (1, DAY))
    features = backbone.video_features(random_frames(1, len(DAY)))
    tensors = method.video_tensors()
    predicted = features @ tensors["video.weight"] + tensors["video.offset"]
    semantic = predicted[:, :SEMANTIC] + 0.3 * backbone.project_features(features)[:, :SEMANTIC]
    mean_target = F.normalize(_captions(backbone, DAY), dim=-1).mean(0)
    share = len(DAY) / (len(DAY) + 30)
    torch.testing.assert_close(semantic.mean(0), (1 - share) * mean_target, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(method.state_dict()["query.center"], share * mean_target, rtol=1e-4, atol=1e-5)


def test_mean_caption_of_the_evidence_counts_one_generic_caption(backbone: Backbone) -> None:
    method = _learn(backbone, (1, DAY))
    mean = _captions(backbone, DAY).mean(0)
    stored = method.state_dict()["query.caption_mean"]
    torch.testing.assert_close(stored, mean * len(DAY) / (len(DAY) + 1), rtol=1e-4, atol=1e-5)
    assert float(method.state_dict()["evidence.freedom"]) == len(DAY) - 1


def test_task_without_captions_before_any_other_has_the_vectors_of_the_backbone(backbone: Backbone) -> None:
    method = create_method("analytic", backbone, **SETTINGS)
    index_task(method, "bare")
    frames = random_frames(5, 3)
    vectors = method.encode_videos(frames)
    frozen = backbone.project_features(backbone.video_features(frames))[:, :SEMANTIC]
    torch.testing.assert_close(F.normalize(vectors[:, :SEMANTIC], dim=-1), frozen)
    assert not vectors[:, SEMANTIC : SEMANTIC + LEXICAL].any()
    encoder = method.query_encoder()
    assert not encoder.routing_evidence(encoder.tokenize(DAY), ["bare"]).any()


def test_task_without_captions_predicts_with_the_map_of_earlier_tasks(backbone: Backbone) -> None:
    method = _learn(backbone, (1, DAY))
    learned = method.state_dict()
    index_task(method, "bare")
    neutral = method.state_dict()
    torch.testing.assert_close(neutral["video.weight"][:, :SEMANTIC], learned["video.weight"][:, :SEMANTIC])
    assert not neutral["video.weight"][:, SEMANTIC:].any()
    for name in ("sums.products", "sums.cross", "sums.count", "evidence.scatter", "evidence.freedom"):
        assert torch.equal(neutral[name], learned[name]), name
    videos = method.encode_videos(random_frames(5, 4))
    semantic = F.normalize(videos[:, :SEMANTIC], dim=-1)
    # Without words, the completions add a constant to the cosines of videos.
    weight = method.config.semantic_weight
    torch.testing.assert_close(videos @ videos.T, weight * semantic @ semantic.T + 1 - weight)
    learn_steps(method, "second", [2], NIGHT)
    direct = _learn(backbone, (1, DAY), (2, NIGHT))
    assert torch.equal(_semantic_weight(method), _semantic_weight(direct))


@pytest.mark.parametrize("captioned", [True, False])
def test_copy_of_a_video_is_its_nearest_video(backbone: Backbone, *, captioned: bool) -> None:
    """Whether the copy is uploaded, or stored without a caption, in a domain with or without captions."""
    method = _learn(backbone, (1, DAY))
    if not captioned:
        index_task(method, "bare")
    task = "task-1" if captioned else "bare"
    encoder = VideoEncoder(backbone, {task: method.fingerprint()}, {task: method.release()})
    frames = random_frames(1, len(DAY))
    videos, copies = method.encode_videos(frames).numpy(), encoder.encode(frames, [task])[:, 0]
    cosines = copies @ videos.T
    assert cosines.argmax(axis=1).tolist() == list(range(len(DAY)))
    np.testing.assert_allclose(cosines.diagonal(), 1, atol=1e-4)


def test_relearned_part_of_a_task_equals_learning_its_videos_alone(backbone: Backbone) -> None:
    """The videos that are left out change nothing, and the task before is kept."""
    rows, texts = [0, 2], [DAY[0], DAY[2]]
    part = _learn(backbone, (2, NIGHT), (1, DAY)).refit(rows, texts)
    alone = _learn(backbone, (2, NIGHT))
    alone.begin_task("task-1", "task-1")
    alone.observe(random_frames(1, len(DAY))[rows], [[text] for text in texts])
    alone.end_task()
    tensors, lexicon = alone.state_dict(), ("query.lexicon", "video.weight", "video.offset")
    for name, tensor in part.state_dict().items():
        if name not in lexicon:
            torch.testing.assert_close(tensors[name], tensor, rtol=1e-3, atol=1e-4)
    for left, right in ((0, 1), (0, 2), (1, 2)):  # the basis of the lexicon is rotated
        grams = []
        for method in (alone, part):
            state = method.state_dict()
            words, weight, offset = state[lexicon[0]].float(), state[lexicon[1]], state[lexicon[2]][None]
            parts = words, weight[:, SEMANTIC:], offset[:, SEMANTIC:]
            grams.append(parts[left] @ parts[right].T)
        torch.testing.assert_close(*grams, rtol=1e-2, atol=2e-3)


def test_relearned_part_has_vectors_that_can_be_compared(backbone: Backbone) -> None:
    """Without a rotation, the bases of the lexicons differ in signs and in order."""
    method = _learn(backbone, (1, DAY))
    part, frames = method.refit([0, 1, 2], DAY[:3]), random_frames(1, len(DAY))[:3]
    cosines = F.cosine_similarity(
        part.encode_videos(frames)[:, SEMANTIC:-2], method.encode_videos(frames)[:, SEMANTIC:-2]
    )
    assert float(cosines.min()) > 0.8


def test_lexical_map_belongs_to_its_task_alone(backbone: Backbone) -> None:
    alone, second = _learn(backbone, (2, NIGHT)), _learn(backbone, (1, DAY), (2, NIGHT))
    for name in ("query.tokens", "query.token_weights", "query.lexicon"):
        assert torch.equal(second.state_dict()[name], alone.state_dict()[name]), name
    weights = [method.video_tensors()["video.weight"][:, SEMANTIC:] for method in (alone, second)]
    torch.testing.assert_close(*weights)


def test_features_of_a_video_are_computed_once_and_its_frames_read_once(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, original = [], backbone.video_features

    def count(frames: Tensor) -> Tensor:
        counted.append(len(frames))
        return original(frames)

    monkeypatch.setattr(backbone, "video_features", count)
    task = write_task(tmp_path, "day", [[text] for text in DAY], ["test"])
    learner = SequentialLearner("analytic", backbone, {})
    learner.train(task)
    assert sum(counted) == len(DAY) - 1
    for clip in task.observed():
        clip.frames_path.unlink()  # not read again
    learner.index(task)
    assert sum(counted) == len(DAY)


def test_independent_learners_equal_methods_that_saw_their_task_alone(backbone: Backbone) -> None:
    alone = _learn(backbone, (2, NIGHT))
    independent = _learn(backbone, (1, DAY), (2, NIGHT), carry=False)
    assert torch.equal(_semantic_weight(independent), _semantic_weight(alone))
    scatter = independent.state_dict()["evidence.scatter"]  # the router covers all tasks
    assert not torch.allclose(scatter, alone.state_dict()["evidence.scatter"])


# -- other backbones than small -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip() -> Backbone:
    """An untrained CLIP with 16 coordinates and without a distribution of generic texts."""
    return random_backbone()


def test_every_backbone_has_a_lexical_part_and_evidence_of_captions(clip: Backbone) -> None:
    """Coordinates for words are added to the backbone's own, and the release measures generic texts once."""
    method = _learn(clip, (1, DAY))
    state = method.release()
    videos, encoder = method.encode_videos(random_frames(1, len(DAY))), method.query_encoder()
    queries = torch.tensor(encoder.encode(DAY, ["task-1"], "pinned")[:, 0])
    assert videos.shape[1] == queries.shape[1] == 16 + 128
    assert (queries[:, 16:-2] * videos[:, 16:-2]).sum(dim=1).min() > 0.1
    assert set(state.tensors["query.tokens"]) == set(distinct_pieces([" ".join(DAY)])[0])
    texts = torch.from_numpy(encoder.encode_with_backbone(DAY)).double()
    mean, precision = (state.tensors[f"background.{name}"] for name in ("mean", "precision"))
    assert F.cosine_similarity(texts.mean(0), torch.from_numpy(mean).double(), dim=0) > 0.5
    assert np.linalg.eigvalsh(precision).min() > 0
    evidence = encoder.routing_evidence(encoder.tokenize(DAY), ["task-1"])
    assert evidence is not None
    assert evidence.any()
    second = create_method("analytic", clip, state, **SETTINGS)
    learn_steps(second, "task-2", [2], NIGHT)
    for name in ("mean", "precision"):
        assert np.array_equal(
            second.release().tensors[f"background.{name}"], state.tensors[f"background.{name}"]
        )
    part = second.refit([0, 1], NIGHT[:2])
    assert np.array_equal(part.release().tensors["background.mean"], mean)


def test_release_of_version_1_0_0_without_a_lexical_part_is_continued_as_it_is(clip: Backbone) -> None:
    method, frames = _learn(clip, (1, DAY)), random_frames(1, len(DAY))
    new = method.release()
    tensors = {name: a for name, a in new.tensors.items() if not name.startswith("background.")}
    tensors["query.lexicon"] = tensors["query.lexicon"][:, :0]
    tensors["query.tokens"] = tensors["query.tokens"] + 49_000  # of the text tower
    tensors["video.weight"], tensors["video.offset"] = (
        tensors[name][..., :16] for name in ("video.weight", "video.offset")
    )
    old = replace(new, tensors=tensors)
    continued = create_method("analytic", clip, old, **SETTINGS)
    assert continued.encode_videos(frames).shape[1] == 16
    learn_steps(continued, "task-2", [2], NIGHT)
    state = continued.release()
    encoder = open_query_encoder(clip, state, {"task-1": old, "task-2": state})
    queries = encoder.encode(DAY, ["task-1", "task-2"], "pinned")
    assert queries.shape == (4, 2, 16)
    frozen = torch.from_numpy(encoder.encode_with_backbone(DAY) - tensors["query.center"])
    np.testing.assert_allclose(queries[:, 0], F.normalize(frozen, dim=-1), atol=1e-6)
    assert encoder.routing_evidence(encoder.tokenize(DAY), ["task-1"]) is None
    fingerprint = video_fingerprint(clip.fingerprint, 16, 2, select_video_tensors(old).tensors)
    videos = VideoEncoder(clip, {"task-1": fingerprint}, {"task-1": old}).encode(frames, ["task-1"])[:, 0]
    semantic = F.normalize(method.encode_videos(frames)[:, :16], dim=-1)
    np.testing.assert_allclose(videos, semantic, atol=1e-5)


def test_release_of_the_unchanged_backbone_is_continued_only_in_the_same_dimension(
    backbone: Backbone, clip: Backbone
) -> None:
    for towers in (backbone, clip):
        frozen = create_method("zero_shot", towers)
        index_task(frozen, "bare")
        assert can_continue("analytic", towers, {}, frozen.release()) == (towers is backbone)
    with pytest.raises(MethodError, match="its vectors have 16 coordinates instead of 144"):
        create_method("analytic", clip, frozen.release())
