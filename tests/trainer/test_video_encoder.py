"""Video encoder for query clips: releases that it reads, keeps and refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import select_query_tensors, select_video_tensors
from models.encoders.video_encoder import VideoEncoder
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState
from tests.trainer.methods.method_driver import (
    create_method,
    index_task,
    learn_steps,
    random_backbone,
    random_frames,
)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return random_backbone()


class RecordingReleases(dict[str, ReleaseState]):
    """Releases by task that record which ones are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def __getitem__(self, task: str) -> ReleaseState:
        self.read.append(task)
        return super().__getitem__(task)


def _library(name: str, backbone: Backbone) -> tuple[ReleaseState, RecordingReleases, dict[str, Tensor]]:
    """Return the last release, all releases, and vectors of the same clips by task, of four tasks learned in order."""
    makers, vectors = RecordingReleases(), {}
    release: ReleaseState | None = None
    for seed, task in enumerate(("zero", "one", "two", "more")):
        method = create_method("zero_shot" if task == "zero" else name, backbone, release)
        if task in ("one", "two"):
            learn_steps(method, task, [seed, seed])
        else:
            index_task(method, task)
        makers[task] = release = method.release()
        vectors[task] = method.encode_videos(random_frames(9)).clone()
    assert release is not None
    return release, makers, vectors


def _encoder(
    backbone: Backbone, state: ReleaseState, makers: Mapping[str, ReleaseState], **more: Any
) -> VideoEncoder:
    return VideoEncoder(backbone, {task.task_id: task.fingerprint for task in state.tasks}, makers, **more)


def test_shared_encoder_is_read_and_run_once(backbone: Backbone) -> None:
    state, makers, vectors = _library("ffa_tame", backbone)
    encoder = _encoder(backbone, state, makers)
    assert makers.read == []
    assert encoder.cached_bytes == 0
    before = backbone.compute_fingerprint()
    encoded = encoder.encode(random_frames(9, 1), ["two", "more"])
    assert makers.read == ["two"], "the last task shares the encoder of the one before"
    np.testing.assert_array_equal(encoded[:, 0], encoded[:, 1])
    tasks = ["more", "zero", "one", "two", "one"]
    encoded = encoder.encode(random_frames(9), tasks)
    assert makers.read == ["two", "zero", "one"]
    for column, task in enumerate(tasks):
        np.testing.assert_array_equal(encoded[:, column], vectors[task])
    assert encoder.encode(random_frames(9, 1), []).shape == (1, 0, backbone.dim)
    assert backbone.compute_fingerprint() == before, "the backbone is unchanged"


def test_recently_used_encoders_are_kept_within_the_limit(backbone: Backbone) -> None:
    state, makers, vectors = _library("strata", backbone)
    one = sum(array.nbytes for array in select_video_tensors(makers["one"]).tensors.values())
    encoder = _encoder(backbone, state, makers, cache_bytes=one + 1)
    makers.read.clear()
    for task in ("one", "two", "two", "one"):
        encoded = encoder.encode(random_frames(9), [task])
        np.testing.assert_array_equal(encoded[:, 0], vectors[task])
        assert encoder.cached_bytes <= one
    assert makers.read == ["one", "two", "one"]
    makers.read.clear()
    encoder = _encoder(backbone, state, makers, cache_bytes=one + 1)
    for task in ("zero", "one", "zero", "two", "zero"):
        encoder.encode(random_frames(9), [task])
    assert makers.read == ["zero", "one", "two"], "the one not used for longest goes first"


def test_encoder_with_another_fingerprint_is_refused(backbone: Backbone) -> None:
    state, makers, _ = _library("strata", backbone)
    broken = replace(makers["two"], config={**makers["two"].config, "image_rank": 3})
    for releases, task, message in (
        ({"two": makers["one"]}, "two", "lacks the video encoder that embedded it"),
        ({"two": select_query_tensors(makers["two"])}, "two", "lacks"),
        ({}, "two", "is missing"),
        (makers, "three", "has not learned three"),
        ({"two": broken}, "two", "does not fit"),
    ):
        with pytest.raises(ReleaseError, match=message):
            _encoder(backbone, state, releases).encode(random_frames(9), [task])


def test_frames_of_another_shape_are_refused(backbone: Backbone) -> None:
    state, makers, _ = _library("zero_shot", backbone)
    with pytest.raises(ReleaseError, match=r"not \[n, 2, 16, 16, 3\]"):
        _encoder(backbone, state, makers).encode(random_frames(9)[:, [0, 1, 1]], ["zero"])
