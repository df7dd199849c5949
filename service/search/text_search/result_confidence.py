"""Compute the confidence of results and of the whole answer, from the served release's calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from index.arrays import Ids
from index.hits import Hit
from index.vector_ids import find_ids
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import CONFIDENCE_DEPTH, logistic
from service.search.text_search.executor import UNKNOWN_CONFIDENCE, ListConfidence, TextSearch

_UNKNOWN_VISUAL = -4.0  # log-odds of a video whose visual score tells nothing: one in fifty-five is right
_NEARLY_CERTAIN = 0.9  # a video with some of the words matches from this probability on
_SPEAKS_AGAINST = -4.0  # log-odds; captions that deny the query this strongly overrule the visual score


def compute_confidence(search: TextSearch, hits: Sequence[Hit]) -> ListConfidence:
    """Compute the confidence of a list and of each hit.

    The calibration turns the visual score of a hit into log-odds that it is right; the evidence of its words is added.
    A video matches if its texts match all terms, if it is likely right and has some of the words, or if its visual
    score is high and the calibration says that some video's is.

    Args:
        hits: Hits of the search, from the first one on.
    """
    with_all_terms = _videos_with_all_terms(search)
    model = search.calibration
    if not hits or (model is None and not len(with_all_terms)):
        return UNKNOWN_CONFIDENCE
    ids = np.array([hit.id for hit in hits], np.int64)
    words = np.array([hit.words for hit in hits]) - search.words.log_odds_without_captions(ids)
    has_all_terms, _ = find_ids(with_all_terms, ids)
    is_head = np.arange(len(hits)) < CONFIDENCE_DEPTH  # matches depend neither on k nor on the page
    is_known, is_near = has_all_terms, np.zeros(len(hits), np.bool_)
    log_odds = np.full(len(hits), _UNKNOWN_VISUAL)
    visual_probability: float | None = None
    if model is not None:
        priors = {task: DEFAULT_PRIOR * weight for task, weight in search.unbounded_routing.weights.items()}
        scores = np.array([hit.cosine for hit in hits]) + np.array([priors[hit.task] for hit in hits])
        head, evidence = _nearest_scores(search, priors), search.unbounded_routing.evidence
        log_odds = model.log_odds(scores, evidence.familiarity, evidence.log_weight, head)
        is_known = np.ones(len(hits), np.bool_)
        if model.answer is not None:
            visual_probability = model.answer.probability(head, evidence)
            if visual_probability >= model.answer.threshold:
                is_near = model.answer.within_reach(scores, float(head[0])) & (words > _SPEAKS_AGAINST)
                is_near &= is_head
    # If words speak for a video, an unlikely visual score is no evidence against it.
    log_odds = np.where(words > 0, np.maximum(log_odds, _UNKNOWN_VISUAL), log_odds) + words
    probabilities = np.minimum.accumulate(logistic(log_odds))  # in the order of the list
    results = dict(zip(ids[is_known].tolist(), probabilities[is_known].tolist(), strict=True))
    answer = max([0.0, *probabilities[has_all_terms].tolist()])
    if visual_probability is not None:
        # A text that lacks only a word such as "in" still supports its video.
        is_nearly_certain = (words > 0) & (probabilities >= _NEARLY_CERTAIN) & is_head
        answer = max([answer, visual_probability, *probabilities[is_nearly_certain].tolist()])
        is_near |= is_nearly_certain
    elif model is not None:
        # At most one video is the described one, so the first probabilities add up.
        answer = max(answer, min(1.0, float(probabilities[:CONFIDENCE_DEPTH].sum())))
        if not len(with_all_terms):
            return ListConfidence(results, answer)
    matching = np.sort(np.concatenate([with_all_terms, ids[is_near & ~has_all_terms]]))
    matching_hits = frozenset(ids[has_all_terms | is_near].tolist())
    return ListConfidence(
        results=results,
        answer=answer,
        matches=bool(len(matching)),
        matching_hits=matching_hits,
        matching=matching,
    )


def _videos_with_all_terms(search: TextSearch) -> Ids:
    """Find the videos that pass the filter and whose texts match all terms: vector IDs, ascending."""
    videos, domains = search.words.videos_with_all_terms()
    tasks = list(search.snapshot.shards)
    is_counted = np.zeros(len(tasks), np.bool_)
    left_out = []
    for index in np.flatnonzero(np.bincount(domains, minlength=len(tasks))).tolist():
        task = tasks[index]
        if task not in search.allowed_ids:
            continue
        is_counted[index] = search.request.routes in ("auto", "all") or task in search.planner.searched
        if (allowed := search.allowed_ids[task]) is not None:
            of_task = videos[domains == index]
            left_out.append(of_task[~np.isin(of_task, allowed)])
    counted = videos[is_counted[domains]]
    return np.setdiff1d(counted, np.concatenate(left_out)) if left_out else counted


def _nearest_scores(search: TextSearch, priors: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """List the highest scores without words, best first."""
    scores = [hits.scores[:CONFIDENCE_DEPTH] + priors[task] for task, hits in search.nearest.items()]
    ordered = np.sort(np.concatenate([np.empty(0), *scores]))[::-1]
    return np.asarray(ordered[:CONFIDENCE_DEPTH], np.float64)
