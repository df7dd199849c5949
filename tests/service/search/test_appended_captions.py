"""Routing profiles of domains with appended videos."""

from __future__ import annotations

import numpy as np

from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import RoutingProfiles, token_profile
from service.catalog.database import session_scope
from service.catalog.domain_videos import count_edit, store_calibration
from service.search.engine import SearchEngine
from service.search.snapshots.appended_captions import profile_row
from tests.service.search.caption_library import Library

VOCABULARY = 50


def test_profile_row_equals_the_profile_of_a_release() -> None:
    """Texts are token IDs with a start and an end token; a repeated token of a text counts once."""
    rng = np.random.default_rng(0)
    texts = [np.r_[48, rng.integers(0, 40, rng.integers(0, 9)), 49] for _ in range(30)]
    counts = np.zeros(VOCABULARY)
    for text in texts:
        for token in set(text[1:-1].tolist()):
            counts[token] += 1
    expected = RoutingProfiles.from_dense(token_profile(counts)[None])
    tokens, values = profile_row(texts, VOCABULARY)
    np.testing.assert_array_equal(tokens, expected.tokens)
    np.testing.assert_array_equal(values, expected.values)


def test_profile_of_no_captions_is_silent() -> None:
    tokens, values = profile_row([], VOCABULARY)
    assert len(tokens) == len(values) == 0


def test_running_server_reads_a_calibration_without_a_new_generation(
    learning: Library, service: SearchEngine
) -> None:
    with session_scope(write=True) as session:
        count_edit(session, "tsk_birds", [1], captions=True, metadata=False)
    assert service.snapshots.refresh()
    before = service.snapshots.current()
    assert not service.snapshots.refresh_captions()
    model = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), -3.0, 240, 0.04)
    with session_scope(write=True) as session:
        store_calibration(session, "tsk_birds", before.release_id, before.generation, model.to_json())
    assert service.snapshots.refresh_captions()
    assert service.snapshots.current().confidence_model == model
    assert service.snapshots.current().generation == before.generation
    assert not service.snapshots.refresh_captions()
