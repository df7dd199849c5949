"""Confidence of search results and of the whole answer, from the calibration of the release that answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from index.hits import Hit
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import CONFIDENCE_DEPTH, ConfidenceModel, logistic
from service.core.errors import InvalidInput
from service.search.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search.search_state import UNKNOWN_CONFIDENCE, ListConfidence, SearchState

Ids = npt.NDArray[np.int64]

_UNCALIBRATED_LOG_ODDS = (
    -4.0
)  # of what a video looks like, where nothing is known about it: one of fifty-five is right
_SPEAKS_AGAINST = -4.0  # nats; a video whose captions say something else does not match by its looks


def applicable_calibration(snapshot: SearchSnapshot, mode: str) -> ConfidenceModel | None:
    """Calibration of a release for a query mode; None where the release has none for it."""
    model = snapshot.confidence_model
    return model if model is not None and model.applies_to(mode, DEFAULT_PRIOR) else None


def compute_confidence(state: SearchState, hits: Sequence[Hit]) -> ListConfidence:
    """Confidence of a list and of its hits.

    What a video looks like gives the log odds that it is right, by the calibration of the release and the scores
    without words. The evidence of the words adds its nats. A video whose texts contain the whole query matches, and so
    do the videos that look like it, where the calibration says that any does.

    Args:
        hits: Hits of the search, from its first hit on.
    """
    complete = _complete_videos(state)
    if not hits:
        return UNKNOWN_CONFIDENCE
    model = applicable_calibration(state.snapshot, state.mode)
    nats = _nats(state, hits)
    is_complete = np.isin([hit.id for hit in hits], complete)
    if model is None or not state.meaning.log_weights:
        if not len(complete):
            return UNKNOWN_CONFIDENCE
        log_odds = np.where(is_complete, nats + _UNCALIBRATED_LOG_ODDS, np.nan)
        answer_log_odds, looks = float(np.nanmax(log_odds, initial=-np.inf)), np.zeros(len(hits), np.bool_)
        knows_looks = False
    else:
        lifts = {task: DEFAULT_PRIOR * weight for task, weight in state.meaning.log_weights}
        head = _nearest_scores(state, lifts)
        cosines = [hit.score - state.planner.lifts[hit.task] for hit in hits] - DEFAULT_PRIOR * nats
        scores = np.array([lifts[hit.task] for hit in hits]) + cosines
        evidence = state.meaning.evidence
        looked = model.log_odds(scores, evidence.familiarity, evidence.log_weight, head)
        # Where words speak for a video, what it looks like is worth no more than a calibration can tell.
        log_odds = np.where(nats > 0, np.maximum(looked, _UNCALIBRATED_LOG_ODDS), looked) + nats
        knows_looks = model.answer is not None
        looks = np.zeros(len(hits), np.bool_)
        if model.answer is None:
            # At most one video is the described one, so the probabilities of the first results add up.
            answer_log_odds = log_odds_of(float(logistic(log_odds[:CONFIDENCE_DEPTH]).sum()))
        else:
            answer = model.answer.probability(head, evidence)
            if answer >= model.answer.threshold:
                looks = model.answer.within_reach(scores, float(head[0])) & (nats > _SPEAKS_AGAINST)
            answer_log_odds = log_odds_of(answer)
    probabilities = np.minimum.accumulate(np.where(np.isnan(log_odds), 0.0, logistic(log_odds)))
    results = {
        hit.id: float(probability)
        for hit, probability, known in zip(hits, probabilities, ~np.isnan(log_odds), strict=True)
        if known
    }
    written = float(probabilities[is_complete].max(initial=0.0))
    answer = max(float(logistic(np.array(answer_log_odds))), written)
    if not knows_looks and not len(complete):
        return ListConfidence(results, answer)
    matching = np.union1d(complete, [hit.id for hit, is_near in zip(hits, looks, strict=True) if is_near])
    reached = {hit.id for hit, matches in zip(hits, is_complete | looks, strict=True) if matches}
    return ListConfidence(results, answer, bool(len(matching)), reached, matching.astype(np.int64))


def _nats(state: SearchState, hits: Sequence[Hit]) -> npt.NDArray[np.float64]:
    """Evidence of the words for each hit."""
    nats = np.empty(len(hits))
    tasks = [hit.task for hit in hits]
    for task in dict.fromkeys(tasks):
        places = [place for place, own in enumerate(tasks) if own == task]
        nats[places] = state.words.nats(task, np.array([hits[place].id for place in places], np.int64))
    return nats


def _complete_videos(state: SearchState) -> Ids:
    """Vector IDs of the videos that pass the filter and whose texts contain the whole query, ascending."""
    videos, positions = state.words.complete_videos()
    tasks = list(state.snapshot.shards)
    kept = [np.empty(0, np.int64)]
    for position in np.unique(positions).tolist():
        own, task = videos[positions == position], tasks[position]
        if task in state.allowed_ids:
            allowed = state.allowed_ids[task]
            kept.append(own if allowed is None else own[np.isin(own, allowed)])
    return np.sort(np.concatenate(kept))


def _nearest_scores(state: SearchState, lifts: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """The highest scores without words, descending."""
    scores = [hits.scores[:CONFIDENCE_DEPTH] + lifts[task] for task, hits in state.nearest.items()]
    ordered = np.sort(np.concatenate([np.empty(0), *scores]))[::-1]
    return np.asarray(ordered[:CONFIDENCE_DEPTH], np.float64)


def log_odds_of(probability: float) -> float:
    """Log odds of a probability, within ±35."""
    bounded = min(max(probability, 1e-15), 1 - 1e-15)
    return math.log(bounded / (1 - bounded))


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
