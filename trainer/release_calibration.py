"""Calibrate a release: fit its confidence model to captions that no encoder has learned.

A release is calibrated when it is learned (:func:`calibrate_release`). An append extends the domain's shard and routing
profile, so the model is then fitted again for the same release (:func:`fit_library_confidence`).

Captions of training videos are cross-fitted: a task's videos are divided into folds, and the method learns the task
again without each fold, which takes a closed-form method little time, since it keeps the features. The captions of the
fold are then searched in the task. Their results are as good as those of new captions (Stone, "Cross-validatory choice
and assessment of statistical predictions", Journal of the Royal Statistical Society B, 1974), so few captioned videos
suffice to calibrate a release. In the same way, the fold of a task is searched to measure recall. A method that takes
gradient steps is not trained twice: only the last epoch trains on the fold, so the state before it is searched.

No encoder has learned from the captions of appended videos, but the routing profile that searches use contains them. An
appended caption's evidence for its own task is therefore computed with its tokens counted once less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from index.arrays import Ids, Vectors
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import (
    MEASURED,
    CalibrationCaption,
    MeasuredFold,
    ReleaseState,
    caption_digest,
)
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import ConfidenceModel
from models.routing.routing_profiles import count_pieces, profile_values, token_profile
from trainer.evaluation.calibration_searches import NEAREST_VIDEOS, CalibrationTask, unrelated_texts
from trainer.evaluation.confidence_fitting import MAX_CAPTIONS, fit_confidence
from trainer.evaluation.gallery import ShardVectors
from trainer.evaluation.part_comparison import find_candidates, retype
from trainer.methods import Method
from trainer.published_library import Library, ReleasesByTask
from trainer.task_data import Clip, TaskData, draw_sample, vector_ids
from trainer.task_pipeline import readable_shards

MAX_TASK_CAPTIONS = 64
MAX_FOLD_VECTORS = 512  # of queries, and of videos; bounds the standard error of a recall by 2.2 %
MAX_GALLERY = 25_000  # videos of a task that captions are searched in
_FOLDS = 5
_PART_TASKS = 128  # that the query encoder of such a model is opened with
_OTHER_VIDEOS = 10  # that were not learned, and are compared with a caption


class AppendedCaptions(NamedTuple):
    """Captions of a domain with appended videos: those learned, and vector IDs and captions of the appended ones."""

    learned: Sequence[str]
    appended: Sequence[tuple[int, str]]


class LibraryCaptions(NamedTuple):
    """Captions that calibrate a release, by task ID."""

    excluded: Mapping[str, Ids]  # vector IDs of videos that calibration must not find
    # vector IDs and captions of videos that were not learned
    unlearned: Mapping[str, Sequence[tuple[int, str]]]
    appended: Mapping[str, AppendedCaptions]  # captions of domains with appended videos


def calibrate_release(
    method: Method,
    task: TaskData,
    encoder: QueryEncoder,
    library: Library,
    state: ReleaseState,
    vectors: ShardVectors,
    captions: LibraryCaptions,
    *,
    report_alive: Callable[[], object],
) -> ReleaseState:
    """Add calibration captions, a confidence model (None with too few captions) and the fold to a release.

    The task is the new one as it was learned, the last of the release; some of its videos may be deleted since.
    """
    previous = library.continued_release(state.tasks[:-1])
    earlier = library.release(previous).calibration if previous else ()
    deleted = {clip.vector_id for clip in task.clips} - set(vectors.ids.tolist())
    new = cross_fit(method, task, encoder, library.pinned_release, deleted=deleted, report_alive=report_alive)
    calibration = draw_sample([*earlier, *new], MAX_CAPTIONS)
    confidence = fit_library_confidence(
        encoder,
        library,
        replace(state, calibration=calibration),
        (task.task_id, vectors),
        captions,
        report_alive=report_alive,
    )
    state = replace(state, confidence=confidence, calibration=calibration)
    return add_fold(state, method, task, encoder, library.pinned_release, deleted=deleted)


def fit_library_confidence(
    encoder: QueryEncoder,
    library: Library,
    state: ReleaseState,
    newest: tuple[str, ShardVectors],
    captions: LibraryCaptions,
    *,
    report_alive: Callable[[], object],
) -> ConfidenceModel | None:
    """Fit a confidence model to the library as searches see it; None with too few captions.

    It uses captions that were not learned, the release's calibration captions, and a sample of appended captions. As in
    searches, appended captions count in their domain's routing profile. ``newest`` is the task, and the vectors of its
    shard, which is not published yet.
    """
    tasks: list[CalibrationTask] = []
    rows: list[int] = []
    fitted = list(state.calibration)
    extended: dict[int, tuple[Ids, Vectors]] = {}
    for position, identifier, shard in readable_shards(library, state, *newest):
        ids = shard.ids
        if identifier in captions.excluded:
            ids = np.setdiff1d(ids, captions.excluded[identifier])
        texts: tuple[tuple[int, str], ...] = ()
        if identifier in captions.unlearned:
            present = set(ids.tolist())
            texts = tuple(each for each in captions.unlearned[identifier] if each[0] in present)
        if identifier in captions.appended:
            profile, appended = calibrate_appended(
                encoder, identifier, shard, ids, *captions.appended[identifier]
            )
            extended[len(tasks)] = profile.nonzero()[0], profile[profile > 0]
            fitted += appended
        tasks.append(CalibrationTask(identifier, shard, ids, texts))
        rows.append(position)
        report_alive()
    return fit_confidence(
        encoder,
        tasks,
        state.profiles.select(rows).replace_rows(extended),
        prior=DEFAULT_PRIOR,
        fitted=draw_sample(fitted, MAX_CAPTIONS),
        unrelated=unrelated_texts(),
        report_alive=report_alive,
    )


# -- captions without their videos ------------------------------------------------------------------------------------


def cross_fit(
    method: Method,
    task: TaskData,
    encoder: QueryEncoder,
    read_pinned: Callable[[str], ReleaseState],
    *,
    deleted: Set[int] = frozenset(),
    report_alive: Callable[[], object] = lambda: None,
) -> tuple[CalibrationCaption, ...]:
    """Search for captions of training videos with a solution that was learned without these videos.

    Neither test videos nor those ``deleted`` since are searched. Without two videos, or if gradient steps were taken
    with all of them, there are no captions.
    """
    videos = task.observed(method.config.max_videos)
    gallery = _sample_gallery(task, videos, deleted)
    results: list[CalibrationCaption] = []
    for part, left_out in _learn_parts(method, videos):
        searched = [clip for clip in left_out if clip.vector_id not in deleted]
        all_captions = [(clip.vector_id, text) for clip in searched for text in clip.captions]
        captions = draw_sample(all_captions, MAX_TASK_CAPTIONS - len(results))
        if captions:
            unlearned = [clip.vector_id for clip in searched]
            results += _search_fold(part, task.task_id, captions, gallery, unlearned, encoder, read_pinned)
        report_alive()
        if len(results) >= MAX_TASK_CAPTIONS:
            break
    return tuple(results)


def _learn_parts(method: Method, videos: Sequence[Clip]) -> Iterator[tuple[Method, list[Clip]]]:
    """Yield models trained without a fold, each with the videos of its fold."""
    if method.before_last_epoch:
        yield method.before_last_epoch, [clip for clip in videos if clip.split == "fold"]
        return
    order = np.random.default_rng(0).permutation(len(videos))
    for fold in range(min(_FOLDS, len(videos)) if len(videos) > 1 else 0):
        left_out = np.sort(order[fold::_FOLDS]).tolist()
        learned = np.sort(np.delete(order, slice(fold, None, _FOLDS))).tolist()
        part = method.refit(learned, [text for row in learned for text in videos[row].captions])
        if part is None:
            return
        yield part, [videos[row] for row in left_out]


def _sample_gallery(task: TaskData, videos: Sequence[Clip], deleted: Set[int]) -> list[Clip]:
    """Select the videos to search: all except test videos or, of a large task, the learned ones and a sample."""
    gallery = [clip for clip in task.clips if clip.split != "test" and clip.vector_id not in deleted]
    if len(gallery) <= MAX_GALLERY:
        return gallery
    learned = {clip.vector_id for clip in videos}
    others = [clip for clip in gallery if clip.vector_id not in learned]
    chosen = {clip.vector_id for clip in draw_sample(others, max(0, MAX_GALLERY - len(learned)))} | learned
    return [clip for clip in gallery if clip.vector_id in chosen]


def _search_fold(
    part: Method,
    task: str,
    captions: Sequence[tuple[int, str]],
    gallery: Sequence[Clip],
    left_out: Sequence[int],
    encoder: QueryEncoder,
    read_pinned: Callable[[str], ReleaseState],
) -> Iterator[CalibrationCaption]:
    """Search the task for captions whose videos were not learned; ``left_out`` are all such videos with captions."""
    state, queries = _open_part(part, task, encoder, read_pinned)
    ids, vectors = vector_ids(gallery), part.embed_videos(gallery)
    columns = {int(video): column for column, video in enumerate(ids)}
    texts = [text for _, text in captions]
    profile = state.profiles.to_dense([len(state.profiles) - 1])[0]
    presence = queries.piece_presence(texts)
    evidence = queries.routing_evidence(queries.tokenize(texts), [task])
    retyped = retype(texts)
    encoded = queries.encode([*texts, *(query for query, _ in retyped)], [task], queries.modes[-1])[:, 0]
    cosines, of_retyped = np.split(encoded @ vectors.T, 2)
    rows = [columns[video] for video, _ in captions]
    candidates = [*find_candidates(retyped, rows, of_retyped, [clip.captions for clip in gallery])]
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :NEAREST_VIDEOS]
    unlearned = [columns[video] for video in left_out]
    for row, (video, text) in enumerate(captions):
        tokens = presence[row] > 0
        yield CalibrationCaption(
            task=task,
            video=video,
            text=text,
            words=float(presence[row] @ profile),
            captions=0.0 if evidence is None else float(evidence[row, 0]),
            coverage=float((profile[tokens] > 0).mean()) if tokens.any() else 0.0,
            score=float(cosines[row, columns[video]]),
            ids=tuple(ids[nearest[row]].tolist()),
            cosines=tuple(cosines[row, nearest[row]].tolist()),
            others=tuple(
                np.roll(cosines[row, unlearned], -left_out.index(video))[1 : _OTHER_VIDEOS + 1].tolist()
            ),
            retyped=candidates[row],
        )


def add_fold(
    state: ReleaseState,
    method: Method,
    task: TaskData,
    encoder: QueryEncoder,
    read_pinned: Callable[[str], ReleaseState],
    *,
    deleted: Set[int] = frozenset(),
) -> ReleaseState:
    """Measure the fold of a release's newest task by a model trained without it, and add the fold to the release.

    Arguments are those of :func:`cross_fit`.
    """
    remaining = [clip for clip in task.clips if clip.vector_id not in deleted]
    captioned = [clip for clip in remaining if clip.split == "fold" and clip.captions]
    fold = draw_sample(captioned, MAX_FOLD_VECTORS)
    if not fold or not method.is_trainable:  # the release itself has not learned it
        return state
    observed = task.observed(method.config.max_videos)
    rows = [row for row, clip in enumerate(observed) if clip.split != "fold"]
    part = method.before_last_epoch or method.refit(rows, task.without_fold().training_captions)
    if part is None:
        raise AssertionError(f"{method.name} learns a fold, but not a part of a task")
    solution, queries = _open_part(part, task.task_id, encoder, read_pinned)
    texts = [clip.captions[0] for clip in fold]
    others = draw_sample([clip for clip in remaining if clip.split != "fold"], MAX_FOLD_VECTORS - len(fold))
    videos = sorted([*fold, *others], key=lambda clip: clip.vector_id)
    profile = solution.profiles.part(len(solution.profiles) - 1, len(solution.profiles))
    measured = MeasuredFold(
        videos=vector_ids(fold),
        captions=np.array([caption_digest(text) for text in texts], np.int64),
        queries=queries.encode(texts, [task.task_id], queries.modes[-1])[:, 0].astype(np.float16),
        ids=vector_ids(videos),
        vectors=part.embed_videos(videos).astype(np.float16),
        tokens=profile.tokens.astype(np.int32),
        values=profile.values,
        routing={name: solution.tensors[name] for name in part.caption_tensors},
    )
    unlearned = {name: array for name, array in solution.tensors.items() if name.startswith(MEASURED)}
    return replace(state, tensors={**state.tensors, **unlearned}, fold=measured)


def _open_part(
    part: Method, task: str, encoder: QueryEncoder, read_pinned: Callable[[str], ReleaseState]
) -> tuple[ReleaseState, QueryEncoder]:
    """Make the release of a method that has learned a part of a task, and open its query encoder."""
    state = part.release()
    recent = replace(state, tasks=state.tasks[-_PART_TASKS:])  # only the last one is searched
    others = [other.task_id for other in recent.tasks if other.task_id != task]
    pinned = ReleasesByTask({task: state}, read_pinned)
    return state, open_query_encoder(part.backbone, recent, pinned, encoder, unchanged_tasks=others)


def calibrate_appended(
    encoder: QueryEncoder,
    task: str,
    shard: ShardVectors,
    searched: Ids,
    learned: Sequence[str],
    appended: Sequence[tuple[int, str]],
) -> tuple[Vectors, list[CalibrationCaption]]:
    """Search a task, in the videos that can be retrieved, for a sample of its appended captions; returns the routing
    profile ``[V]`` from the captions of training and appended videos, and the sample with its results.
    """
    counts = count_pieces([*learned, *(text for _, text in appended)])
    factor = encoder.profile_factor
    profile = token_profile(counts, factor)
    present = set(searched.tolist())
    sample = draw_sample([caption for caption in appended if caption[0] in present], MAX_TASK_CAPTIONS)
    if not sample:
        return profile, []
    texts = [text for _, text in sample]
    tokenized = encoder.tokenize(texts)
    evidence = encoder.routing_evidence(tokenized, [task])
    queries = encoder.encode(texts, [task], encoder.modes[-1])[:, 0]
    cosines = (queries @ shard.vectors(searched).T).astype(np.float64)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :NEAREST_VIDEOS]
    columns = {int(video): column for column, video in enumerate(searched)}
    results = []
    for row, (video, text) in enumerate(sample):
        words = tokenized[row].pieces
        others = counts[words] - 1  # leave this caption out
        word_evidence = profile_values(others, counts.sum() - len(words), len(counts), factor)
        results.append(
            CalibrationCaption(
                task=task,
                video=video,
                text=text,
                words=float(word_evidence.sum()),
                captions=0.0 if evidence is None else float(evidence[row, 0]),
                coverage=float((others > 0).mean()) if len(words) else 0.0,
                score=float(cosines[row, columns[video]]),
                ids=tuple(searched[nearest[row]].tolist()),
                cosines=tuple(cosines[row, nearest[row]].tolist()),
            )
        )
    return profile, results
