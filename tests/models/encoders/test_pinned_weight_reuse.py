"""Pinned weights reused from a previous encoder give the same vectors as reading their releases again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.releases.release_state import ReleaseState
from tests.models.encoders.small_releases import low_rank_release, small_release, tame_release

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin, and then a long time nothing"]


def _state(backbone: Backbone, kind: str, tasks: int) -> ReleaseState:
    """Build a release with weights that depend on its number of tasks."""
    torch.manual_seed(tasks)
    names = [f"t{n}" for n in range(tasks)]
    if kind == "tame":
        return tame_release(backbone, names, bare_first=True)
    if kind == "low_rank":
        return low_rank_release(backbone, 20 * tasks, names)
    return small_release(backbone, kind, {}, names)


class _RecordingReleases(dict[str, ReleaseState]):
    """Pinned releases by task that record which tasks are read."""

    def __init__(self, states: dict[str, ReleaseState]) -> None:
        super().__init__(states)
        self.read_tasks: list[str] = []

    def __getitem__(self, task: str) -> ReleaseState:
        self.read_tasks.append(task)
        return super().__getitem__(task)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tame", "low_rank"])
@pytest.mark.parametrize(
    ("previous_tasks", "unchanged"),
    [
        (4, ["t0", "t1", "t2", "t3"]),  # the usual swap
        (4, ["t0", "t2", "t3"]),  # one release was damaged
        (6, ["t0", "t1", "t2", "t3", "t4"]),  # back to an earlier release
        (1, ["t0"]),
        (4, []),
    ],
)
def test_reused_pinned_weights_equal_those_read_anew(
    backbone: Backbone, kind: str, previous_tasks: int, unchanged: list[str]
) -> None:
    pinned = {"t0": _state(backbone, "frozen", 1)} | {
        f"t{n}": _state(backbone, kind, n + 1) for n in range(1, 6)
    }
    release = pinned["t4"]
    if previous_tasks > 1:
        previous = open_query_encoder(backbone, pinned[f"t{previous_tasks - 1}"], pinned)
    else:  # a first release of another kind, so no weights can be reused
        previous = open_query_encoder(backbone, pinned["t0"], pinned)
    tasks = [task.task_id for task in release.tasks]
    vectors_of_previous = {
        (t, mode): previous.encode(TEXTS, [t], mode) for t in previous.tasks for mode in previous.modes
    }
    recording = _RecordingReleases(pinned)
    found = open_query_encoder(backbone, release, recording, previous, unchanged)
    expected = open_query_encoder(backbone, release, pinned)
    reused = set(unchanged) if previous_tasks > 1 else set()
    assert recording.read_tasks == [task for task in tasks if task not in reused]
    for mode in expected.modes:
        np.testing.assert_allclose(
            found.encode(TEXTS, tasks[::-1], mode), expected.encode(TEXTS, tasks[::-1], mode), atol=1e-6
        )
        pairs = [(text, task) for text in TEXTS for task in tasks]
        vectors = [
            encoder.encode_pairs(encoder.tokenize([t for t, _ in pairs]), [t for _, t in pairs], mode)
            for encoder in (found, expected)
        ]
        np.testing.assert_allclose(*vectors, atol=1e-6)
        assert [found.encoding_identity(t, mode) for t in tasks] == [
            expected.encoding_identity(t, mode) for t in tasks
        ]
    for (task, mode), vectors_before in vectors_of_previous.items():  # the previous encoder is unchanged
        np.testing.assert_array_equal(previous.encode(TEXTS, [task], mode), vectors_before)


def test_encoding_identities_distinguish_updates(backbone: Backbone) -> None:
    states = {f"t{n}": _state(backbone, "low_rank", n + 1) for n in range(3)}
    changed = _state(backbone, "low_rank", 2)
    changed.tensors["text.words"][0, 0] += 1e-3
    one = open_query_encoder(backbone, states["t2"], states)
    two = open_query_encoder(backbone, states["t2"], {**states, "t1": changed})
    first = open_query_encoder(backbone, states["t1"], states)
    anchors = [one.encoding_identity(task, "pinned") for task in one.tasks]
    assert len({*anchors, backbone.fingerprint, None}) == 5
    assert two.encoding_identity("t0", "pinned") == anchors[0]
    assert two.encoding_identity("t1", "pinned") != anchors[1]
    assert first.encoding_identity("t1", "pinned") == anchors[1]
