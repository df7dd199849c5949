"""From a task's clips to a release and a shard, and to what they are worth. No service, no broker.

::

    task ──learn──▶ method ──lay_down──▶ release + shard ──measure──▶ row of the recall matrix
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from index import ReleaseEntry, ShardEntry
from models.backbone import Backbone
from models.query_encoder import QueryEncoder
from models.release import ReleaseState, write_release
from models.routing import PRIOR
from trainer.checkpoint import Checkpoints, identity
from trainer.data import Clip, TaskData
from trainer.embedding import embed
from trainer.evaluate.matrix import Gallery, Ledger, Query, Row, ShardVectors, evaluate_row, recall_of
from trainer.evaluate.metrics import Recall
from trainer.library import Library
from trainer.loop import Progress, learn_task
from trainer.methods import Method, start_method

__all__ = ["HeldOut", "Laid", "lay_down", "learn", "measure", "prepare", "zero_shot_recall"]

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Laid:
    """What a task has put into the store.

    Attributes:
        state: the release after the task.
        release, shard: its entry, and that of the task's shard.
        vectors: of the shard.
    """

    state: ReleaseState
    release: ReleaseEntry
    shard: ShardEntry
    vectors: ShardVectors


@dataclass(frozen=True)
class HeldOut:
    """The videos of a task that it is measured with.

    Attributes:
        ids: vector ids of its held-out videos.
        queries: the first caption of each of them that has one; more would cost more and say little else.
    """

    ids: Ids
    queries: tuple[Query, ...]

    @classmethod
    def of(cls, videos: Sequence[tuple[int, Sequence[str]]]) -> HeldOut:
        """From vector ids and captions."""
        return cls(
            ids=np.array([vector_id for vector_id, _ in videos], np.int64),
            queries=tuple(Query(captions[0], vector_id) for vector_id, captions in videos if captions),
        )


def prepare(
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


def learn(
    method: Method,
    library: Library,
    task: TaskData,
    training: Mapping[str, Ids],
    *,
    checkpoints: Path,
    report: Callable[[Progress], None],
) -> bool:
    """Learn a task; whether anything was trained.

    Args:
        training: for each earlier task, the vector ids of its training videos.
        checkpoints: folder of this task's checkpoints.
    """
    run = identity(
        task.task_id,
        library.manifest.release,
        method.backbone.fingerprint,
        method.name,
        method.config.model_dump(mode="json"),
        [(pair.clip.vector_id, pair.clip.frames_path.name, pair.caption) for pair in task.pairs],
    )
    losses = learn_task(
        method, task, library.memory(training), report=report, checkpoints=Checkpoints(checkpoints, run)
    )
    return bool(losses)


def lay_down(
    method: Method, library: Library, task: TaskData, *, report: Callable[[int], None] = lambda done: None
) -> Laid:
    """Write the release, embed every video of the task once, and write its shard. Nothing is visible yet.

    Args:
        report: called with the number of videos that are embedded.
    """
    store = library.store
    state = method.release()
    with store.staging() as staged:
        write_release(staged, state)
        release = store.adopt_release(staged)
    ids = np.array([clip.vector_id for clip in task.clips], np.int64)
    vectors = embed(method.encode_videos, task.clips, report=report)
    shard = store.write_shard(
        task=task.task_id, release=release.id, fingerprint=state.fingerprint, ids=ids, vectors=vectors
    )
    # Read back, because what is measured must be what is found: the store rounds.
    return Laid(state, release, shard, store.open([shard]))


def measure(
    backbone: Backbone,
    library: Library,
    laid: Laid,
    held_out: Mapping[str, HeldOut],
    *,
    prior: float = PRIOR,
    modes: Callable[[Sequence[str]], Sequence[str]] = lambda offered: offered,
    ledger: Ledger | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> Row:
    """The row of the recall matrix of a release that was just laid down, as far as a user meets it.

    Tasks whose shards cannot be read are left out.

    Args:
        held_out: by task id; what is not in it has nothing to measure.
        modes: which of the query modes that the release offers.
        prior, ledger: see :func:`trainer.evaluate.matrix.evaluate_row`.
        report: called with the share that is done.
    """
    state = laid.state
    pinned = {**library.pinned(), laid.shard.task: state}
    encoder = QueryEncoder.open(backbone, state, pinned)
    galleries: list[Gallery] = []
    rows: list[int] = []
    nothing = HeldOut.of([])
    for position, task in enumerate(state.tasks):
        own = task.task_id == laid.shard.task
        shard = laid.vectors if own else library.shard(task.task_id)
        if shard is None:
            continue
        held = held_out.get(task.task_id, nothing)
        galleries.append(Gallery(task.task_id, shard, held.ids, held.queries))
        rows.append(position)
    profiles = state.profiles.numpy()[rows]
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
    held_out: HeldOut,
    *,
    report: Callable[[int], None] = lambda done: None,
) -> Recall | None:
    """Recall of the backbone as it came on a task's held-out videos, local gallery; None without queries."""
    if not held_out.queries:
        return None
    frozen = start_method("zero_shot", backbone, {}, None)
    wanted = {int(i) for i in held_out.ids}
    chosen = [clip for clip in clips if clip.vector_id in wanted]
    videos = embed(frozen.encode_videos, chosen, report=report)
    texts = QueryEncoder.open(backbone, frozen.release(), {}).frozen([q.text for q in held_out.queries])
    return recall_of(
        texts, [q.vector_id for q in held_out.queries], videos, [clip.vector_id for clip in chosen]
    )
