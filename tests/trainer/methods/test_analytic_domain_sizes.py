"""Domains of any size: the caption of a training video finds it, in its own shard and over all shards.

Texts pass the real text tower of ``small``. Features of videos are drawn: a common part per domain and a small part of
each video, so that the videos of a domain are alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.learning.sequential_learning import SequentialLearner
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.routing import DEFAULT_PRIOR
from models.routing.router import Router, distinct_tokens, log_probabilities
from trainer.task_data import Clip, TaskData

pytestmark = pytest.mark.usefixtures("one_thread")

NOUNS = [
    "barbell dumbbell bench rope",
    "onion pan egg knife",
    "ball net racket goal",
    "car bus bike truck",
    "guitar drum piano flute",
    "brush canvas clay easel",
    "cow sheep tractor hay",
    "boat sail anchor oar",
    "tent stove torch map",
    "shirt iron hanger sock",
    "lamp chair table shelf",
]
OWN = len(NOUNS) - 1  # the domain under test
SUBJECTS = ["a man", "a woman", "two children", "a dog", "the coach", "an old lady"]
VERBS = ["lifts", "drops", "turns", "pushes", "opens", "paints", "washes"]
PLACES = ["slowly", "in the garden", "near a window", "at night", "with both hands"]

#: Captions of each video of the domain under test.
DOMAINS: dict[str, list[list[str]]] = {}


def _captions(domain: int, count: int) -> list[str]:
    """Return the distinct captions that share most words with those of all other domains."""
    rng = np.random.default_rng([7, domain])
    texts = [
        f"{subject} {verb} the {noun} {place}"
        for subject in SUBJECTS
        for verb in VERBS
        for noun in NOUNS[domain].split()
        for place in PLACES
    ]
    return [texts[place] for place in rng.permutation(len(texts))[:count]]


for size in (1, 2, 3, 5, 10, 20, 50):
    DOMAINS[f"{size} videos"] = [[text] for text in _captions(OWN, size)]
DOMAINS["several captions"] = [_captions(OWN, 12)[row::4] for row in range(4)]
DOMAINS["identical captions"] = [["a lamp glows"]] * 12
DOMAINS["identical caption of others"] = [[_captions(3, 1)[0]]] * 3
DOMAINS["captions of one word"] = [[word] for word in ("lamp", "chair", "sofa", "rug", "door", "clock")]
DOMAINS["common words"] = [[word] for word in ("man", "woman", "dog", "turns", "onion", "window")]
DOMAINS["captions of another domain"] = [[text] for text in _captions(3, 22)[20:]]
DOMAINS["captions without words"] = [["..."], ["a lamp"]]


@pytest.fixture(scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    """``small`` whose features are drawn from the first two numbers of the frames: domain and video."""
    loaded = load_backbone("small", frames=1)

    def video_features(frames: Tensor) -> Tensor:
        drawn = [
            np.sqrt(0.8 * _draw(int(domain)) + 0.2 * _draw(int(domain), int(video)))
            for domain, video in frames.flatten(1)[:, :2]
        ]
        return torch.tensor(np.array(drawn), dtype=torch.float32)

    loaded.video_features = video_features  # type: ignore[method-assign]
    return loaded


@pytest.fixture(scope="module")
def make_task(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TaskData]:
    """``make_task(domain, captions, name="")``: a task whose videos all are training videos."""
    folder = tmp_path_factory.mktemp("frames")

    def make(domain: int, captions: Sequence[Sequence[str]], name: str = "") -> TaskData:
        clips = []
        for number, texts in enumerate(captions):
            path = folder / f"{domain}-{number}.npy"
            np.save(path, np.array([domain, number, 0], np.uint8).reshape(1, 1, 1, 3))
            clips.append(Clip(path.stem, number, path, tuple(texts), "train"))
        return TaskData(name or f"domain {domain}", name, tuple(clips))

    return make


@pytest.fixture(scope="module")
def others(backbone: Backbone, make_task: Callable[..., TaskData]) -> SequentialLearner:
    """A library of the ten other domains."""
    learner = SequentialLearner("analytic", backbone, {}, round_vectors=True)
    learner.learn([make_task(domain, [[text] for text in _captions(domain, 15)]) for domain in range(OWN)])
    return learner


def _draw(*seed: int) -> np.ndarray:
    """Return the features of which few are large, like pooled features of a network."""
    return np.random.default_rng(seed).gamma(0.3, 1, 1280)


def _ranks(learner: SequentialLearner, task: TaskData) -> list[tuple[str, int, int]]:
    """Return the rank of the nearest video with each caption, in the own shard and over all shards, merged as in a
    search.
    """
    encoder, names = learner.query_encoder(), list(learner.shards)
    router, own = Router(learner.release.profiles), names.index(task.task_id)  # type: ignore[union-attr]
    texts = list(dict.fromkeys(task.training_captions))
    tokens = encoder.tokenize(texts)
    vectors = encoder.encode_pairs(
        [text for text in tokens for _ in names], names * len(texts), "pinned"
    ).reshape(len(texts), len(names), -1)
    evidence = encoder.routing_evidence(tokens, names)
    assert evidence is not None
    ranks = []
    for row, text in enumerate(texts):
        everywhere = np.arange(len(names))
        words = router.word_evidence(distinct_tokens(tokens[row]), everywhere)
        lifts = DEFAULT_PRIOR * log_probabilities(router.evidence(words, everywhere, evidence[row]))
        cosines = [
            vectors[row, place] @ learner.shards[name].vectors(learner.shards[name].ids).T
            for place, name in enumerate(names)
        ]
        assert all(np.isfinite(scores).all() for scores in cosines)
        best = max(cosines[own][number] for number, clip in enumerate(task.clips) if text in clip.captions)
        merged = np.concatenate([scores + lift for scores, lift in zip(cosines, lifts, strict=True)])
        ranks.append(
            (text, 1 + int((cosines[own] > best).sum()), 1 + int((merged > best + lifts[own]).sum()))
        )
    return ranks


@pytest.mark.slow
@pytest.mark.parametrize("captions", DOMAINS.values(), ids=DOMAINS)
def test_captions_of_training_videos_find_them(
    others: SequentialLearner, make_task: Callable[..., TaskData], captions: list[list[str]]
) -> None:
    task = make_task(OWN, captions)
    _assert_found(_continue(others, task), task)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 10])
@pytest.mark.parametrize("silent_first", [True, False])
def test_domain_without_captions_hides_no_video(
    others: SequentialLearner, make_task: Callable[..., TaskData], size: int, silent_first: bool
) -> None:
    task, silent = make_task(OWN, DOMAINS[f"{size} videos"]), make_task(OWN + 1, [[]] * 12, "silent")
    _assert_found(_continue(others, *([silent, task] if silent_first else [task, silent])), task)


@pytest.mark.slow
def test_captions_of_a_first_domain_find_its_videos_after_ten_others(
    backbone: Backbone, make_task: Callable[..., TaskData]
) -> None:
    learner = SequentialLearner("analytic", backbone, {}, round_vectors=True)
    task = make_task(OWN, DOMAINS["2 videos"])
    learner.learn([task, *(make_task(n, [[text] for text in _captions(n, 5)]) for n in range(OWN))])
    _assert_found(learner, task)


def _continue(learner: SequentialLearner, *tasks: TaskData) -> SequentialLearner:
    """Return a copy of a learner that has learned more tasks."""
    later = copy.copy(learner)
    later.tasks, later.shards, later.pinned = list(learner.tasks), dict(learner.shards), dict(learner.pinned)
    later.learn(tasks)
    return later


def _assert_found(learner: SequentialLearner, task: TaskData) -> None:
    for text, own, everywhere in _ranks(learner, task):
        assert own <= 5, text
        assert everywhere <= 10, text
