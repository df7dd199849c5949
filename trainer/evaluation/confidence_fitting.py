"""Fit the confidence model of a release (:mod:`models.routing.confidence_model`).

The model is fitted to the results of captions that were not learned: captions of validation videos, which no
evaluation uses, and captions of training videos, with results from a solution without these videos
(:mod:`trainer.release_calibration`). Searches in the library without a caption's video or task, and
searches for unrelated texts, have no correct result, so the model learns both which result is relevant and how a list
without any relevant result differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from index.arrays import Floats
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import CalibrationCaption
from models.routing.confidence_model import (
    ANSWER_FEATURES,
    RESULT_FEATURES,
    AnswerModel,
    ConfidenceModel,
    fit_visual_score,
    logistic,
)
from models.routing.routing_profiles import RoutingProfiles
from trainer.evaluation.calibration_searches import (
    CalibrationTask,
    LabeledResults,
    label_results,
    remaining_captions,
)
from trainer.evaluation.part_comparison import weight_without_loss


def calibration_error(
    predicted: Floats, outcomes: npt.NDArray[np.bool_], counts: Floats | None = None
) -> float:
    """Compute the expected calibration error, 0..1.

    It is the mean gap between predicted and observed probability over ten bins of equal width, weighted by size (Guo,
    Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017).

    Args:
        predicted: Predicted probabilities ``[N]``, 0..1.
        outcomes: Whether each prediction came true ``[N]``.
        counts: Weight of each prediction ``[N]``; 1 by default.
    """
    counts = np.ones(len(predicted)) if counts is None else counts
    bin_of = np.minimum((predicted * 10).astype(np.int64), 9)
    gaps = np.bincount(bin_of, counts * (predicted - outcomes))
    return float(np.abs(gaps).sum() / max(1e-12, counts.sum()))


MAX_CAPTIONS = 512  # that calibrate a release, over all tasks
_ABSENT_SHARE = 0.1  # weight of searches without the caption's video, and of those without its task
_MIN_CAPTIONS = 7  # with fewer, no model is fitted; the derived splits of 30 videos have as many
_FOLDS = 5
# Share of captions with a video that reach the threshold, unless too many unrelated texts would.
_ACCEPTED = 0.95
_REFUSED = 0.95  # share of unrelated texts that stay below the threshold
_RIDGE = 0.25  # keeps weights finite in small libraries, which separate texts perfectly
_COVERED = 0.9  # share of captions whose video is within reach


def fit_confidence(
    encoder: QueryEncoder,
    tasks: Sequence[CalibrationTask],
    profiles: RoutingProfiles,
    *,
    prior: float,
    fitted: Sequence[CalibrationCaption] = (),
    unrelated: Sequence[str] = (),
    report_alive: Callable[[], object] = lambda: None,
) -> ConfidenceModel | None:
    """Fit the confidence model of a release; None with too few captions.

    Cross-validation over captions estimates its calibration error. Of ``fitted`` captions of training videos, those
    without other videos that were not learned do not count in the visual score.
    """
    fitted = remaining_captions(tasks, fitted)
    labeled = label_results(
        encoder, tasks, profiles, prior=prior, fitted=fitted, unrelated=unrelated, report_alive=report_alive
    )
    searches = list(labeled)
    captions = sum(search.present for search in searches)
    if captions < _MIN_CAPTIONS or sum(search.relevant.any() for search in searches) < _FOLDS:
        return None
    answer = fit_answer(searches)
    searches = [search for search in searches if search.searched != "unrelated"]
    weights, bias = _fit(searches)
    predicted, outcomes = _cross_validate(searches)
    error = calibration_error(predicted, outcomes)
    visual = fit_visual_score([each.score for each in fitted], [np.array(each.others) for each in fitted])
    if visual is not None:
        retyped = [each.retyped for each in fitted if len(each.retyped) > 1]
        visual = replace(visual, weight=weight_without_loss(visual.weight, retyped))
    return ConfidenceModel(
        encoder.modes[-1], prior, tuple(map(float, weights)), bias, captions, error, answer, visual
    )


def fit_answer(searches: Sequence[LabeledResults]) -> AnswerModel | None:
    """Fit the model that says whether a list has an answer; None if all searches have one.

    Searches with and without an answer weigh the same in total. Among those without one, so do captions without their
    task and unrelated texts. Searches without only the caption's video are not used, since another video may match.
    """
    used = [search for search in searches if search.searched != "without video" and len(search.features)]
    features = np.array([search.answer for search in used])
    present = np.array([search.present for search in used])
    if present.all():
        return None
    counts = _balanced_counts([search.searched for search in used])
    weights, bias = fit_logistic(features, present, counts, ANSWER_FEATURES, _RIDGE)
    folds = np.array([search.caption for search in used]) % _FOLDS
    predicted = np.zeros(len(used))
    for fold in range(_FOLDS):
        inside = folds == fold
        other, offset = fit_logistic(
            features[~inside], present[~inside], counts[~inside], ANSWER_FEATURES, _RIDGE
        )
        predicted[inside] = logistic(features[inside] @ other + offset)
    threshold = min(0.5, float(np.quantile(predicted[present], 1 - _ACCEPTED)))
    unrelated = np.array([search.searched == "unrelated" for search in used])
    if unrelated.any():
        threshold = max(threshold, float(np.quantile(predicted[unrelated], _REFUSED, method="higher")))
    distances = np.sort([search.distance for search in used if search.present])
    # Split conformal prediction: this order statistic covers a new caption with at least the wanted probability.
    covered = min(len(distances) - 1, int(np.ceil((len(distances) + 1) * _COVERED)) - 1)
    return AnswerModel(
        weights=tuple(map(float, weights)),
        bias=bias,
        threshold=threshold,
        reach=float(distances[covered]),
        error=calibration_error(predicted, present, counts),
    )


def _balanced_counts(searched: Sequence[str]) -> Floats:
    """Weigh the searches: half for those with an answer, and half for the others, equal for each kind."""
    kinds = np.array(searched)
    absent = set(searched) - {"all"}
    shares = {"all": 0.5, **dict.fromkeys(absent, 0.5 / max(1, len(absent)))}
    counts = np.array([shares[kind] / (kinds == kind).sum() for kind in kinds])
    return np.asarray(counts * len(kinds))


def _fit(searches: Sequence[LabeledResults]) -> tuple[Floats, float]:
    features = np.concatenate([search.features for search in searches])
    relevant = np.concatenate([search.relevant for search in searches])
    shares = [1 - 2 * _ABSENT_SHARE if search.present else _ABSENT_SHARE for search in searches]
    counts = np.repeat(shares, [len(search.features) for search in searches])
    return fit_logistic(features, relevant, counts, RESULT_FEATURES, _RIDGE)


def _cross_validate(searches: Sequence[LabeledResults]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Predict whether each whole-library search's first result is relevant, by a model fitted without its caption."""
    predicted: list[float] = []
    outcomes: list[bool] = []
    for fold in range(_FOLDS):
        weights, bias = _fit([search for search in searches if search.caption % _FOLDS != fold])
        tested = [s for s in searches if s.caption % _FOLDS == fold and s.present and len(s.features)]
        predicted += [float(logistic(search.features[:1] @ weights + bias)[0]) for search in tested]
        outcomes += [bool(search.relevant[0]) for search in tested]
    return np.array(predicted), np.array(outcomes, np.bool_)


_MIN_DEVIATION = 0.05  # for standardization; otherwise a nearly constant feature would get a huge weight
_MAX_ITERATIONS = 100  # Newton's method converges much sooner


def fit_logistic(
    features: Floats, labels: npt.NDArray[np.bool_], counts: Floats, nonnegative: int, ridge: float = 1e-3
) -> tuple[Floats, float]:
    """Fit a logistic regression whose first ``nonnegative`` weights are not negative.

    A weight that would be negative is set to zero and the others are fitted again. The result is the optimum on that
    face of the constraint set, not necessarily the constrained optimum.

    Features ``[N, F]``, labels ``[N]`` and the weight of each row ``[N]`` give weights ``[F]`` and a bias. The ridge
    penalizes squared weights of standardized features, for row weights with mean 1.
    """
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    used = deviation > 1e-9
    deviation = np.maximum(deviation, _MIN_DEVIATION)
    while True:
        scaled = (features[:, used] - mean[used]) / deviation[used]
        fitted = _newton(np.concatenate([scaled, np.ones((len(features), 1))], axis=1), labels, counts, ridge)
        weights = np.zeros(features.shape[1])
        weights[used] = fitted[:-1] / deviation[used]
        negative = np.flatnonzero(weights[:nonnegative] < 0)
        if not len(negative):
            return weights, float(fitted[-1] - weights @ mean)
        used[negative[weights[negative].argmin()]] = False


def _newton(features: Floats, labels: npt.NDArray[np.bool_], counts: Floats, strength: float) -> Floats:
    """Minimize the weighted cross-entropy with a ridge penalty on all weights but the last."""
    ridge = strength * counts.sum() / len(features) * np.append(np.ones(features.shape[1] - 1), 0.0)
    ridge = np.maximum(ridge, 1e-9)
    weights = np.zeros(features.shape[1])

    def loss(at: Floats) -> float:
        odds = features @ at
        return float(counts @ (np.logaddexp(0, odds) - labels * odds) + 0.5 * (ridge * at) @ at)

    for _ in range(_MAX_ITERATIONS):
        probabilities = logistic(features @ weights)
        gradient = features.T @ (counts * (probabilities - labels)) + ridge * weights
        curvature = (
            features * (counts * probabilities * (1 - probabilities))[:, None]
        ).T @ features + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while loss(weights - size * step) > loss(weights) and size > 1e-6:
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-8:
            break
    return np.asarray(weights)
