"""Strata: trained updates, constant pinned queries, words of a task, and the start of a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.releases.release_state import ReleaseState
from models.releases.release_tensors import tensors_with_prefix
from tests.trainer.methods.method_driver import create_method, index_task, random_frames, write_task
from trainer.methods.base import in_task_loss
from trainer.task_data import TaskData
from trainer.training_loop import learn_task

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


def strata_method(backbone: Backbone, previous: ReleaseState | None = None, **settings: Any) -> Any:
    return create_method("strata", backbone, previous, **{"epochs": 2, "batch_size": 3, **settings})


def captioned_task(folder: Path, name: str, captions: list[str]) -> TaskData:
    """Write a task with one caption per video."""
    return write_task(folder, name, [[caption] for caption in captions])


def test_first_task_starts_as_the_backbone(backbone: Backbone) -> None:
    method = strata_method(backbone)
    method.begin_task("one", "one")
    frames = random_frames(1, 3)
    zero_shot = create_method("zero_shot", backbone)
    torch.testing.assert_close(method.encode_videos(frames), zero_shot.encode_videos(frames))
    queries = zero_shot.query_encoder().encode_with_backbone(TEXTS)
    loss = in_task_loss(torch.from_numpy(queries), zero_shot.encode_videos(frames), method.config.logit_scale)
    torch.testing.assert_close(method.loss(frames, TEXTS, None), loss)


def test_training_changes_every_update_of_both_towers(backbone: Backbone, tmp_path: Path) -> None:
    method = strata_method(backbone)
    first = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    learn_task(method, captioned_task(tmp_path, "one", TEXTS))
    trained = method.state_dict()
    assert not [name for name in first if name in trained and torch.equal(trained[name], first[name])]


def test_shards_of_a_zero_shot_library_are_searched_with_the_backbone(
    backbone: Backbone, tmp_path: Path
) -> None:
    zero_shot = create_method("zero_shot", backbone)
    index_task(zero_shot, "one")
    method = strata_method(backbone, zero_shot.release())
    learn_task(method, captioned_task(tmp_path, "two", TEXTS))
    releases = {"one": zero_shot.release(), "two": method.release()}
    encoder = open_query_encoder(backbone, releases["two"], releases)
    pinned = encoder.encode(TEXTS, ["one", "two"], "pinned")
    np.testing.assert_allclose(pinned[:, 0], encoder.encode_with_backbone(TEXTS), atol=1e-5)
    assert not np.allclose(pinned[:, 1], pinned[:, 0], atol=1e-4)
    np.testing.assert_allclose(encoder.encode(TEXTS, ["one"], "latest")[:, 0], pinned[:, 1], atol=1e-5)


def test_release_contains_the_words_of_its_task_only(backbone: Backbone, tmp_path: Path) -> None:
    release: ReleaseState | None = None
    rows = []
    for name, captions in (("one", ["a red circle", "a red star"]), ("two", ["a blue circle", "two stars"])):
        method = strata_method(backbone, release)
        learn_task(method, captioned_task(tmp_path, name, captions))
        release = method.release()
        tokens = release.tensors["text.tokens"].tolist()
        assert set(tokens) == set(backbone.tokenize(captions).unique().tolist()) - {0}
        rows.append(dict(zip(tokens, release.tensors["text.words"], strict=True)))
    shared = rows[0].keys() & rows[1].keys()
    assert shared
    assert not any(np.array_equal(rows[0][token], rows[1][token]) for token in shared)


@pytest.mark.parametrize("carry", [0.0, 0.5, 1.0])
def test_task_starts_with_the_carried_share_of_the_previous_updates(
    backbone: Backbone, tmp_path: Path, carry: float
) -> None:
    first = strata_method(backbone)
    learn_task(first, captioned_task(tmp_path, "one", TEXTS))
    previous = first.release()
    trained, indexed = (strata_method(backbone, previous, carry=carry) for _ in range(2))
    trained.begin_task("two", "two")
    indexed.begin_task("two", "two", trained=False)
    unchanged, start = indexed.state_dict(), trained.state_dict()
    before = tensors_with_prefix("", previous.tensors)
    assert all(torch.equal(unchanged[name], tensor) for name, tensor in before.items())
    for name, tensor in before.items():
        if name.endswith((".b", ".alpha")):
            torch.testing.assert_close(start[name], carry * tensor)
        elif name.endswith(".a"):
            assert torch.equal(start[name], tensor)
    if carry == 0:
        frames = random_frames(2, 2)
        zero_shot = create_method("zero_shot", backbone)
        torch.testing.assert_close(trained.encode_videos(frames), zero_shot.encode_videos(frames))
        assert not len(start["text.tokens"])
    else:
        torch.testing.assert_close(start["text.words"], carry * before["text.words"])
