"""Confidence of search results, from the calibration of the release that answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from index.hits import Hit
from models.routing.confidence_model import CONFIDENCE_DEPTH, ConfidenceModel
from service.core.errors import InvalidInput
from service.search.requests.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot, TextRouting

__all__ = ["applicable_calibration", "compute_confidences", "list_confidence", "require_calibration"]


def applicable_calibration(
    snapshot: SearchSnapshot, mode: str, routing_prior: float
) -> ConfidenceModel | None:
    """Calibration of a release for a query mode and a routing prior; None where the release has none for them."""
    model = snapshot.confidence_model
    return model if model is not None and model.applies_to(mode, routing_prior) else None


def compute_confidences(
    snapshot: SearchSnapshot,
    hits: Sequence[Hit],
    request: SearchRequest,
    routing: TextRouting,
    mode: str,
) -> dict[int, float]:
    """Probability that each hit is the requested video.

    Args:
        snapshot: Snapshot that found the hits.
        hits: Hits of a list, from its first hit on.
        request: Request that the hits answer.
        routing: Routing of the text to the candidate tasks.
        mode: Query mode.

    Returns:
        Vector ID → confidence in list order; empty where the release is not calibrated.
    """
    model = applicable_calibration(snapshot, mode, request.routing_prior)
    if model is None or not routing.log_weights:
        return {}
    scores = np.array([hit.score for hit in hits])
    probabilities = model(scores, routing.familiarity, routing.log_weights[0][1])
    return {hit.id: float(probability) for hit, probability in zip(hits, probabilities, strict=True)}


def list_confidence(confidences: Mapping[int, float]) -> float | None:
    """Probability that the head of a list contains the requested video; None without calibration.

    At most one video is the requested one, so the probabilities of the results add up.

    Args:
        confidences: Confidences of a list in list order, from the first hit on.
    """
    return min(1.0, sum(islice(confidences.values(), CONFIDENCE_DEPTH))) if confidences else None


def require_calibration(snapshot: SearchSnapshot, request: SearchRequest, mode: str) -> None:
    """Check that a release is calibrated where a request has a confidence threshold.

    Raises:
        InvalidInput: The release is not calibrated for the mode and the routing prior.
    """
    prior = request.routing_prior
    if request.query.min_confidence is None or applicable_calibration(snapshot, mode, prior) is not None:
        return
    model = snapshot.confidence_model
    if model is None:
        reason = "The release is not calibrated: too few captions of its library were kept from training."
    else:
        reason = f"The release is calibrated for mode {model.mode!r} and a routing prior of {model.prior:g}."
    raise InvalidInput.at(
        f"{request.field_prefix}min_confidence", reason, "Leave it out, or use min_score instead."
    )
