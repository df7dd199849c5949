"""Fitting of a release's confidence model (:mod:`models.routing.confidence_model`).

The model is fitted to captions of validation videos, with which nothing is evaluated. Each caption is searched three
times: in the whole library, which contains its video; in the library without that video; and in the library without
its whole task. In the second and third search every result is wrong, however well it matches, so the model learns both
which result is relevant and how a result list without any relevant result differs.

A caption is scored against its own task and the tasks of highest evidence, and the number of captions is bounded, so
the cost does not grow with the library.
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
from trainer.batching import chunks
from trainer.evaluation.gallery import Encoder, Ids, ShardVectors, Vectors
from trainer.evaluation.logistic_regression import fit_logistic
from trainer.evaluation.reliability import reliability

__all__ = ["MAX_CAPTIONS", "CalibrationTask", "LabeledResults", "fit_confidence", "label_results"]

Floats = npt.NDArray[np.floating]

MAX_CAPTIONS = 512  # that a release is calibrated with, over all tasks
_OTHER_TASKS = 4  # tasks of highest evidence that a caption is scored against in addition to its own
_ABSENT_SHARE = 0.1  # weight of the searches without the caption's video, and of those without its task
_MIN_CAPTIONS = 20  # with fewer captions no model is fitted
_FOLDS = 5  # of cross-validation
_TEXTS = 64  # texts per chunk of token presence, which is as wide as the vocabulary


@dataclass(frozen=True)
class CalibrationTask:
    """A task for calibration: its videos except the held-out ones, and a sample of its validation captions.

    Attributes:
        task: Identifier of the task.
        shard: Vectors of the task.
        ids: Vector ids of the videos that can be retrieved.
        captions: Vector id and text of each caption.
    """

    task: str
    shard: ShardVectors
    ids: Ids
    captions: tuple[tuple[int, str], ...]


class LabeledResults(NamedTuple):
    """Results of one search for a caption, with their relevance.

    Attributes:
        features: ConfidenceModel features of each result ``[n, F]``.
        relevant: Whether each result is the caption's video ``[n]``.
        caption: Number of the caption.
        present: Whether the searched library contains the caption's video.
    """

    features: Floats
    relevant: npt.NDArray[np.bool_]
    caption: int
    present: bool


def fit_confidence(
    encoder: Encoder,
    tasks: Sequence[CalibrationTask],
    profiles: Vectors,
    *,
    mode: str,
    prior: float,
    report_alive: Callable[[], object] = lambda: None,
) -> ConfidenceModel | None:
    """The confidence model of a release; None with too few captions.

    Its calibration error is estimated by cross-validation over captions.

    Args:
        encoder: Query encoder of the release.
        tasks: All learned tasks, in order.
        profiles: Routing profiles ``[T, V]`` of the tasks, in the same order.
        mode: Query mode.
        prior: Cosine per nat of routing evidence.
        report_alive: Called after each task.
    """
    searches = list(
        label_results(encoder, tasks, profiles, mode=mode, prior=prior, report_alive=report_alive)
    )
    captions = sum(len(task.captions) for task in tasks)
    if captions < _MIN_CAPTIONS or sum(search.relevant.any() for search in searches) < _FOLDS:
        return None
    weights, bias = _fit(searches)
    predicted, outcomes = _cross_validate(searches)
    error = reliability(predicted, outcomes).error
    return ConfidenceModel(mode, prior, tuple(float(w) for w in weights), bias, captions, error)


def label_results(
    encoder: Encoder,
    tasks: Sequence[CalibrationTask],
    profiles: Vectors,
    *,
    mode: str,
    prior: float,
    report_alive: Callable[[], object] = lambda: None,
) -> Iterator[LabeledResults]:
    """Search for every caption in the library, in the library without its video, and without its task.

    Args:
        encoder: Query encoder of the release.
        tasks: All learned tasks, in order.
        profiles: Routing profiles ``[T, V]`` of the tasks, in the same order.
        mode: Query mode.
        prior: Cosine per nat of routing evidence.
        report_alive: Called after each task.
    """
    captions = [(text, t, video) for t, task in enumerate(tasks) for video, text in task.captions]
    if not captions:
        return
    texts = [text for text, *_ in captions]
    nats, token_counts = _evidence(encoder, texts, [task.task for task in tasks], profiles)
    silent = silent_tasks(profiles)
    filled, is_scored = nats.copy(), np.zeros(nats.shape, np.bool_)
    fill_silent(filled, silent)
    likeliest = np.argsort(-filled, axis=1, kind="stable")[:, : _OTHER_TASKS + 1]
    np.put_along_axis(is_scored, likeliest, True, axis=1)
    for number, (_, own, _) in enumerate(captions):
        is_scored[number, own] = True
    nearest_by_task = []
    for t, task in enumerate(tasks):
        rows = np.flatnonzero(is_scored[:, t])
        nearest_by_task.append(dict(_nearest_videos(task, encoder, texts, rows, mode)))
        report_alive()
    for number, (_, own, video) in enumerate(captions):
        for excluded_task, excluded_video in ((None, None), (None, video), (own, None)):
            searched = np.array([t for t in range(len(tasks)) if t != excluded_task], np.int64)
            if not len(searched):
                continue
            task_nats = nats[number, searched]
            # Tasks without captions take the evidence of the likeliest searched task; an excluded task must not count.
            fill_silent(task_nats[None], silent[searched])
            log_weights = task_nats - np.logaddexp.reduce(task_nats)
            scored = [(t, log) for t, log in zip(searched, log_weights, strict=True) if is_scored[number, t]]
            scores = np.concatenate([nearest_by_task[t][number][0] + prior * log for t, log in scored])
            ids = np.concatenate([nearest_by_task[t][number][1] for t, _ in scored])
            if excluded_video is not None:
                scores, ids = scores[ids != excluded_video], ids[ids != excluded_video]
            order = np.argsort(-scores, kind="stable")[:CONFIDENCE_DEPTH]
            features = confidence_features(
                scores[order], familiarity(task_nats, int(token_counts[number])), float(log_weights.max())
            )
            present = excluded_task is None and excluded_video is None
            yield LabeledResults(features, ids[order] == video, number, present)


def _fit(searches: Sequence[LabeledResults]) -> tuple[Floats, float]:
    features = np.concatenate([search.features for search in searches])
    relevant = np.concatenate([search.relevant for search in searches])
    shares = [1 - 2 * _ABSENT_SHARE if search.present else _ABSENT_SHARE for search in searches]
    counts = np.repeat(shares, [len(search.features) for search in searches])
    return fit_logistic(features, relevant, counts, RESULT_FEATURES)


def _cross_validate(searches: Sequence[LabeledResults]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Predicted probability and relevance of the first result of each search of the whole library.

    Each prediction is by a model that was fitted without the caption.
    """
    predicted: list[float] = []
    outcomes: list[bool] = []
    for fold in range(_FOLDS):
        weights, bias = _fit([search for search in searches if search.caption % _FOLDS != fold])
        tested = [s for s in searches if s.caption % _FOLDS == fold and s.present and len(s.features)]
        predicted += [float(logistic(search.features[:1] @ weights + bias)[0]) for search in tested]
        outcomes += [bool(search.relevant[0]) for search in tested]
    return np.array(predicted), np.array(outcomes, np.bool_)


def _evidence(
    encoder: Encoder, texts: Sequence[str], tasks: Sequence[str], profiles: Vectors
) -> tuple[Floats, Ids]:
    """Evidence ``[n, T]`` in nats of each text for each task with captions, and number of tokens ``[n]``."""
    nats, token_counts = [], []
    for chunk in chunks(texts, _TEXTS):
        presence = encoder.token_presence(chunk)
        further = encoder.routing_evidence(encoder.tokenize(chunk), tasks)
        nats.append(presence @ profiles.T + (0 if further is None else further))
        token_counts.append((presence > 0).sum(axis=1))
    return np.concatenate(nats).astype(np.float64), np.concatenate(token_counts)


def _nearest_videos(
    task: CalibrationTask, encoder: Encoder, texts: Sequence[str], rows: Ids, mode: str
) -> Iterator[tuple[int, tuple[Floats, Ids]]]:
    """Row of each of some texts, with cosines and ids of the task's nearest videos, one more than the model uses."""
    if not len(rows):
        return
    queries = encoder.encode([texts[row] for row in rows], [task.task], mode)[:, 0]
    cosines = queries @ task.shard.vectors(task.ids).T
    order = np.argsort(-cosines, axis=1, kind="stable")[:, : CONFIDENCE_DEPTH + 1]
    for row, scores, nearest in zip(rows, np.take_along_axis(cosines, order, axis=1), order, strict=True):
        yield int(row), (scores.astype(np.float64), task.ids[nearest])
