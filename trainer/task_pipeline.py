"""Stages of learning, from a task's clips to a release, a shard and a recall row, without service and broker.

::

    task ──train_task──▶ method ──index_task──▶ release + shard ──evaluate_release──▶ row of the recall matrix
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Vectors, find_ids
from index.files.manifest_format import ReleaseEntry, SegmentEntry
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder, split_training_state
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_files import (
    MAX_TESTED_OLDER_TASKS,
    SELF_TEST_ANCHORS,
    SELF_TEST_TEXTS,
    SelfTest,
    write_release,
    write_self_test,
    write_training_state,
)
from models.releases.release_state import MeasuredFold, ReleaseState
from trainer.evaluation.gallery import (
    FoldShard,
    Gallery,
    Query,
    RankSummary,
    ShardVectors,
    WholeVideoShard,
    rank_by_id,
    summarize,
)
from trainer.evaluation.recall_row import RecallRow, evaluate_row, select_measured_tasks
from trainer.methods import Method, can_continue, start_method
from trainer.published_library import Library
from trainer.task_data import Clip, StoredVectors, TaskData, draw_sample, vector_ids
from trainer.training_checkpoint import CheckpointStore, run_identity
from trainer.training_loop import TrainingProgress, learn_task
from trainer.training_replicas import training_group
from trainer.video_embedding import MemoryShard

_MAX_GATE_QUERIES = 1000

IndexingStage = Literal["indexing", "calibrating", "writing"]


@dataclass(frozen=True)
class WrittenRelease:
    """A task's release and shard, written to the store but not yet published."""

    state: ReleaseState
    release: ReleaseEntry
    shard: SegmentEntry
    # vectors of the shard, one per whole video, as the store rounds them; None if they cannot be read
    vectors: ShardVectors | None
    moments: tuple[SegmentEntry, ...] = ()  # manifest entries of the segments with moment vectors
    training: ReleaseEntry | None = None  # folder of the state that only training needs, if it has any


@dataclass(frozen=True)
class HeldOutVideos:
    """A task's held-out videos, or its fold, with the first caption of each; more would cost time and add little."""

    ids: Ids
    queries: tuple[Query, ...]

    @classmethod
    def from_captions(
        cls, videos: Sequence[tuple[int, Sequence[str]]], max_queries: int | None = None
    ) -> HeldOutVideos:
        """Construct from vector IDs and captions, with at most ``max_queries``, always the same sample; None: all."""
        queries = [Query(captions[0], vector_id) for vector_id, captions in videos if captions]
        return cls(
            ids=np.array([vector_id for vector_id, _ in videos], np.int64),
            queries=tuple(queries) if max_queries is None else draw_sample(queries, max_queries),
        )

    def restricted_to(self, ids: Ids) -> HeldOutVideos:
        """Keep only the videos among ``ids``, which excludes deleted ones from evaluation."""
        remaining = self.ids[find_ids(np.sort(ids), self.ids)[0]]
        present = set(remaining.tolist())
        return HeldOutVideos(remaining, tuple(query for query in self.queries if query.vector_id in present))

    def measured_by(self, fold: MeasuredFold | None) -> HeldOutVideos:
        """Keep only what a fold contains, without edited captions; everything if there is no fold."""
        if fold is None:
            return self
        queries = tuple(query for query in self.queries if fold.has_caption(query.vector_id, query.text))
        return HeldOutVideos(self.ids, queries).restricted_to(fold.videos)


def prepare_method(
    backbone: Backbone, library: Library, task: TaskData, name: str, settings: Mapping[str, Any]
) -> Method:
    """Construct the method that learns a task, in the state of the newest release that it can continue.

    Releases of the same method come first. If the method can continue none, it starts another lineage. An upgrade does
    not continue a release that has learned the task before.

    A task without training captions is only indexed: with the newest release of the backbone as it is, whatever method
    the task names, or with the unchanged backbone if it has no release. Raises MethodError for an unknown method or
    setting.
    """
    newest = [
        lineage.releases[0]
        for lineage in library.lineages
        if all(learned.task_id != task.task_id for learned in lineage.tasks)  # before its upgrade
    ]
    descriptions = {identifier: library.description(identifier) for identifier in newest}
    if not task.pairs:
        for identifier, release in descriptions.items():
            if can_continue(release.method, backbone, release.config, release):
                return start_method(release.method, backbone, release.config, library.release(identifier))
        return start_method("zero_shot", backbone, {}, None)
    for identifier in sorted(newest, key=lambda release_id: descriptions[release_id].method != name):
        if can_continue(name, backbone, settings, descriptions[identifier]):
            return start_method(name, backbone, settings, library.release(identifier))
    return start_method(name, backbone, settings, None)


def train_task(
    method: Method,
    library: Library,
    task: TaskData,
    read_training: Callable[[Library], Mapping[str, Ids]],
    *,
    checkpoints: Path,
    fencing_token: int,
    report: Callable[[TrainingProgress], None],
    processes: int = 1,
) -> bool:
    """Train a method on a task; returns whether any weights were trained. If it takes gradient steps, these use stored
    vectors of each earlier task's training videos, which are read by task ID.

    The fencing token is that of the claim, see :class:`~trainer.training_checkpoint.CheckpointStore`. Errors are those
    of :func:`trainer.training_loop.fit` and :func:`trainer.training_replicas.training_group`.
    """
    memory = StoredVectors()
    if not method.is_closed_form:
        learned = {served.task_id for served in method.learned_tasks if library.serves(served)}
        training = read_training(library)
        memory = library.stored_vectors({key: ids for key, ids in training.items() if key in learned})
    previous = library.continued_release(method.learned_tasks)
    run = run_identity(
        task.task_id,
        previous,
        method.backbone.fingerprint,
        method.name,
        method.config.model_dump(mode="json"),
        [(pair.clip.vector_id, pair.clip.frames_path.name, pair.caption) for pair in task.pairs],
    )
    release = library.release(previous) if previous else None
    with training_group(method, release, task, processes) as group:
        learn_task(
            method,
            task,
            memory,
            report=report,
            checkpoints=CheckpointStore(checkpoints, run, fencing_token),
            group=group,
        )
    return method.is_trainable and bool(task.pairs)


def index_task(
    method: Method,
    library: Library,
    task: TaskData,
    *,
    calibrate: Callable[[QueryEncoder, ReleaseState, ShardVectors], ReleaseState] = (
        lambda encoder, state, vectors: state
    ),
    moments: Iterable[tuple[Ids, Vectors]] = (),
    embed: Callable[[], Vectors] | None = None,
    report: Callable[[IndexingStage, int], None] = lambda stage, done: None,
    report_alive: Callable[[], None] = lambda: None,
) -> WrittenRelease:
    """Embed each of the task's videos once, and write the release with its self-test queries, and the shard.

    Nothing is published yet.

    Args:
        calibrate: Adds the calibration to the release, from its query encoder and the task's vectors.
        moments: IDs and vectors of each moment segment; read after the whole videos are embedded.
        embed: Embeds the task's videos as vectors ``[n, dim]``; by default they are embedded here.
        report: Called at the beginning of each stage with 0, then with the number of embedded videos.

    Raises:
        FramesMissing: The frames of a video are gone.
    """
    report("indexing", 0)
    store = library.store
    ids = vector_ids(task.clips)
    vectors = embed() if embed else method.embed_videos(task.clips, report=partial(report, "indexing"))
    report("calibrating", 0)
    state = method.release()
    encoder = library.query_encoder(method.backbone, state, {task.task_id: state})
    state = calibrate(encoder, state, MemoryShard(ids, vectors))
    served, tensors = split_training_state(state)
    training: ReleaseEntry | None = None
    if tensors:
        with store.staging() as staged:
            write_training_state(staged, tensors)
            training = store.adopt_release(staged)
    with store.staging() as staged:
        write_release(staged, served, parent=library.parent_release(state))
        write_self_test(staged, _self_test(encoder, library, state, ids=ids, vectors=vectors))
        release = store.adopt_release(staged)
    library.record_release(task.task_id, release.id)
    queries = cache(partial(_gate_queries, encoder, method, state, task))

    def write(ids: Ids, vectors: Vectors) -> SegmentEntry:
        return store.write_shard(
            task=task.task_id,
            release=release.id,
            fingerprint=state.fingerprint,
            ids=ids,
            vectors=vectors,
            queries=queries() if len(ids) > store.policy.exact_rows else None,
            heartbeat=report_alive,
        )

    report("writing", 0)
    shard = write(ids, vectors)
    # Separate segments keep the bytes of the shard the same as without moments.
    segments = tuple(write(*segment) for segment in moments)
    # Read back, because the store rounds vectors, and evaluation must see what searches see.
    return WrittenRelease(state, release, shard, store.open([shard]), moments=segments, training=training)


def readable_shards(
    library: Library, state: ReleaseState, newest: str, vectors: ShardVectors | None
) -> Iterator[tuple[int, str, WholeVideoShard]]:
    """Yield the row, ID and whole videos of each task with a readable shard; ``vectors`` belong to the newest one."""
    for row, task in enumerate(state.tasks):
        if task.task_id == newest:
            videos = None if vectors is None else WholeVideoShard(vectors)
        else:
            videos = library.whole_videos(task.task_id) if library.serves(task) else None
        if videos is not None:
            yield row, task.task_id, videos


def _self_test(
    encoder: QueryEncoder, library: Library, state: ReleaseState, ids: Ids, vectors: npt.NDArray[np.float32]
) -> SelfTest:
    served = [task for task in state.tasks[:-1] if library.serves(task)]
    older = {task.task_id: library.shard(task.task_id) for task in served[-MAX_TESTED_OLDER_TASKS:]}
    return make_self_test(
        encoder,
        state.tasks[-1].task_id,
        ids,
        vectors.astype(np.float16).astype(np.float32),  # as the store rounds them
        older={task: shard for task, shard in older.items() if shard is not None and len(shard.ids)},
    )


def _gate_queries(
    encoder: QueryEncoder, method: Method, state: ReleaseState, task: TaskData
) -> npt.NDArray[np.float32] | None:
    """Compute the vectors ``[n, dim]`` of captions that were not learned, for the recall gate of a large shard.

    Those of the fold come from the solution without it; the others belong to videos that were held out, or exceeded
    ``max_videos``. A learned caption is nearer to its video than a new query is, so without other captions, the result
    is None, and the shard is searched exactly.
    """
    queries = [] if state.fold is None else [state.fold.queries.astype(np.float32)]
    unlearned = [clip for clip in task.clips if clip.vector_id not in method.learned_videos]
    captions = [text for clip in unlearned for text in clip.captions]
    if texts := draw_sample(captions, _MAX_GATE_QUERIES - sum(map(len, queries))):
        queries.append(encoder.encode(texts, [task.task_id])[:, 0])
    return np.concatenate(queries) if queries else None


def evaluate_release(
    backbone: Backbone,
    library: Library,
    written: WrittenRelease,
    held_out: Mapping[str, HeldOutVideos],
    *,
    report: Callable[[float], None] = lambda share: None,
) -> RecallRow:
    """Measure a written release's row of the recall matrix, with the figures that a library user experiences.

    Tasks whose shards cannot be read are omitted, and tasks without ``held_out`` videos have no figures. In a large
    library, only a sample of tasks is measured; see :mod:`trainer.evaluation.recall_row`. A task that has learned its
    queries is measured with the fold of its release.
    """
    state = written.state.as_measured()
    replaced = {written.shard.task: state}
    galleries: list[Gallery] = []
    rows: list[int] = []
    no_videos = HeldOutVideos.from_captions([])
    for row, task, shard in readable_shards(library, state, written.shard.task, written.vectors):
        held = held_out.get(task, no_videos).restricted_to(shard.ids)
        galleries.append(Gallery(task, shard, held.ids, held.queries))
        rows.append(row)
    measured = select_measured_tasks([gallery.task for gallery in galleries if gallery.queries])
    galleries = [
        gallery if gallery.task in measured else replace(gallery, queries=()) for gallery in galleries
    ]
    profiles = {}
    for column, (row, gallery) in enumerate(zip(rows, galleries, strict=True)):
        task = gallery.task
        fold = state.fold if task == written.shard.task else library.fold(task) if gallery.queries else None
        if fold is None:
            continue
        held = HeldOutVideos(gallery.held_out, gallery.queries).measured_by(fold)
        vectors = fold.query_vectors(np.array([query.vector_id for query in held.queries], np.int64))
        measured_shard = FoldShard(gallery.shard, fold)
        galleries[column] = Gallery(task, measured_shard, held.ids, held.queries, query_vectors=vectors)
        pinned = replaced.get(task) or library.pinned_release(task)
        replaced[task] = replace(pinned, tensors={**pinned.tensors, **fold.routing})
        if task not in library.uncounted:
            profiles[row] = fold.tokens, fold.values
    encoder = library.query_encoder(backbone, state, replaced)
    return evaluate_row(encoder, galleries, state.profiles.replace_rows(profiles).select(rows), report=report)


def zero_shot_recall(
    backbone: Backbone,
    clips: Sequence[Clip],
    held_out: HeldOutVideos,
    *,
    report: Callable[[int], None] = lambda done: None,
) -> RankSummary | None:
    """Measure the unchanged backbone's recall on a task's held-out videos, local gallery, None without queries; raise
    FramesMissing if a video's frames are gone.
    """
    if not held_out.queries:
        return None
    frozen = start_method("zero_shot", backbone, {}, None)
    wanted = set(held_out.ids.tolist())
    chosen = [clip for clip in clips if clip.vector_id in wanted]
    videos = frozen.embed_videos(chosen, report=report)
    encoder = open_query_encoder(backbone, frozen.release(), {})
    texts = encoder.encode_with_backbone([query.text for query in held_out.queries])
    truth = [query.vector_id for query in held_out.queries]
    return summarize(rank_by_id(texts @ videos.T, [clip.vector_id for clip in chosen], truth))


def make_self_test(
    encoder: QueryEncoder, newest: str, ids: Ids, vectors: Vectors, older: Mapping[str, ShardVectors]
) -> SelfTest:
    """Search with all self-test texts in the newest task, and with one in each of the latest older tasks, oldest first.

    This costs one scan of the new vectors ``[G, dim]``, as they are stored, and reads a few rows of each older shard.
    """
    mode = encoder.modes[-1]
    queries = encoder.encode(SELF_TEST_TEXTS, [newest], mode)[:, 0]
    scores = queries @ vectors.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :SELF_TEST_ANCHORS]
    results = [(ids[rows], scores[i, rows]) for i, rows in enumerate(best)]
    texts, tasks = list(SELF_TEST_TEXTS), [newest] * len(SELF_TEST_TEXTS)
    latest = list(older)[-MAX_TESTED_OLDER_TASKS:]
    if latest:
        older_queries = encoder.encode(SELF_TEST_TEXTS[:1], latest, mode)[0]
        queries = np.concatenate([queries, older_queries])
        texts, tasks = [*texts, *SELF_TEST_TEXTS[:1] * len(latest)], [*tasks, *latest]
        for task, query in zip(latest, older_queries, strict=True):
            shard_ids = older[task].ids
            rows = np.linspace(0, len(shard_ids) - 1, SELF_TEST_ANCHORS).astype(np.int64)
            anchors = shard_ids[np.unique(rows)]
            results.append((anchors, older[task].vectors(anchors) @ query))
    anchor_ids = np.full((len(results), SELF_TEST_ANCHORS), -1, np.int64)
    anchor_scores = np.zeros((len(results), SELF_TEST_ANCHORS), np.float32)
    for row, (anchors, cosines) in enumerate(results):
        anchor_ids[row, : len(anchors)] = anchors
        anchor_scores[row, : len(anchors)] = cosines
    return SelfTest(mode, texts, tasks, queries.astype(np.float16), ids=anchor_ids, scores=anchor_scores)
