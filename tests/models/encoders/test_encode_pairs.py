"""Pairs of a text and a task are encoded as every text for every task."""

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
from models.encoders import tower_query_backbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.query_encoder import QueryEncoder
from models.errors import ReleaseError
from tests.models.encoders.small_releases import low_rank_release, small_release, tame_release

TEXTS = ["a red circle moves left", "a square", "two stars spin around a very large blue triangle"]
TASKS = ["0", "1", "2"]


def _encoders(backbone: Backbone) -> dict[str, QueryEncoder]:
    """Query encoders by release kind."""
    torch.manual_seed(1)
    frozen = small_release(backbone, "frozen", {})
    tame, newest = tame_release(backbone, "01"), tame_release(backbone)
    newest.tensors["tame.task_experts"][1] = 1
    tame.tensors["tame.task_experts"][0] = NO_EXPERT
    one, two = (
        low_rank_release(backbone, backbone.vocabulary // 2),
        low_rank_release(backbone, backbone.vocabulary // 2),
    )
    tower = small_release(backbone, "tower", backbone.tensors())
    return {
        "frozen": open_query_encoder(backbone, frozen, {}),
        "tower": open_query_encoder(backbone, tower, {}),
        "tame": open_query_encoder(backbone, newest, {"0": frozen, "1": tame, "2": newest}),
        "low_rank": open_query_encoder(backbone, two, {"0": frozen, "1": one, "2": two}),
    }


def test_encode_pairs_equals_encode(backbone: Backbone) -> None:
    pairs = [(0, "1"), (2, "0"), (1, "2"), (0, "0"), (2, "2"), (2, "0"), (1, "1")]
    for kind, encoder in _encoders(backbone).items():
        tokens = encoder.tokenize(TEXTS)
        for mode in encoder.modes:
            all_vectors = encoder.encode(TEXTS, TASKS, mode)
            if not encoder.is_task_independent(mode):
                assert np.linalg.norm(all_vectors[:, 0] - all_vectors[:, 1], axis=-1).min() > 1e-3, (
                    "tasks differ"
                )
            found = encoder.encode_pairs([tokens[n] for n, _ in pairs], [task for _, task in pairs], mode)
            expected = [all_vectors[n, TASKS.index(task)] for n, task in pairs]
            np.testing.assert_allclose(found, expected, atol=2e-6, err_msg=f"{kind} {mode}")


def test_encode_pairs_keeps_the_order_over_several_batches(backbone: Backbone) -> None:
    encoder = _encoders(backbone)["low_rank"]
    rng = np.random.default_rng(2)
    texts = [" ".join(rng.choice(["star", "red", "spins", "left"], 1 + n % 9)) for n in range(40)]
    tokens = encoder.tokenize(texts)
    tasks = [str(t) for t in rng.integers(0, 3, 40)]
    found = encoder.encode_pairs(tokens, tasks, "pinned")
    for n in range(40):
        alone = encoder.encode([texts[n]], [tasks[n]], "pinned")[0, 0]
        np.testing.assert_allclose(found[n], alone, atol=2e-6)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_several_threads_encode_equal_vectors(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, precision: Precision
) -> None:
    monkeypatch.setattr(backbone, "query_precision", precision)
    encoder = _encoders(backbone)["low_rank"]
    rng = np.random.default_rng(3)
    texts = encoder.tokenize([" ".join(rng.choice(["star", "red", "left"], 1 + n % 7)) for n in range(75)])
    tasks = [str(t) for t in rng.integers(0, 3, 75)]
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
    expected, found = (one.encode(TEXTS, TASKS, "pinned") for one in (exact, encoder))
    pairs = encoder.encode_pairs(encoder.tokenize(TEXTS), TASKS, "pinned")
    assert found.dtype == pairs.dtype == np.float32
    for vectors, reference in ((found, expected), (pairs, expected[np.arange(3), np.arange(3)])):
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
