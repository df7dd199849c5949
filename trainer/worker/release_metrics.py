"""Evaluation of a written release for the catalog, and the rank ledger that the next evaluation starts from."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from index.errors import ShardStoreError
from models.backbones.backbone import Backbone
from models.routing import DEFAULT_PRIOR
from service.storage import library_paths
from service.tasks.lifecycle import Claim, RecallRecord
from trainer.evaluation.rank_ledger import RankLedger, read_ledger, write_ledger
from trainer.evaluation.recall_row import RecallRow
from trainer.evaluation.retrieval_metrics import Recall
from trainer.published_library import Library
from trainer.task_data import TaskData
from trainer.task_pipeline import HeldOutVideos, WrittenRelease, evaluate_release, zero_shot_recall
from trainer.worker.catalog_reader import held_out_videos

log = structlog.get_logger(__name__)


def evaluate_task(
    claim: Claim, backbone: Backbone, library: Library, written: WrittenRelease, task: TaskData
) -> tuple[list[RecallRecord], RankLedger]:
    """Cells of the recall matrix for the task's release, and the rank ledger after it."""
    held_out = held_out_videos(task.task_id)
    own = held_out.get(task.task_id, HeldOutVideos.from_captions([]))
    total = max(len(own.ids), 1)
    zero_shot = zero_shot_recall(
        backbone,
        task.clips,
        own,
        report=lambda done: claim.progress("baseline", done / total, done=done, total=total),
    )
    claim.progress("evaluating")
    ledger = read_ledger(library_paths.recall_cache_path())
    row = evaluate_release(
        backbone,
        library,
        written,
        held_out,
        prior=DEFAULT_PRIOR,
        ledger=ledger,
        report=lambda share: claim.progress("evaluating", share),
    )
    return list(_matrix_cells(row, task.task_id, zero_shot)), ledger


def save_ledger(library: Library, ledger: RankLedger) -> None:
    """Save the rank ledger of a published release.

    The ledger of a task that was not published would match no later row. Neither would a ledger that counts a video
    deleted in the meantime, and it would also keep data derived from that video's caption. A deletion marks the index
    before it removes the ledger, so the index is compared after the ledger is written: tombstones, and the shards
    themselves, since compaction replaces a shard and removes its tombstone.
    """
    before = library.manifest
    try:
        write_ledger(library_paths.recall_cache_path(), ledger)
        after = library.store.manifest()
        unchanged = all(after.segments(task) == before.segments(task) for task in before.shards)
        if not unchanged or after.tombstones != before.tombstones:
            library_paths.recall_cache_path().unlink(missing_ok=True)
    except (OSError, ShardStoreError) as error:
        log.warning("rank_ledger_not_saved", error=str(error))


def _matrix_cells(row: RecallRow, task_id: str, zero_shot: Recall | None) -> Iterator[RecallRecord]:
    for mode, galleries in row.recalls.items():
        for gallery, recalls in galleries.items():
            for task, recall in recalls.items():
                if recall is not None:
                    yield RecallRecord(
                        task,
                        mode,  # type: ignore[arg-type]
                        gallery,  # type: ignore[arg-type]
                        **vars(recall),
                        routing1=row.routing[task] if gallery == "global" else None,
                        query_set=row.query_sets[task],
                        first_hits=row.first_hits[mode][gallery][task],
                    )
        if zero_shot is not None:
            yield RecallRecord(task_id, mode, "local", **vars(zero_shot), zero_shot=True)  # type: ignore[arg-type]
