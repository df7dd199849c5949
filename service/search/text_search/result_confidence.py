"""How sure the results of a search are, by the calibration of the release that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from index.hits import Hit
from models.routing.confidence_model import CONFIDENCE_DEPTH, ConfidenceModel, familiarity
from models.routing.router import distinct_tokens
from service.core.errors import InvalidInput
from service.core.schemas import SearchQuery
from service.core.settings import Settings
from service.search.snapshots.search_snapshot import SearchSnapshot

__all__ = ["among_the_first", "calibration", "confidences", "require_calibration", "sure_enough"]


def calibration(serving: SearchSnapshot, mode: str, configured: Settings) -> ConfidenceModel | None:
    """That of a release for searches like these; None where it has none."""
    fitted = serving.confidence
    return fitted if fitted is not None and fitted.applies_to(mode, configured.routing_prior) else None


def confidences(
    serving: SearchSnapshot,
    hits: Sequence[Hit],
    text: str,
    routing: Sequence[tuple[str, float]],
    mode: str,
    configured: Settings,
) -> dict[int, float]:
    """By id of each hit the probability that it is right; empty where nothing is known of it.

    Args:
        hits: a list from its first hit on.
        text: what was asked.
        routing: log weights of the tasks that were searched, best first.
        mode: query mode.
    """
    calibrated = calibration(serving, mode, configured)
    if calibrated is None or not routing:
        return {}
    tasks = np.array([serving.positions[task] for task, _ in routing], np.int64)
    words = distinct_tokens(serving.encoder.tokens([text])[0])
    known = familiarity(serving.router.evidence(words, tasks), len(words))
    sure = calibrated(np.array([hit.score for hit in hits]), known, routing[0][1])
    return {hit.id: float(probability) for hit, probability in zip(hits, sure, strict=True)}


def among_the_first(sure: Mapping[int, float]) -> float | None:
    """Probability that the head of a list has the right result; None where nothing is known of it.

    Its results exclude one another, so their probabilities add up.

    Args:
        sure: confidence of a list's hits in their order, from the first hit on.
    """
    return min(1.0, sum(islice(sure.values(), CONFIDENCE_DEPTH))) if sure else None


def sure_enough(sure: Mapping[int, float], hit: Hit, query: SearchQuery) -> bool:
    """Whether a hit is as likely to be right as a search wants it."""
    return query.min_confidence is None or sure.get(hit.id, 0.0) >= query.min_confidence


def require_calibration(
    serving: SearchSnapshot, query: SearchQuery, mode: str, configured: Settings, at: str
) -> None:
    """Raises InvalidInput where a lowest confidence is asked for and there is none to compare with.

    Args:
        at: what stands before the name of the field.
    """
    if query.min_confidence is None or calibration(serving, mode, configured) is not None:
        return
    calibrated = serving.confidence
    if calibrated is None:
        why = "This release is not calibrated: too few captions of its library were kept from training."
    else:
        why = f"The release is calibrated for mode {calibrated.mode!r} and a routing prior of {calibrated.prior:g}."
    raise InvalidInput.at(f"{at}min_confidence", why, "Leave it out, or use min_score.")
