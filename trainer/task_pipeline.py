"""From a task's clips to a release and a shard, and to what they are worth. No service, no broker.

::

    task ──learn──▶ method ──index_task──▶ release + shard ──measure──▶ row of the recall matrix
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index.files.manifest_format import ReleaseEntry, SegmentEntry
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.query_encoder import QueryEncoder
from models.releases.probe_queries import MAX_PROBED_OLDER_TASKS, ProbeQueries, write_probes
from models.releases.release_files import write_release
from models.releases.release_state import ReleaseState
from models.routing.confidence_model import ConfidenceModel
from models.routing.defaults import DEFAULT_PRIOR
from trainer.evaluation.confidence_fitting import CalibrationTask, fit_confidence
from trainer.evaluation.gallery import Gallery, Query, ShardVectors, WholeVideoShard
from trainer.evaluation.rank_ledger import RankLedger
from trainer.evaluation.recall_row import RecallRow, compute_recall, evaluate_row
from trainer.evaluation.retrieval_metrics import Recall
from trainer.methods import Method, start_method
from trainer.probe_generation import make_probes
from trainer.published_library import Library
from trainer.task_data import Clip, TaskData
from trainer.training_checkpoint import CheckpointStore, run_identity
from trainer.training_loop import TrainingProgress, learn_task
from trainer.video_embedding import MemoryShard, embed_clips

__all__ = [
    "HeldOutVideos",
    "WrittenRelease",
    "calibrate_release",
    "evaluate_release",
    "index_task",
    "prepare_method",
    "train_task",
    "zero_shot_recall",
]

_GATE_QUERIES = 1000

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WrittenRelease:
    """What a task has put into the store.

    Attributes:
        state: the release after the task.
        release, shard: its entry, and that of the task's shard.
        vectors: of the shard: one for each whole video.
        moments: entries of the segments that hold the vectors of moments.
    """

    state: ReleaseState
    release: ReleaseEntry
    shard: SegmentEntry
    vectors: ShardVectors
    moments: tuple[SegmentEntry, ...] = ()


@dataclass(frozen=True)
class HeldOutVideos:
    """The videos of a task that it is measured with.

    Attributes:
        ids: vector ids of its held-out videos.
        queries: the first caption of each of them that has one; more would cost more and say little else.
    """

    ids: Ids
    queries: tuple[Query, ...]

    @classmethod
    def from_captions(cls, videos: Sequence[tuple[int, Sequence[str]]]) -> HeldOutVideos:
        """From vector ids and captions."""
        return cls(
            ids=np.array([vector_id for vector_id, _ in videos], np.int64),
            queries=tuple(Query(captions[0], vector_id) for vector_id, captions in videos if captions),
        )

    def within(self, ids: Ids) -> HeldOutVideos:
        """Those that are among these ids. Where some were deleted, there is less to measure."""
        left = np.isin(self.ids, ids)
        if left.all():
            return self
        known = set(self.ids[left].tolist())
        return HeldOutVideos(
            self.ids[left], tuple(query for query in self.queries if query.vector_id in known)
        )


def prepare_method(
    backbone: Backbone, library: Library, task: TaskData, name: str, settings: Mapping[str, Any]
) -> Method:
    """The method that is going to learn a task, as the newest release left it.

    A task without training captions is only indexed, with the newest release as it is, whatever its method;
    as the first of a library, with the backbone as it came.

    Raises:
        MethodError: unknown settings, or a release that the method cannot continue.
    """
    current = library.current
    if task.pairs:
        return start_method(name, backbone, settings, current)
    if current is None:
        return start_method("zero_shot", backbone, {}, None)
    return start_method(current.method, backbone, current.config, current)


def train_task(
    method: Method,
    library: Library,
    task: TaskData,
    training: Mapping[str, Ids],
    *,
    checkpoints: Path,
    fencing_token: int,
    report: Callable[[TrainingProgress], None],
) -> bool:
    """Learn a task; whether anything was trained.

    Args:
        training: for each earlier task, the vector ids of its training videos.
        checkpoints: folder of this task's checkpoints.
        fencing_token: whose they are; see :class:`~trainer.training_checkpoint.CheckpointStore`.
    """
    run = run_identity(
        task.task_id,
        library.manifest.release,
        method.backbone.fingerprint,
        method.name,
        method.config.model_dump(mode="json"),
        [(pair.clip.vector_id, pair.clip.frames_path.name, pair.caption) for pair in task.pairs],
    )
    losses = learn_task(
        method,
        task,
        library.stored_vectors(training),
        report=report,
        checkpoints=CheckpointStore(checkpoints, run, fencing_token),
    )
    return bool(losses)


def index_task(
    method: Method,
    library: Library,
    task: TaskData,
    *,
    calibrate: Callable[[QueryEncoder, ReleaseState, ShardVectors], ConfidenceModel | None] = (
        lambda encoder, state, vectors: None
    ),
    mode: Callable[[Sequence[str]], str] = lambda offered: offered[-1],
    moments: Iterable[tuple[Ids, Vectors]] = (),
    report: Callable[[int], None] = lambda done: None,
) -> WrittenRelease:
    """Embed every video of the task once, write the release with its probes, and the shard. Nothing is visible yet.

    Args:
        calibrate: tells from the release, its query encoder and the task's vectors how sure searches are:
            :func:`calibrate`.
        mode: which of the query modes that the release offers is going to be served; it is the one that is probed.
        moments: ids and vectors, segment by segment; drawn when the whole videos are embedded.
        report: called with the number of videos that are embedded.
    """
    store = library.store
    ids = np.array([clip.vector_id for clip in task.clips], np.int64)
    vectors = embed_clips(method.encode_videos, task.clips, report=report)
    state = method.release()
    encoder = open_query_encoder(method.backbone, state, {**library.pinned_releases(), task.task_id: state})
    state = replace(state, confidence=calibrate(encoder, state, MemoryShard(ids, vectors)))
    with store.staging() as staged:
        write_release(staged, state, parent=library.parent_release(state))
        write_probes(staged, _probes(encoder, library, state, ids, vectors, mode))
        release = store.adopt_release(staged)
    captions = cache(partial(_captions, encoder, task))

    def write(ids: Ids, vectors: Vectors) -> SegmentEntry:
        return store.write_shard(
            task=task.task_id,
            release=release.id,
            fingerprint=state.fingerprint,
            ids=ids,
            vectors=vectors,
            queries=captions() if len(ids) > store.policy.exact_rows else None,
            heartbeat=lambda: report(len(task.clips)),  # a lease lasts only while something is reported
        )

    shard = write(ids, vectors)
    # A segment of their own: the shard is the same, byte by byte, as without them.
    segments = tuple(write(*segment) for segment in moments)
    # Read back, because what is measured must be what is found: the store rounds.
    return WrittenRelease(state, release, shard, store.open([shard]), segments)


def calibrate_release(
    encoder: QueryEncoder,
    library: Library,
    state: ReleaseState,
    vectors: ShardVectors,
    held_out: Mapping[str, HeldOutVideos],
    captions: Mapping[str, Sequence[tuple[int, str]]],
    *,
    prior: float = DEFAULT_PRIOR,
    mode: Callable[[Sequence[str]], str] = lambda offered: offered[-1],
    report_alive: Callable[[], object] = lambda: None,
) -> ConfidenceModel | None:
    """How sure searches with a release are, before it is written; None where too little is there to tell.

    Args:
        encoder: of the release.
        state: the release, its task the last of its tasks.
        vectors: of the task.
        held_out: by task id; what releases are measured with is not calibrated with.
        captions: by task id, vector ids and texts of videos that were neither trained on nor held out.
        prior: cosine per nat of routing evidence.
        mode: the query mode that is going to be served, of those that the release offers.
        report_alive: called once for every task.
    """
    known: list[CalibrationTask] = []
    rows: list[int] = []
    for position, task, shard in _readable(library, state, state.tasks[-1].task_id, vectors):
        measured = held_out[task].ids if task in held_out else np.empty(0, np.int64)
        ids = np.setdiff1d(WholeVideoShard(shard).ids, measured)
        present = set(ids.tolist())
        texts = tuple((video, text) for video, text in captions.get(task, ()) if video in present)
        known.append(CalibrationTask(task, shard, ids, texts))
        rows.append(position)
    profiles = state.profiles.to_dense(rows)
    return fit_confidence(
        encoder, known, profiles, mode=mode(encoder.modes), prior=prior, report_alive=report_alive
    )


def _readable(
    library: Library, state: ReleaseState, newest: str, vectors: ShardVectors
) -> Iterator[tuple[int, str, ShardVectors]]:
    """Position, id and vectors of each task of a release whose shard can be read; those of the newest are at hand."""
    for position, task in enumerate(state.tasks):
        shard = vectors if task.task_id == newest else library.shard(task.task_id)
        if shard is not None:
            yield position, task.task_id, shard


def _probes(
    encoder: QueryEncoder,
    library: Library,
    state: ReleaseState,
    ids: Ids,
    vectors: npt.NDArray[np.float32],
    mode: Callable[[Sequence[str]], str],
) -> ProbeQueries:
    older = {task.task_id: library.shard(task.task_id) for task in state.tasks[:-1][-MAX_PROBED_OLDER_TASKS:]}
    return make_probes(
        encoder,
        state.tasks[-1].task_id,
        ids,
        vectors.astype(np.float16).astype(np.float32),  # as the store will keep them
        {task: shard for task, shard in older.items() if shard is not None and len(shard.ids)},
        mode(encoder.modes),
    )


def _captions(encoder: QueryEncoder, task: TaskData) -> npt.NDArray[np.float32] | None:
    """Query vectors of training captions ``[n, dim]``, evenly chosen: what a large shard must serve; None without."""
    texts = [pair.caption for pair in task.pairs]
    if not texts:
        return None
    return encoder.encode(texts[:: -(-len(texts) // _GATE_QUERIES)], [task.task_id])[:, 0]


def evaluate_release(
    backbone: Backbone,
    library: Library,
    written: WrittenRelease,
    held_out: Mapping[str, HeldOutVideos],
    *,
    prior: float = DEFAULT_PRIOR,
    modes: Callable[[Sequence[str]], Sequence[str]] = lambda offered: offered,
    ledger: RankLedger | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> RecallRow:
    """The row of the recall matrix of a release that was just written down, as far as a user meets it.

    Tasks whose shards cannot be read are left out.

    Args:
        held_out: by task id; what is not in it has nothing to measure.
        modes: which of the query modes that the release offers.
        prior, ledger: see :func:`trainer.evaluation.recall_row.evaluate_row`.
        report: called with the share that is done.
    """
    state = written.state
    pinned = {**library.pinned_releases(), written.shard.task: state}
    encoder = open_query_encoder(backbone, state, pinned)
    galleries: list[Gallery] = []
    rows: list[int] = []
    nothing = HeldOutVideos.from_captions([])
    for position, task, shard in _readable(library, state, written.shard.task, written.vectors):
        whole = WholeVideoShard(shard)
        held = held_out.get(task, nothing).within(whole.ids)
        galleries.append(Gallery(task, whole, held.ids, held.queries))
        rows.append(position)
    profiles = state.profiles.to_dense(rows)
    return evaluate_row(
        encoder,
        galleries,
        profiles,
        prior=prior,
        modes=modes(encoder.modes),
        full=False,  # what a user meets, and not what methods are compared by
        ledger=ledger,
        report=report,
    )


def zero_shot_recall(
    backbone: Backbone,
    clips: Sequence[Clip],
    held_out: HeldOutVideos,
    *,
    report: Callable[[int], None] = lambda done: None,
) -> Recall | None:
    """Recall of the backbone as it came on a task's held-out videos, local gallery; None without queries."""
    if not held_out.queries:
        return None
    frozen = start_method("zero_shot", backbone, {}, None)
    wanted = {int(i) for i in held_out.ids}
    chosen = [clip for clip in clips if clip.vector_id in wanted]
    videos = embed_clips(frozen.encode_videos, chosen, report=report)
    texts = open_query_encoder(backbone, frozen.release(), {}).encode_with_backbone(
        [q.text for q in held_out.queries]
    )
    return compute_recall(
        texts, [q.vector_id for q in held_out.queries], videos, [clip.vector_id for clip in chosen]
    )
