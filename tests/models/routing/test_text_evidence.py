"""A text's summarized evidence against a slow reference."""

from __future__ import annotations

import numpy as np
import pytest

from models.routing.router import Router, summarize_evidence
from models.routing.routing_profiles import RoutingProfiles

PROFILES = np.array(
    [[1.5, 0.5, 0.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 3.0, 0.0, 0.0]], np.float32
)
TOKENS = np.array([0, 1, 3])


@pytest.mark.parametrize("captions", [None, np.array([-2.0, 0.0, -1.0], np.float32)])
def test_summary_of_words_and_caption_evidence(captions: np.ndarray | None) -> None:
    router, positions = Router(RoutingProfiles.from_dense(PROFILES)), np.arange(3)
    words, coverage = router.word_evidence(TOKENS, positions), router.coverage(TOKENS, positions)
    np.testing.assert_allclose(words, [2.0, 0.0, 1.0])
    np.testing.assert_allclose(coverage, [2 / 3, 0, 1 / 3])
    found = summarize_evidence(words, captions, coverage, router.silent(positions), 3)
    total = [2.0, 1.0] if captions is None else [0.0, 0.0]
    total = [total[0], max(total), total[1]]  # the silent task has the evidence of the likeliest other task
    assert found.familiarity == pytest.approx(max(total) / 3)
    assert found.log_weight == pytest.approx(max(total) - np.log(np.exp(total).sum()), abs=1e-6)
    assert found.words == pytest.approx(2.0 / 3)
    assert found.captions == pytest.approx(0.0 if captions is None else -1.0)
    assert found.coverage == pytest.approx(2 / 3)


def test_silent_tasks_alone_have_no_evidence() -> None:
    zeros = np.zeros(2, np.float32)
    found = summarize_evidence(zeros, zeros - 3, zeros, np.ones(2, np.bool_), 4)
    assert (found.words, found.captions, found.coverage) == (0.0, 0.0, 0.0)
    assert summarize_evidence(zeros, None, zeros, np.zeros(2, np.bool_), 0).familiarity == 0.0
