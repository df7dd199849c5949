"""Calibrate a release: fit its confidence model to captions that no encoder has learned.

A release is calibrated when it is learned (:func:`calibrate_release`). An append extends the domain's shard and routing
profile, so the model is then fitted again for the same release (:func:`fit_library_confidence`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from index.arrays import Ids
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import ConfidenceModel
from trainer.evaluation.calibration_searches import CalibrationTask, unrelated_texts
from trainer.evaluation.confidence_fitting import MAX_CAPTIONS, fit_confidence
from trainer.evaluation.cross_fitting import add_fold, calibrate_appended, cross_fit
from trainer.evaluation.gallery import ShardVectors, WholeVideoShard
from trainer.methods import Method
from trainer.published_library import Library
from trainer.task_data import TaskData, draw_sample
from trainer.task_pipeline import readable_shards


@dataclass(frozen=True)
class AppendedCaptions:
    """Captions of a task with appended videos.

    Attributes:
        learned: Captions of its training videos.
        appended: Vector IDs of its appended videos, each with a caption.
    """

    learned: Sequence[str]
    appended: Sequence[tuple[int, str]]


def calibrate_release(
    method: Method,
    task: TaskData,
    encoder: QueryEncoder,
    library: Library,
    state: ReleaseState,
    vectors: ShardVectors,
    excluded: Mapping[str, Ids],
    captions: Mapping[str, Sequence[tuple[int, str]]],
    appended: Mapping[str, AppendedCaptions],
    *,
    report_alive: Callable[[], object] = lambda: None,
) -> ReleaseState:
    """Add calibration captions, a confidence model and the fold to a release.

    With too few captions, the model is None.

    Args:
        task: The new task as it was learned; some videos may be deleted since.
        state: Release; its last task is the new one.
    """
    pinned = {**library.pinned_releases(state.tasks), task.task_id: state}
    previous = library.continued_release(state.tasks[:-1])
    earlier = library.release(previous).calibration if previous else ()
    deleted = {clip.vector_id for clip in task.clips} - set(vectors.ids.tolist())
    new = cross_fit(method, task, encoder, pinned, deleted=deleted, report_alive=report_alive)
    calibration = draw_sample([*earlier, *new], MAX_CAPTIONS)
    confidence = fit_library_confidence(
        encoder,
        library,
        replace(state, calibration=calibration),
        (task.task_id, vectors),
        excluded,
        captions,
        appended,
        report_alive=report_alive,
    )
    state = replace(state, confidence=confidence, calibration=calibration)
    return add_fold(state, method, task, encoder, pinned, deleted=deleted)


def fit_library_confidence(
    encoder: QueryEncoder,
    library: Library,
    state: ReleaseState,
    newest: tuple[str, ShardVectors],
    excluded: Mapping[str, Ids],
    captions: Mapping[str, Sequence[tuple[int, str]]],
    appended: Mapping[str, AppendedCaptions],
    *,
    report_alive: Callable[[], object] = lambda: None,
) -> ConfidenceModel | None:
    """Fit a confidence model to the library as searches see it; None with too few captions.

    It uses captions that were not learned, the release's calibration captions, and a sample of appended captions. As in
    searches, appended captions count in their domain's routing profile.

    Args:
        state: Release, with its calibration captions.
        newest: ID and vectors of the task whose shard is not published yet.
        excluded: Vector IDs of videos that calibration must not find, by task ID.
        captions: Vector IDs and captions of videos that were not learned, by task ID.
        appended: Captions of tasks with appended videos, by task ID.
    """
    tasks: list[CalibrationTask] = []
    rows: list[int] = []
    fitted = list(state.calibration)
    extended: dict[int, np.ndarray] = {}
    for position, identifier, shard in readable_shards(library, state, *newest):
        ids = np.setdiff1d(WholeVideoShard(shard).ids, excluded.get(identifier, ()))
        present = set(ids.tolist())
        texts = tuple((video, text) for video, text in captions.get(identifier, ()) if video in present)
        if identifier in appended:
            found = calibrate_appended(
                encoder,
                identifier,
                shard,
                ids,
                appended[identifier].learned,
                appended[identifier].appended,
            )
            extended[len(tasks)] = found.profile
            fitted += found.captions
        tasks.append(CalibrationTask(identifier, shard, ids, texts))
        rows.append(position)
        report_alive()
    profiles = state.profiles.to_dense(rows)
    for row, profile in extended.items():
        profiles[row] = profile
    return fit_confidence(
        encoder,
        tasks,
        profiles,
        prior=DEFAULT_PRIOR,
        fitted=draw_sample(fitted, MAX_CAPTIONS),
        unrelated=unrelated_texts(),
        report_alive=report_alive,
    )
