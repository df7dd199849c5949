"""Query encoders: latest and pinned queries, pairs of a text and a task, identities and reuse of pinned weights."""

from __future__ import annotations

from dataclasses import replace
from threading import Barrier, get_ident
from typing import Any

import numpy as np
import pytest
import torch

from models.adapters.tame import NO_EXPERT
from models.backbones import Precision
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders import adapted_families, tower_query_backbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.query_encoder import QueryEncoder
from models.errors import ReleaseError
from models.releases.release_state import ReleaseState
from tests.models.encoders.small_releases import low_rank_release, small_release, tame_release, tower_release

TEXTS = ["a red circle moves left", "a square", "two stars spin around a very large blue triangle"]


def test_pinned_queries_and_their_identities_do_not_change(backbone: Backbone) -> None:
    torch.manual_seed(2)
    frozen = small_release(backbone, "frozen", {}, "0")
    one, two = tame_release(backbone, "01"), tame_release(backbone)
    two.tensors["tame.task_experts"][0] = one.tensors["tame.task_experts"][0] = NO_EXPERT
    pinned = {"0": frozen, "1": one, "2": two}
    earlier = open_query_encoder(backbone, one, {"0": frozen, "1": one})
    later = open_query_encoder(backbone, two, pinned)
    first = open_query_encoder(backbone, frozen, {"0": frozen})
    assert (
        first.encoding_identity("0", "latest")
        == first.encoding_identity("0", "pinned")
        == later.encoding_identity("0", "pinned")
    )
    assert (
        earlier.encoding_identity("1", "pinned")
        == later.encoding_identity("1", "pinned")
        != later.encoding_identity("2", "pinned")
    )
    assert earlier.encoding_identity("1", "latest") is None
    for task in ("0", "1"):  # equal identities
        before, after = (encoder.encode(TEXTS, [task], "pinned") for encoder in (earlier, later))
        np.testing.assert_allclose(before, after, atol=1e-6)
    assert not np.allclose(
        earlier.encode(TEXTS, ["1"], "latest"), later.encode(TEXTS, ["1"], "latest"), atol=1e-3
    )
    np.testing.assert_allclose(first.encode(TEXTS, ["0"]), later.encode(TEXTS, ["0"], "pinned"), atol=1e-6)

    other = replace(one, tensors={n: a.copy() for n, a in one.tensors.items()})
    other.tensors["tame.b"][0, 0, 0, 0, 0] += 1e-3
    for changed in (other, replace(one, config={"scale": 2.0, "top_k": 2})):
        encoder = open_query_encoder(backbone, two, {**pinned, "1": changed})
        assert encoder.encoding_identity("1", "pinned") not in (None, later.encoding_identity("1", "pinned"))


def test_task_independent_modes_give_one_vector_for_all_tasks(backbone: Backbone) -> None:
    torch.manual_seed(3)
    release = tower_release(backbone, ("one", "two"))
    tower = open_query_encoder(backbone, release, {"one": tower_release(backbone, ("one",)), "two": release})
    frozen = open_query_encoder(backbone, small_release(backbone, "frozen", {}), {})
    two = tame_release(backbone)
    tame = open_query_encoder(backbone, two, {task.task_id: two for task in two.tasks})
    for encoder in (tower, frozen, tame):
        for mode in encoder.modes:
            vectors = encoder.encode(TEXTS, encoder.tasks, mode)
            is_equal = np.ptp(vectors, axis=1).max() == 0
            assert (mode in encoder.shared_modes) == is_equal, (encoder, mode)
    assert [encoder.shares_text_encoding for encoder in (tower, frozen, tame)] == [False, True, False]
    assert tower.encoding_identity("one", "latest") is None
    assert tower.encoding_identity("one", "pinned") != tower.encoding_identity("two", "pinned")


def test_pinned_text_towers_leave_the_memory_and_come_back(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [
        small_release(backbone, "frozen", {}, "0"),
        *(tower_release(backbone, "012"[:n]) for n in (2, 3)),
    ]
    pinned = _RecordingReleases(dict(zip("012", states, strict=True)))
    expected = open_query_encoder(backbone, states[-1], pinned).encode(TEXTS, TASKS, "pinned")
    earlier = open_query_encoder(backbone, states[1], {"0": states[0], "1": states[1]})
    np.testing.assert_array_equal(earlier.encode(TEXTS, ["1"], "pinned")[:, 0], expected[:, 1])
    np.testing.assert_array_equal(earlier.encode(TEXTS, ["1"])[:, 0], expected[:, 1])
    monkeypatch.setattr(adapted_families, "_MAX_TOWER_BYTES", 1)  # one tower has all the space
    encoder = open_query_encoder(backbone, states[-1], pinned)
    assert isinstance(encoder, adapted_families.TowerQueryEncoder)
    for _ in range(2):
        pinned.read_tasks.clear()
        np.testing.assert_array_equal(encoder.encode(TEXTS, TASKS, "pinned"), expected)
        assert pinned.read_tasks == ["0", "1", "2"]
        assert list(encoder.towers()) == ["2"]


def _state(backbone: Backbone, kind: str, tasks: int) -> ReleaseState:
    """Build a release with weights that depend on its number of tasks."""
    torch.manual_seed(tasks)
    names = [f"t{n}" for n in range(tasks)]
    if kind == "tame":
        return tame_release(backbone, names, bare_first=True)
    if kind == "low_rank":
        return low_rank_release(backbone, 20 * tasks, names)
    if kind == "tower":
        return tower_release(backbone, names)
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
@pytest.mark.parametrize("kind", ["tame", "low_rank", "tower"])
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
    reopened = open_query_encoder(backbone, release, recording, previous, unchanged)
    expected = open_query_encoder(backbone, release, pinned)
    reused = set(unchanged) if previous_tasks > 1 else set()
    assert recording.read_tasks == [task for task in tasks if task not in reused]
    for mode in expected.modes:
        np.testing.assert_allclose(
            reopened.encode(TEXTS, tasks[::-1], mode), expected.encode(TEXTS, tasks[::-1], mode), atol=1e-6
        )
        pairs = [(text, task) for text in TEXTS for task in tasks]
        vectors = [
            encoder.encode_pairs(encoder.tokenize([t for t, _ in pairs]), [t for _, t in pairs], mode)
            for encoder in (reopened, expected)
        ]
        np.testing.assert_allclose(*vectors, atol=1e-6)
        assert [reopened.encoding_identity(t, mode) for t in tasks] == [
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


TASKS = ["0", "1", "2"]


def _encoders(backbone: Backbone) -> dict[str, QueryEncoder]:
    """Query encoders by release kind."""
    torch.manual_seed(1)
    frozen = small_release(backbone, "frozen", {})
    tame, newest = tame_release(backbone, "01"), tame_release(backbone)
    newest.tensors["tame.task_experts"][1] = 1
    tame.tensors["tame.task_experts"][0] = NO_EXPERT
    one, two = (low_rank_release(backbone, backbone.vocabulary // 2) for _ in range(2))
    towers = [tower_release(backbone) for _ in range(2)]
    return {
        "frozen": open_query_encoder(backbone, frozen, {}),
        "tower": open_query_encoder(backbone, towers[1], {"0": frozen, "1": towers[0], "2": towers[1]}),
        "tame": open_query_encoder(backbone, newest, {"0": frozen, "1": tame, "2": newest}),
        "low_rank": open_query_encoder(backbone, two, {"0": frozen, "1": one, "2": two}),
    }


def test_encode_pairs_equals_encode(backbone: Backbone) -> None:
    pairs = [(0, "1"), (2, "0"), (1, "2"), (0, "0"), (2, "2"), (2, "0"), (1, "1")]
    for kind, encoder in _encoders(backbone).items():
        tokens = encoder.tokenize(TEXTS)
        for mode in encoder.modes:
            all_vectors = encoder.encode(TEXTS, TASKS, mode)
            if mode not in encoder.shared_modes:  # tasks differ
                assert np.linalg.norm(all_vectors[:, 0] - all_vectors[:, 1], axis=-1).min() > 1e-3
            vectors = encoder.encode_pairs([tokens[n] for n, _ in pairs], [task for _, task in pairs], mode)
            expected = [all_vectors[n, TASKS.index(task)] for n, task in pairs]
            np.testing.assert_allclose(vectors, expected, atol=2e-6, err_msg=f"{kind} {mode}")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_several_threads_encode_equal_vectors(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    monkeypatch.setattr(backbone, "query_precision", precision)
    encoder = _encoders(backbone)["low_rank"]
    rng = np.random.default_rng(3)
    words = [" ".join(rng.choice(["star", "red", "left"], 1 + n % 7)) for n in range(75)]
    texts, tasks = encoder.tokenize(words), [str(t) for t in rng.integers(0, 3, 75)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(tower_query_backbone, "core_count", lambda: 1)
    threads: set[int] = set()
    encode_each, both_threads = encoder.encode_each, Barrier(2)

    def encode(*args: Any) -> Any:
        if get_ident() not in threads:
            threads.add(get_ident())
            both_threads.wait(30)
        return encode_each(*args)

    monkeypatch.setattr(encoder, "encode_each", lambda *args: threads.add(get_ident()) or encode_each(*args))
    alone = encoder.encode_pairs(texts, tasks, "pinned")
    assert threads == {get_ident()}
    threads.clear()
    monkeypatch.setattr(tower_query_backbone, "core_count", lambda: 2)
    monkeypatch.setattr(encoder, "encode_each", encode)
    parallel = encoder.encode_pairs(texts, tasks, "pinned")
    assert len(threads) == 2
    assert get_ident() in threads
    np.testing.assert_allclose(parallel, alone, atol=2e-6 if precision == "float32" else 2e-3)
    if precision == "float32":  # in the order of the pairs, which are encoded in batches of similar length
        single = [
            encoder.encode([text], [task], "pinned")[0, 0] for text, task in zip(words, tasks, strict=True)
        ]
        np.testing.assert_allclose(alone, single, atol=2e-6)
    assert encoder.encode_pairs([], [], "pinned").shape == (0, backbone.dim)


def test_bfloat16_changes_queries_little_and_only_if_enabled(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tower_query_backbone, "core_count", lambda: 1)  # parts of so few texts use float32
    release = low_rank_release(backbone, backbone.vocabulary // 2)
    pinned = dict.fromkeys(TASKS, release)
    exact = open_query_encoder(backbone, release, pinned)
    rounded = tiny_backbone(frames=2)
    rounded.load_tensors(backbone.tensors())
    rounded.query_precision = "bfloat16"
    encoder = open_query_encoder(rounded, replace(release, backbone_fingerprint=rounded.fingerprint), pinned)
    expected, reduced = (one.encode(TEXTS, TASKS, "pinned") for one in (exact, encoder))
    pairs = encoder.encode_pairs(encoder.tokenize(TEXTS), TASKS, "pinned")
    assert reduced.dtype == pairs.dtype == np.float32
    for vectors, reference in ((reduced, expected), (pairs, expected[np.arange(3), np.arange(3)])):
        deviations = np.linalg.norm(vectors - reference, axis=-1)
        assert 1e-5 < deviations.max() < 0.05
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=0.01)


def test_unknown_tasks_and_modes_are_refused_by_name(backbone: Backbone) -> None:
    encoder = _encoders(backbone)["low_rank"]
    tokens = encoder.tokenize(TEXTS[:1])
    with pytest.raises(ReleaseError, match="has not learned nine"):
        encoder.encode_pairs(tokens, ["nine"], "pinned")
    with pytest.raises(ReleaseError, match="mode 'mapped'"):
        encoder.encode_pairs(tokens, ["0"], "mapped")
