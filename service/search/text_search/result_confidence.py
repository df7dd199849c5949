"""Confidence of search results and of the whole answer, from the calibration of the release that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from index.hits import Hit
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import CONFIDENCE_DEPTH, ConfidenceModel
from service.core.errors import InvalidInput
from service.search.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot, TextRouting


def applicable_calibration(snapshot: SearchSnapshot, mode: str) -> ConfidenceModel | None:
    """Calibration of a release for a query mode; None where the release has none for it."""
    model = snapshot.confidence_model
    return model if model is not None and model.applies_to(mode, DEFAULT_PRIOR) else None


@dataclass(frozen=True)
class ListConfidence:
    """Confidence of a list of hits.

    Attributes:
        results: Vector ID → confidence, in list order; empty where the release is not calibrated.
        answer: Probability that the library contains a described video; None without calibration.
        matches: Whether the answer reaches the threshold of the release; None where the release has none.
        reached: Vector IDs of the hits that belong to the answer; None where the release does not tell.
    """

    results: Mapping[int, float] = field(default_factory=dict)
    answer: float | None = None
    matches: bool | None = None
    reached: Set[int] | None = None


UNKNOWN_CONFIDENCE = ListConfidence()  # of a release without calibration


def compute_confidence(
    snapshot: SearchSnapshot,
    hits: Sequence[Hit],
    routing: TextRouting,
    mode: str,
) -> ListConfidence:
    """Confidence of a list and of its hits.

    Args:
        snapshot: Snapshot that found the hits.
        hits: Hits of a list, from its first hit on.
        routing: Routing of the text to the candidate tasks.
        mode: Query mode.
    """
    model = applicable_calibration(snapshot, mode)
    if model is None or not routing.log_weights or not hits:
        return UNKNOWN_CONFIDENCE
    scores = np.array([hit.score for hit in hits])
    probabilities = model(scores, routing.evidence.familiarity, routing.evidence.log_weight)
    results = {hit.id: float(value) for hit, value in zip(hits, probabilities, strict=True)}
    if model.answer is None:
        return ListConfidence(results, _sum_of_head(results))
    answer = model.answer.probability(scores, routing.evidence)
    matches = answer >= model.answer.threshold
    reached = {
        hit.id for hit, is_near in zip(hits, model.answer.within_reach(scores), strict=True) if is_near
    }
    return ListConfidence(results, answer, matches, reached if matches else frozenset())


def _sum_of_head(results: Mapping[int, float]) -> float:
    """Sum of the first confidences of a list, at most 1: the answer where the release has no model of it.

    At most one video is the requested one, so the probabilities of the results add up.
    """
    return min(1.0, sum(islice(results.values(), CONFIDENCE_DEPTH)))


def require_calibration(snapshot: SearchSnapshot, request: SearchRequest, mode: str) -> None:
    """Check that a release is calibrated where a request has a confidence threshold.

    Raises:
        InvalidInput: The release is not calibrated for the mode.
    """
    if request.query.min_confidence is None or applicable_calibration(snapshot, mode) is not None:
        return
    model = snapshot.confidence_model
    if model is None:
        reason = "The release is not calibrated: too few captions of its library were kept from training."
    else:
        reason = f"The release is calibrated for mode {model.mode!r}."
    raise InvalidInput.at(
        f"{request.field_prefix}min_confidence", reason, "Leave it out, or use min_score instead."
    )
