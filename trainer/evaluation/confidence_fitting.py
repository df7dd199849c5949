"""Fitting the confidence of a release (:mod:`models.routing.confidence_model`), and telling how good it is.

What is fitted to are captions of videos that nothing is measured with. Each of them is asked three times: of the whole
library, where its video is to be found; of the library without that video, and of the library without the whole task.
The second and third time every result is wrong, however well it fits, so what is learned is not only which of the
results is right, but also what a list looks like when none is.

A caption meets its own task and those that it sounds most like, whatever else the library holds, and the number of
captions is bounded. So what this costs does not grow with the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.routing.confidence_model import (
    CONFIDENCE_DEPTH,
    RESULT_FEATURES,
    ConfidenceModel,
    confidence_features,
    familiarity,
    logistic,
)
from models.routing.router import fill_silent, silent_tasks
from trainer.evaluation.gallery import Encoder, Ids, ShardVectors, Vectors

__all__ = [
    "MAX_CAPTIONS",
    "Bin",
    "CalibrationTask",
    "Reliability",
    "area_under_roc",
    "fit_confidence",
    "fit_logistic",
    "label_results",
    "reliability",
]

Floats = npt.NDArray[np.floating]

MAX_CAPTIONS = 512  # that a release is calibrated with, of all tasks together
_CANDIDATES = 4  # tasks that a caption meets beside its own: those that it sounds most like
_ABSENT = 0.1  # share of the lists that ask for a video that is not there; and as many for a task that is not
_FEWEST = 20  # captions, below which nothing is fitted
_RIDGE = 1e-3
_FOLDS = 5  # of cross-validation
_ITERATIONS = 100  # of Newton's method; it has settled long before
_TEXTS = 64  # whose words are laid out at a time, a vocabulary wide


@dataclass(frozen=True)
class CalibrationTask:
    """A task that captions meet: its videos but for those that it is measured with, and captions of them.

    Attributes:
        task: id.
        shard: its vectors.
        ids: vector ids of the videos that are in the galleries.
        captions: vector id and text; a sample.
    """

    task: str
    shard: ShardVectors
    ids: Ids
    captions: tuple[tuple[int, str], ...]


class LabeledResults(NamedTuple):
    """What a caption was answered, once.

    Attributes:
        features: ``[n, F]`` evidence of each result.
        relevant: ``[n]``, whether it is the caption's video.
        caption: its number.
        present: whether its video could be found.
    """

    features: Floats
    relevant: npt.NDArray[np.bool_]
    caption: int
    present: bool


def fit_confidence(
    encoder: Encoder,
    known: Sequence[CalibrationTask],
    profiles: Vectors,
    *,
    mode: str,
    prior: float,
    report_alive: Callable[[], object] = lambda: None,
) -> ConfidenceModel | None:
    """The confidence of a release; None where there are too few captions to tell.

    Args:
        encoder: its query encoder.
        known: every task that it has learned, in order.
        profiles: ``[T, V]`` of the tasks, in the same order.
        mode: query mode.
        prior: cosine per nat of routing evidence.
        report_alive: called now and then while it takes its time.
    """
    lists = list(label_results(encoder, known, profiles, mode=mode, prior=prior, report_alive=report_alive))
    captions = sum(len(task.captions) for task in known)
    if captions < _FEWEST or sum(asked.relevant.any() for asked in lists) < _FOLDS:
        return None
    weights, bias = _fit(lists)
    said, right = _by_others(lists)
    error = reliability(said, right).error
    return ConfidenceModel(mode, prior, tuple(float(w) for w in weights), bias, captions, error)


def _fit(lists: Sequence[LabeledResults]) -> tuple[Floats, float]:
    rows = np.concatenate([asked.features for asked in lists])
    right = np.concatenate([asked.relevant for asked in lists])
    shares = [1 - 2 * _ABSENT if asked.present else _ABSENT for asked in lists]
    counts = np.repeat(shares, [len(asked.features) for asked in lists])
    return fit_logistic(rows, right, counts, RESULT_FEATURES)


def _by_others(lists: Sequence[LabeledResults]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """For the first result of every list that has the video: what a fit to other captions says of it, and the truth."""
    said: list[float] = []
    right: list[bool] = []
    for fold in range(_FOLDS):
        weights, bias = _fit([asked for asked in lists if asked.caption % _FOLDS != fold])
        tried = [a for a in lists if a.caption % _FOLDS == fold and a.present and len(a.features)]
        said += [float(logistic(asked.features[:1] @ weights + bias)[0]) for asked in tried]
        right += [bool(asked.relevant[0]) for asked in tried]
    return np.array(said), np.array(right, np.bool_)


def label_results(
    encoder: Encoder,
    known: Sequence[CalibrationTask],
    profiles: Vectors,
    *,
    mode: str,
    prior: float,
    report_alive: Callable[[], object] = lambda: None,
) -> Iterator[LabeledResults]:
    """Every caption is asked of the library: as it is, without the caption's video, and without its task."""
    listed = [(text, t, video) for t, task in enumerate(known) for video, text in task.captions]
    if not listed:
        return
    texts = [text for text, *_ in listed]
    nats, tokens = _evidence(encoder, texts, profiles)
    silent = silent_tasks(profiles)
    filled, met = nats.copy(), np.zeros(nats.shape, np.bool_)
    fill_silent(filled, silent)
    np.put_along_axis(met, np.argsort(-filled, axis=1, kind="stable")[:, : _CANDIDATES + 1], True, axis=1)
    for number, (_, own, _) in enumerate(listed):
        met[number, own] = True
    heads = []
    for t, task in enumerate(known):
        heads.append(dict(_heads(task, encoder, texts, np.flatnonzero(met[:, t]), mode)))
        report_alive()
    for number, (_, own, video) in enumerate(listed):
        for left_out, without in ((None, None), (None, video), (own, None)):
            searched = np.array([t for t in range(len(known)) if t != left_out], np.int64)
            if not len(searched):
                continue
            heard = nats[number, searched]
            # As the likeliest of those that are searched: one that was left out must not be heard through it.
            fill_silent(heard[None], silent[searched])
            log_weights = heard - np.logaddexp.reduce(heard)
            tasks = [(t, log) for t, log in zip(searched, log_weights, strict=True) if met[number, t]]
            scores = np.concatenate([heads[t][number][0] + prior * log for t, log in tasks])
            ids = np.concatenate([heads[t][number][1] for t, _ in tasks])
            if without is not None:
                scores, ids = scores[ids != without], ids[ids != without]
            order = np.argsort(-scores, kind="stable")[:CONFIDENCE_DEPTH]
            rows = confidence_features(
                scores[order], familiarity(heard, int(tokens[number])), float(log_weights.max())
            )
            yield LabeledResults(rows, ids[order] == video, number, left_out is None and without is None)


def _evidence(encoder: Encoder, texts: Sequence[str], profiles: Vectors) -> tuple[Floats, Ids]:
    """Nats ``[n, T]`` that each text gives for each task that has captions, and how many tokens it holds ``[n]``."""
    nats, tokens = [], []
    for start in range(0, len(texts), _TEXTS):
        presence = encoder.token_presence(texts[start : start + _TEXTS])
        nats.append(presence @ profiles.T)
        tokens.append((presence > 0).sum(axis=1))
    return np.concatenate(nats).astype(np.float64), np.concatenate(tokens)


def _heads(
    task: CalibrationTask, encoder: Encoder, texts: Sequence[str], rows: Ids, mode: str
) -> Iterator[tuple[int, tuple[Floats, Ids]]]:
    """For each of some texts the cosines and ids of the nearest videos of a task, one more than a head has."""
    if not len(rows):
        return
    queries = encoder.encode([texts[row] for row in rows], [task.task], mode)[:, 0]
    cosines = queries @ task.shard.vectors(task.ids).T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, : CONFIDENCE_DEPTH + 1]
    for row, scores, nearest in zip(rows, np.take_along_axis(cosines, order, axis=1), order, strict=True):
        yield int(row), (scores.astype(np.float64), task.ids[nearest])


def fit_logistic(
    rows: Floats, right: npt.NDArray[np.bool_], counts: Floats, rising: int
) -> tuple[Floats, float]:
    """Weights ``[F]`` and bias of a logistic regression, by Newton's method; the first ``rising`` are not negative.

    A weight that would be negative is left out and the rest is fitted anew: with a convex loss that is the optimum on
    that face, which is all that is asked for here.

    Args:
        rows: ``[N, F]``.
        right: ``[N]``.
        counts: ``[N]``, how much each row counts.
    """
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    used = deviation > 1e-9
    while True:
        scaled = (rows[:, used] - mean[used]) / deviation[used]
        fitted = _newton(np.concatenate([scaled, np.ones((len(rows), 1))], axis=1), right, counts)
        weights = np.zeros(rows.shape[1])
        weights[used] = fitted[:-1] / deviation[used]
        falling = np.flatnonzero(weights[:rising] < 0)
        if not len(falling):
            return weights, float(fitted[-1] - weights @ mean)
        used[falling[weights[falling].argmin()]] = False


def _newton(rows: Floats, right: npt.NDArray[np.bool_], counts: Floats) -> Floats:
    """Minimiser of the weighted cross-entropy with a ridge on all but the last column."""
    ridge = _RIDGE * counts.sum() / len(rows) * np.append(np.ones(rows.shape[1] - 1), 0.0)
    ridge = np.maximum(ridge, 1e-9)
    weights = np.zeros(rows.shape[1])

    def loss(at: Floats) -> float:
        odds = rows @ at
        return float(counts @ (np.logaddexp(0, odds) - right * odds) + 0.5 * (ridge * at) @ at)

    for _ in range(_ITERATIONS):
        likely = logistic(rows @ weights)
        gradient = rows.T @ (counts * (likely - right)) + ridge * weights
        curvature = (rows * (counts * likely * (1 - likely))[:, None]).T @ rows + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while loss(weights - size * step) > loss(weights) and size > 1e-6:
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-8:
            break
    return np.asarray(weights)


# -- how good it is -----------------------------------------------------------------------------------------


class Bin(NamedTuple):
    """Predictions between two bounds: how many, what they said on average, and the share that was true."""

    low: float
    high: float
    number: int
    said: float
    true: float


class Reliability(NamedTuple):
    """Whether probabilities are what they say.

    Attributes:
        error: expected calibration error, 0..1: mean gap between what bins say and what is true, weighted by size
            (Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017).
        brier: mean squared error.
        bins: of equal width; empty ones are left out.
    """

    error: float
    brier: float
    bins: tuple[Bin, ...]


def reliability(said: Floats, right: npt.NDArray[np.bool_], bins: int = 10) -> Reliability:
    """Of predictions ``[N]`` in 0..1 with what came true."""
    place = np.minimum((said * bins).astype(np.int64), bins - 1)
    found = tuple(
        Bin(b / bins, (b + 1) / bins, int(here.sum()), float(said[here].mean()), float(right[here].mean()))
        for b in range(bins)
        if (here := place == b).any()
    )
    error = sum(b.number * abs(b.said - b.true) for b in found) / max(1, len(said))
    return Reliability(float(error), float(np.mean((said - right) ** 2)), found)


def area_under_roc(said: Floats, right: npt.NDArray[np.bool_]) -> float:
    """AUROC: the chance that what is right was given more than what is wrong; ties count half. NaN without both."""
    order = np.argsort(said, kind="stable")
    _, first, counts = np.unique(said[order], return_index=True, return_counts=True)
    ranks = np.repeat(first + (counts + 1) / 2, counts)
    positive = right[order]
    n, m = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")
