"""Video encoder for query clips: for every method it equals the encoder that embedded the videos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.rivals import METHODS, start_method
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import read_video_release, select_query_tensors, select_video_tensors
from models.encoders.video_encoder import VideoEncoder
from models.errors import ReleaseError
from models.releases.release_files import write_release
from models.releases.release_state import ReleaseState
from trainer.methods import Method

FRAMES = 2
TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin", "the ring bounces"]
SMALL: dict[str, dict[str, Any]] = {
    "ffa_tame": {"experts": 3, "rank": 4},
    "strata": {"rank": 2, "image_rank": 2},
    "moe_adapter": {"experts": 4, "rank": 2},
}
# Every encoder family, and every way in which a method of the family embeds videos.
NAMES = [
    "zero_shot",
    "ffa_tame",
    "strata",
    "moe_adapter",
    "pnn",
    "finetune",
    "drift_adapter",
    "clip_vip",
    "ccmr",
]

torch.set_num_threads(1)


def _frames(seed: int, count: int = 4) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, FRAMES, 56, 56, 3), dtype=np.uint8))


def _learn(method: Method, task: str, seed: int, *, trained: bool = True) -> None:
    method.begin_task(task, task, trained=trained)
    groups = method.parameter_groups() if trained else []
    if groups:
        torch.manual_seed(seed)
        optimiser = torch.optim.AdamW([{**group, "lr": 1e-2} for group in groups])
        for _ in range(2):
            optimiser.zero_grad()
            method.loss(_frames(seed), TEXTS, None).backward()
            optimiser.step()
            method.after_step()
    method.train(False)
    method.end_task()
    method.record_task(task, task, TEXTS if trained else [])


class StoredReleases(Mapping[str, ReleaseState]):
    """Releases that are read from disk when they are needed, as in a service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: list[str] = []

    def write(self, task: str, state: ReleaseState) -> None:
        (self.folder / task).mkdir(parents=True)
        write_release(self.folder / task, state)

    def __getitem__(self, task: str) -> ReleaseState:
        self.read.append(task)
        return read_video_release(self.folder / task)

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in sorted(self.folder.iterdir()))

    def __len__(self) -> int:
        return len(list(self.folder.iterdir()))

    def __contains__(self, task: object) -> bool:
        return (self.folder / str(task)).exists()


def _library(
    name: str, backbone: Backbone, folder: Path
) -> tuple[ReleaseState, StoredReleases, dict[str, Tensor]]:
    """The last release, all releases, and vectors of the same clips by task, of four tasks learned in order."""
    disk, vectors = StoredReleases(folder), {}
    method = start_method("zero_shot", backbone, {}, None)
    previous: ReleaseState | None = None
    for seed, task in enumerate(("zero", "one", "two", "more")):
        if task != "zero":
            method = start_method(name, backbone, SMALL.get(name, {}), previous)
        _learn(method, task, seed, trained=task not in ("zero", "more"))
        previous = method.release()
        disk.write(task, previous)
        vectors[task] = method.encode_videos(_frames(9)).clone()
    assert previous is not None
    return previous, disk, vectors


def _encoder(
    backbone: Backbone, state: ReleaseState, makers: Mapping[str, ReleaseState], **more: Any
) -> VideoEncoder:
    return VideoEncoder(backbone, {task.task_id: task.fingerprint for task in state.tasks}, makers, **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_clips_are_embedded_like_the_videos_of_each_task(
    name: str, backbone: Backbone, tmp_path: Path
) -> None:
    before = backbone.compute_fingerprint()
    state, makers, vectors = _library(name, backbone, tmp_path)
    encoder = _encoder(backbone, state, makers)
    tasks = ["two", "zero", "more", "one", "two"]
    found = encoder.encode(_frames(9), tasks)
    assert found.shape == (4, 5, backbone.dim)
    assert found.dtype == np.float32
    for place, task in enumerate(tasks):
        # ccmr folds its shared top layer into the projection, which rounds differently; all others are bit-identical.
        np.testing.assert_allclose(found[:, place], vectors[task], atol=1e-5 if name == "ccmr" else 0)
    if name != "zero_shot":
        assert np.abs(found[:, 0] - found[:, 3]).max() > 1e-3
    np.testing.assert_array_equal(found, encoder.encode(_frames(9), tasks))
    assert backbone.compute_fingerprint() == before, "the backbone is unchanged"
    assert set(NAMES) <= set(METHODS)


def test_shared_encoder_is_read_and_run_once(backbone: Backbone, tmp_path: Path) -> None:
    state, makers, _ = _library("ffa_tame", backbone, tmp_path)
    encoder = _encoder(backbone, state, makers)
    assert makers.read == []
    assert encoder.cached_bytes == 0
    found = encoder.encode(_frames(9, 1), ["two", "more"])
    assert makers.read == ["two"], "the last task shares the encoder of the one before"
    np.testing.assert_array_equal(found[:, 0], found[:, 1])
    encoder.encode(_frames(9, 1), ["one", "two", "more"])
    assert makers.read == ["two", "one"]
    assert encoder.encode(_frames(9, 1), []).shape == (1, 0, backbone.dim)


def test_recently_used_encoders_are_kept_within_the_limit(backbone: Backbone, tmp_path: Path) -> None:
    state, makers, vectors = _library("strata", backbone, tmp_path)
    one = sum(t.numel() * t.element_size() for t in select_video_tensors(makers["one"]).tensors.values())
    encoder = _encoder(backbone, state, makers, cache_bytes=one + 1)
    makers.read.clear()
    for task in ("one", "two", "two", "one"):
        found = encoder.encode(_frames(9), [task])
        np.testing.assert_array_equal(found[:, 0], vectors[task])
        assert encoder.cached_bytes <= one
    assert makers.read == ["one", "two", "one"]


def test_encoder_with_another_fingerprint_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    state, makers, _ = _library("strata", backbone, tmp_path)
    with pytest.raises(ReleaseError, match="does not hold the video encoder that embedded it"):
        _encoder(backbone, state, {"two": makers["one"]}).encode(_frames(9), ["two"])
    with pytest.raises(ReleaseError, match="does not hold"):
        _encoder(backbone, state, {"two": select_query_tensors(makers["two"])}).encode(_frames(9), ["two"])
    with pytest.raises(ReleaseError, match="is missing"):
        _encoder(backbone, state, {}).encode(_frames(9), ["two"])
    with pytest.raises(ReleaseError, match="has not learned three"):
        _encoder(backbone, state, makers).encode(_frames(9), ["three"])
    broken = makers["two"]
    broken = replace(broken, config={**broken.config, "image_rank": 3})
    with pytest.raises(ReleaseError, match="does not fit"):
        _encoder(backbone, state, {"two": broken}).encode(_frames(9), ["two"])


def test_frames_of_another_shape_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    state, makers, _ = _library("zero_shot", backbone, tmp_path)
    with pytest.raises(ReleaseError, match=r"not \[n, 2, 56, 56, 3\]"):
        _encoder(backbone, state, makers).encode(_frames(9)[:, [0, 1, 1]], ["zero"])
