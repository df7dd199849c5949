"""Compute the confidence of results and of the whole answer, from the served release's calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.hits import Hit
from index.vector_ids import find_ids
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import CONFIDENCE_DEPTH, ConfidenceModel, logistic
from service.core.errors import InvalidInput
from service.search.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search.search_state import UNKNOWN_CONFIDENCE, ListConfidence, SearchState

Ids = npt.NDArray[np.int64]

_UNKNOWN_LOOKS = -4.0  # log odds of a video whose looks tell nothing: one in fifty-five is right
_NEARLY_WRITTEN = 0.9  # a video with some of the words matches from this probability on
_SPEAKS_AGAINST = -4.0  # nats; captions that deny the query this strongly overrule the looks


def applicable_calibration(snapshot: SearchSnapshot, mode: str) -> ConfidenceModel | None:
    """Select a release's calibration for a query mode; None if it has none."""
    model = snapshot.confidence_model
    return model if model is not None and model.applies_to(mode, DEFAULT_PRIOR) else None


def compute_confidence(state: SearchState, hits: Sequence[Hit]) -> ListConfidence:
    """Compute the confidence of a list and of each hit.

    The calibration turns a video's looks (its score without words) into log odds that it is right; word evidence adds
    its nats. A video matches if its texts contain the whole query, if it is likely right and has some of the words, or
    if it looks right and the calibration says that some video does.

    Args:
        hits: Hits of the search, from the first one on.
    """
    written = _complete_videos(state)
    ids = np.array([hit.id for hit in hits], np.int64)
    all_nats = state.words.nats(ids).astype(np.float64)
    nats = all_nats - state.words.nats_of_unknown(ids)  # of the videos' own words
    looks = _judge_looks(state, hits, all_nats, nats)
    if not hits or (looks is None and not len(written)):
        return UNKNOWN_CONFIDENCE
    is_written, _ = find_ids(written, ids)
    log_odds = np.full(len(hits), _UNKNOWN_LOOKS) if looks is None else looks.log_odds
    # If words speak for a video, unlikely looks are no evidence against it.
    log_odds = np.where(nats > 0, np.maximum(log_odds, _UNKNOWN_LOOKS), log_odds) + nats
    probabilities = np.minimum.accumulate(logistic(log_odds))  # in the order of the list
    is_known = is_written if looks is None else np.ones(len(hits), np.bool_)
    results = dict(zip(ids[is_known].tolist(), probabilities[is_known].tolist(), strict=True))
    answer = max([0.0, *probabilities[is_written].tolist()])
    is_near = np.zeros(len(hits), np.bool_)
    if looks is not None:
        answer = max(answer, looks.answer(probabilities))
        if looks.is_near is not None:
            # A text that lacks only a word such as "in" still supports its video.
            is_nearly_written = (nats > 0) & (probabilities >= _NEARLY_WRITTEN)
            is_nearly_written[CONFIDENCE_DEPTH:] = False
            answer = max([answer, *probabilities[is_nearly_written].tolist()])
            is_near = looks.is_near | is_nearly_written
        elif not len(written):
            return ListConfidence(results, answer)
    matching = np.sort(np.concatenate([written, ids[is_near & ~is_written]]))
    reached = frozenset(ids[is_written | is_near].tolist())
    return ListConfidence(results, answer, bool(len(matching)), reached, matching)


@dataclass(frozen=True)
class _Looks:
    """What the calibration says about the looks of hits.

    Attributes:
        log_odds: Log odds that each hit is right by its looks, ``[n]``.
        probability: Probability that some library video looks right; None without a model for it.
        is_near: Whether each hit looks right, ``[n]``; None as ``probability``.
    """

    log_odds: npt.NDArray[np.floating]
    probability: float | None = None
    is_near: npt.NDArray[np.bool_] | None = None

    def answer(self, probabilities: npt.NDArray[np.floating]) -> float:
        """Compute the probability that any video is right from those of the hits.

        Without an answer model, at most one video is the described one, so the first probabilities add up.
        """
        if self.probability is None:
            return min(1.0, float(probabilities[:CONFIDENCE_DEPTH].sum()))
        return self.probability


def _judge_looks(
    state: SearchState,
    hits: Sequence[Hit],
    all_nats: npt.NDArray[np.float64],
    nats: npt.NDArray[np.float64],
) -> _Looks | None:
    """Judge the looks of hits by their scores without words; None if the release is not calibrated.

    Args:
        all_nats: Evidence of words in the score of each hit, ``[n]``.
        nats: The part of it that the hit's own texts have, ``[n]``.
    """
    model = applicable_calibration(state.snapshot, state.mode)
    if model is None or not hits:
        return None
    lifts = {task: DEFAULT_PRIOR * weight for task, weight in state.meaning.weights.items()}
    visual = np.array([hit.score - state.planner.lifts[hit.task] for hit in hits]) - all_nats
    scores = state.snapshot.visual_score.cosines(visual) + np.array([lifts[hit.task] for hit in hits])
    head, evidence = _nearest_scores(state, lifts), state.meaning.evidence
    log_odds = model.log_odds(scores, evidence.familiarity, evidence.log_weight, head)
    if model.answer is None:
        return _Looks(log_odds)
    probability = model.answer.probability(head, evidence)
    is_near = np.zeros(len(hits), np.bool_)
    if probability >= model.answer.threshold:
        is_near = model.answer.within_reach(scores, float(head[0])) & (nats > _SPEAKS_AGAINST)
        is_near[CONFIDENCE_DEPTH:] = False  # so that matches depend neither on k nor on the page
    return _Looks(log_odds, probability, is_near)


def _complete_videos(state: SearchState) -> Ids:
    """Find the videos that pass the filter and whose texts contain the whole query: vector IDs, ascending."""
    videos, positions = state.words.complete_videos()
    tasks = list(state.snapshot.shards)
    is_counted = np.zeros(len(tasks), np.bool_)
    left_out = []
    for position in np.flatnonzero(np.bincount(positions, minlength=len(tasks))).tolist():
        task = tasks[position]
        if task not in state.allowed_ids:
            continue
        is_counted[position] = state.request.routes in ("auto", "all") or task in state.planner.searched
        if (allowed := state.allowed_ids[task]) is not None:
            own = videos[positions == position]
            left_out.append(own[~np.isin(own, allowed)])
    counted = videos[is_counted[positions]]
    return np.setdiff1d(counted, np.concatenate(left_out)) if left_out else counted


def _nearest_scores(state: SearchState, lifts: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """List the highest scores without words, best first."""
    scores = [hits.scores[:CONFIDENCE_DEPTH] + lifts[task] for task, hits in state.nearest.items()]
    ordered = np.sort(np.concatenate([np.empty(0), *scores]))[::-1]
    return np.asarray(ordered[:CONFIDENCE_DEPTH], np.float64)


def require_calibration(snapshot: SearchSnapshot, request: SearchRequest, mode: str) -> None:
    """Check that the release is calibrated if a request has a confidence threshold.

    Raises:
        InvalidInput: The release is not calibrated for the mode.
    """
    if request.query.min_confidence is None or applicable_calibration(snapshot, mode) is not None:
        return
    model = snapshot.confidence_model
    if model is None:
        reason = "The release is not calibrated: it has too few captions."
    else:
        reason = f"The release is calibrated for mode {model.mode!r}."
    raise InvalidInput.at(
        f"{request.field_prefix}min_confidence", reason, "Leave it out, or use min_score instead."
    )
