"""Sizes of methods, compared with counts of their tensors by hand."""

from __future__ import annotations

import pytest

from benchmarks.learning.method_runner import run_method
from benchmarks.learning.sequential_learning import SequentialLearner
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders.encoder_registry import select_query_tensors
from trainer.task_data import TaskData

SETTINGS = {"epochs": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("tiny", 2)


@pytest.mark.slow
def test_adapters_count_the_rows_of_words_and_every_pinned_encoder(
    backbone: Backbone, tasks: list[TaskData]
) -> None:
    sizes = run_method("strata", backbone, tasks, seed=1, settings=SETTINGS).parameters
    learner = SequentialLearner("strata", backbone, {**SETTINGS, "seed": 1})
    learner.learn(tasks)
    release = learner.release
    assert release is not None
    text = {name: tensor for name, tensor in release.tensors.items() if name.startswith("text.")}
    table = backbone.vocabulary * backbone.text_width
    captions = [caption for clip in tasks[1].train for caption in clip.captions]
    rows = len(backbone.tokenize(captions).unique())
    method = learner.method
    assert method is not None
    optimized = sum(p.numel() for group in method.parameter_groups() for p in group["params"])
    assert sizes["trained"] == optimized - table + rows * backbone.text_width
    own_profile = int(release.profiles.ends[1] - release.profiles.ends[0])
    weights = sum(array.size for array in release.tensors.values())
    assert (
        sizes["release"] == weights + 2 * own_profile + 2
    )  # tokens and values, one end, and the vocabulary size
    encoders = [select_query_tensors(state).tensors for state in learner.pinned.values()]
    assert encoders[1].keys() == text.keys()
    profiles = 2 * len(release.profiles.tokens)
    assert sizes["search"] == {
        "latest": sum(array.size for array in text.values()) + profiles,
        "pinned": sum(array.size for arrays in encoders for array in arrays.values()) + profiles,
    }
