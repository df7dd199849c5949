"""Routing profiles of domains with appended videos."""

from __future__ import annotations

import numpy as np
import torch

from models.routing.routing_profiles import RoutingProfiles
from models.routing.token_statistics import token_profile
from service.search.snapshots.appended_captions import profile_row

VOCABULARY = 50


def test_profile_row_equals_the_profile_of_a_release() -> None:
    """Texts are token ids with a start and an end token; a repeated token of a text counts once."""
    rng = np.random.default_rng(0)
    texts = [np.r_[48, rng.integers(0, 40, rng.integers(0, 9)), 49] for _ in range(30)]
    counts = torch.zeros(VOCABULARY)
    for text in texts:
        for token in set(text[1:-1].tolist()):
            counts[token] += 1
    expected = RoutingProfiles.from_dense(token_profile(counts).half().float().numpy()[None])
    tokens, values = profile_row(texts, VOCABULARY)
    np.testing.assert_array_equal(tokens, expected.tokens)
    np.testing.assert_allclose(values, expected.values, rtol=1e-3)


def test_profile_of_no_captions_is_silent() -> None:
    tokens, values = profile_row([], VOCABULARY)
    assert len(tokens) == len(values) == 0


def test_replaced_rows_leave_the_others_unchanged() -> None:
    dense = np.random.default_rng(0).random((4, VOCABULARY), np.float32) * (np.arange(VOCABULARY) % 3 == 0)
    profiles = RoutingProfiles.from_dense(dense)
    row = np.zeros(VOCABULARY, np.float32)
    row[[1, 5]] = 2.0, 3.0
    empty = (np.empty(0, np.int32), np.empty(0, np.float32))
    replaced = profiles.replace_rows({2: (np.array([1, 5], np.int32), row[[1, 5]]), 0: empty})
    np.testing.assert_array_equal(
        replaced.to_dense(), np.stack([np.zeros_like(row), dense[1], row, dense[3]])
    )
