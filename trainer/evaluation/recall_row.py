"""A row of the recall matrix: how well a release retrieves the videos of each learned task.

Row i of the matrix holds release i's recall for the tasks t ≤ i, in five galleries. *Local*: the task's own
shard, known task, one query vector. *Global*: the union of all shards, unknown task; each shard is scored with its own
query vector, and cosines are merged after each task's routing prior is added. Both galleries hold only the held-out
videos, as in the papers, or all videos (``local_all``, ``global_all``). ``global_raw`` merges raw cosines, as the
papers do, so that methods can be compared without routing, which helps all of them.

A row can be evaluated without the measures that only compare methods; it then holds the figures that a user of the
library experiences (text to video, with routing). This rarely needs a query vector for every shard: if the routing
prior leaves a shard's videos no chance to reach the score of a query's own video
(:func:`models.routing.router.can_reach_score`), the query is not encoded for that shard, and the figures stay the same.
Where words separate the tasks, a query costs one encoding for any number of tasks.

Each caption is scored against each video once per row, or, if neither can change, once ever: in the row of the later
of their two tasks (:mod:`trainer.evaluation.rank_ledger`). Rows of these scores rank videos for a caption, columns rank
captions for a video.

Other tasks change neither the difference in a text's routing evidence between two tasks nor a video's rank among the
videos of both. In a column, however, competing texts are normalized separately, and another task would change them
all. A caption therefore counts with its log weight among the tasks up to its own, like an entry in a caption catalog
that is never recomputed.

In a library of up to :data:`MAX_MEASURED_TASKS` tasks, a row measures all of them. In a larger one it measures evenly
spaced tasks and the newest, so that its cost grows linearly with the number of tasks, not quadratically: each query may
have to be encoded for every shard, and every shard remains a gallery.

Only stored vectors are read, since videos of earlier tasks may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Vectors
from models.routing import DEFAULT_PRIOR
from models.routing.router import silent_tasks
from trainer.evaluation.evaluation_task import build_evaluation_tasks, evaluation_digests
from trainer.evaluation.gallery import Encoder, Gallery
from trainer.evaluation.mode_evaluation import ModeEvaluation, QueryMemory
from trainer.evaluation.rank_ledger import GalleryName, LedgerPage, RankLedger, Scope, TaskDigest
from trainer.evaluation.retrieval_metrics import Recall, rank_by_id, recall_at, summarize

_ROUTED_TASKS = (1, 2, 4)  # m of routing accuracy@m


@dataclass
class RecallRow:
    """Measures of one release. Recalls and shares are 0..1; None for a task without queries.

    Attributes:
        recalls: Text-to-video recall by mode, gallery and task ID.
        first_hits: Whether each query ranks its video first, one bit per query, most significant bit first; by mode,
            gallery and task ID.
        query_sets: Digest of the queries in their order, by task ID.
        pooled: Text-to-video recall over all tasks' queries together, by mode and gallery.
        to_text: Video-to-text recall by mode, gallery and task ID: rank of a held-out video's best caption among the
            captions of the same gallery.
        mean_ap: Text-to-video mAP@1, @5 and @10, by mode, gallery, task ID and k; all videos with the class of the
            query's video are relevant. None for a task without classes.
        hubness: Skewness of N_10 over all held-out videos, for all tasks' queries, by mode.
        drift: Mean angle in degrees between a task's queries now and when it was learned, by mode and task ID; only
            tasks that were in the query memory.
        routing: Routing accuracy@1 by task ID: the share of queries with the most evidence for their own task, among
            the tasks with captions. A task whose training videos have no captions is never first.
        routing_at: Routing accuracy@m by task ID and m = 1, 2, 4: the own task is among the first m.
    """

    recalls: dict[str, dict[GalleryName, dict[str, Recall | None]]] = field(default_factory=dict)
    first_hits: dict[str, dict[GalleryName, dict[str, bytes]]] = field(default_factory=dict)
    query_sets: dict[str, str] = field(default_factory=dict)
    pooled: dict[str, dict[GalleryName, Recall | None]] = field(default_factory=dict)
    to_text: dict[str, dict[Scope, dict[str, Recall | None]]] = field(default_factory=dict)
    mean_ap: dict[str, dict[Scope, dict[str, dict[int, float] | None]]] = field(default_factory=dict)
    hubness: dict[str, float | None] = field(default_factory=dict)
    drift: dict[str, dict[str, float | None]] = field(default_factory=dict)
    routing: dict[str, float | None] = field(default_factory=dict)
    routing_at: dict[str, dict[int, float] | None] = field(default_factory=dict)


def evaluate_row(
    encoder: Encoder,
    galleries: Sequence[Gallery],
    profiles: Vectors,
    *,
    prior: float = DEFAULT_PRIOR,
    modes: Sequence[str] | None = None,
    full: bool = True,
    memory: QueryMemory | None = None,
    ledger: RankLedger | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> RecallRow:
    """Evaluate a release on the galleries of all learned tasks.

    Args:
        encoder: Query encoder of the release.
        galleries: Gallery of each learned task, in order.
        profiles: Routing profiles ``[T, V]`` of the tasks, in the same order.
        prior: Cosine per nat of routing evidence, added to the scores in a union gallery; 0 merges raw cosines.
        modes: Query modes; by default all that the release has.
        full: Whether to compute every measure. Otherwise skip ``global_raw``, ``to_text``, ``mean_ap`` and ``hubness``,
            which need a score for most pairs of a query and a shard. The other measures need few pairs and do not
            change.
        memory: Query vectors for drift, passed from row to row. A task's queries are added in the first row that
            includes the task, which must be the row of the release that learned it; old encoders are not used.
        ledger: Rank ledger, passed from row to row and updated with the ranks that later rows reuse. The figures equal
            those without a ledger; entries whose inputs have changed are recomputed.
        report: Called with the completed share, 0..1.

    Raises:
        EvaluationError: A score is not finite.
    """
    row = RecallRow()
    tasks = build_evaluation_tasks(encoder, galleries, profiles, prior)
    silent = silent_tasks(profiles)
    for position, task in enumerate(tasks):
        name = task.gallery.task
        at = _routing_at(task.evidence, position, silent) if task.texts else None
        row.query_sets[name] = task.query_set
        row.routing_at[name], row.routing[name] = at, at[1] if at else None
    # A task without captions has the evidence of the likeliest other task, which another task may change.
    has_stable_evidence = ledger is not None and not silent.any()
    evaluations: list[tuple[ModeEvaluation, tuple[TaskDigest, ...] | None]] = []
    for mode in encoder.modes if modes is None else modes:
        digests = evaluation_digests(encoder, tasks, mode, full) if has_stable_evidence else None
        page = ledger.pop(mode, None) if ledger else None  # put back once the mode is complete
        is_valid = page is not None and digests is not None and page.is_continued_by(digests, full=full)
        known_ranks = page.task_ranks if page and is_valid else ()
        evaluations.append((ModeEvaluation(encoder, tasks, mode, full, known_ranks), digests))
    work = max(1, sum(evaluation.work for evaluation, _ in evaluations))
    done = 0
    for evaluation, digests in evaluations:
        for count in evaluation.run():
            done += count
            report(done / work)
        _add_mode(row, evaluation, full, memory)
        if ledger is not None and digests is not None:
            ledger[evaluation.mode] = LedgerPage(digests, tuple(evaluation.task_ranks))
    return row


def compute_recall(
    texts: Vectors, truth: Sequence[int], videos: Vectors, ids: Sequence[int]
) -> Recall | None:
    """Compute the recall of query vectors in a gallery; None without queries.

    Args:
        texts: Query vectors ``[Q, dim]``.
        truth: Video ID of each query.
        videos: Video vectors ``[G, dim]``.
        ids: Video ID of each video vector.
    """
    return summarize(rank_by_id(texts @ videos.T, ids, truth)) if len(truth) else None


def routing_accuracy(weights: Floats, own: int, m: int = 1) -> float:
    """Compute routing accuracy@m, the share of texts, 0..1, whose own task is among the m with the largest weight.

    A tie with an equally likely task counts as a miss.

    Args:
        weights: Weight of each text for each task ``[Q, T]``, in any unit.
        own: Position of the texts' own task.
    """
    return recall_at(rank_by_id(weights, range(weights.shape[1]), [own] * len(weights)), m)


def _routing_at(evidence: Floats, own: int, silent: npt.NDArray[np.bool_]) -> dict[int, float]:
    """Compute routing accuracy@m among the tasks with captions.

    A task without captions takes the evidence of the likeliest other task, and would tie with it.
    """
    rivals = np.flatnonzero(~silent | (np.arange(len(silent)) == own))
    position = int(np.searchsorted(rivals, own))
    return {m: routing_accuracy(evidence[:, rivals], position, m) for m in _ROUTED_TASKS}


def _add_mode(row: RecallRow, evaluation: ModeEvaluation, full: bool, memory: QueryMemory | None) -> None:
    mode = evaluation.mode
    if memory is not None:
        row.drift[mode] = evaluation.query_drift(memory)
    row.recalls[mode] = evaluation.recalls()
    row.first_hits[mode] = evaluation.first_hits()
    row.pooled[mode] = evaluation.pooled_recalls()
    if full:
        row.to_text[mode] = evaluation.caption_recalls()
        row.mean_ap[mode] = evaluation.mean_average_precisions()
        row.hubness[mode] = evaluation.hubness()


MAX_MEASURED_TASKS = 64


def select_measured_tasks(tasks: Sequence[str]) -> frozenset[str]:
    """Select at most :data:`MAX_MEASURED_TASKS` evenly spaced tasks, and the newest.

    The distance is a power of two, so a growing library stops measuring tasks but never resumes one: the remaining
    tasks' columns are complete, and their queries' ranks continue.

    Args:
        tasks: IDs of the tasks with queries, in order of learning.
    """
    distance = 1
    while len(tasks) > MAX_MEASURED_TASKS * distance:
        distance *= 2
    return frozenset([*tasks[::distance], *tasks[-1:]])
