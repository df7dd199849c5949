"""What has been counted before, so that measuring a release costs what its own task adds.

Shards never change. Where a task's queries never change either, as in mode ``pinned``, two vectors that have met need
not meet again: a new task's queries meet every shard, the older queries meet the new shard alone, and their counts go
on from where the last row left them. What one row costs then grows with the queries and videos that there are, not
with their product.

Counts are kept rather than vectors encoded anew: the same text need not give the same bits in another batch.

On disk a ledger is one ``.npz`` file. It is worth nothing but time: what does not fit, or cannot be read, is measured
afresh.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from index.files.durable_files import replacing
from trainer.evaluation.gallery import Vectors
from trainer.evaluation.retrieval_metrics import PrecisionCount, RankCount, TopItems

__all__ = [
    "GALLERIES",
    "SCOPES",
    "GalleryName",
    "LedgerPage",
    "RankLedger",
    "Scope",
    "TaskRanks",
    "read_ledger",
    "write_ledger",
]

Scope = Literal["local", "global"]
GalleryName = Literal["local", "global", "global_raw", "local_all", "global_all"]
SCOPES: tuple[Scope, ...] = ("local", "global")
GALLERIES: tuple[GalleryName, ...] = ("local", "global", "global_raw", "local_all", "global_all")


@dataclass(frozen=True)
class TaskRanks:
    """Where the Q queries of one task stand among the videos that they have met, and its videos among the captions.

    Attributes:
        own: ``[Q, dim]``, the queries under their own task.
        ranks: of the queries' videos, by gallery.
        alike: of what has the class of a query's video, by scope.
        nearest: the held-out videos of the union that are nearest to each query, counted from 0.
        captions: ranks of the best caption of each video that has any, by scope.
    """

    own: Vectors
    ranks: Mapping[GalleryName, RankCount]
    alike: Mapping[Scope, PrecisionCount]
    nearest: TopItems
    captions: Mapping[Scope, RankCount]

    @property
    def queries(self) -> int:
        return len(self.own)

    @property
    def videos(self) -> int:
        """Number of videos that have a caption."""
        return len(self.captions["local"].truth)

    @classmethod
    def begin(
        cls,
        own: Vectors,
        truth: npt.NDArray[np.floating],
        lift: npt.NDArray[np.floating],
        captions: Mapping[Scope, npt.NDArray[np.floating]],
        *,
        galleries: Collection[GalleryName],
        nearest: int,
        alike: int,
    ) -> TaskRanks:
        """Before anything is met.

        Args:
            own: ``[Q, dim]``.
            truth: ``[Q]``, score of each query's video.
            lift: ``[Q]``, what routing adds to it.
            captions: score of the best caption of each video that has any, by scope; empty where they are not ranked.
            galleries: in which to rank.
            nearest, alike: how many to keep.
        """
        counts = {scope: RankCount(best) for scope, best in captions.items()}
        for scope, best in captions.items():
            counts[scope].add(best[:, None])  # it meets itself; its video's other captions do not compete
        lifted: tuple[GalleryName, ...] = ("global", "global_all")
        return cls(
            own=own,
            ranks={name: RankCount(truth + lift if name in lifted else truth) for name in galleries},
            alike={scope: PrecisionCount(alike, len(truth)) for scope in SCOPES},
            nearest=TopItems(nearest, len(truth)),
            captions=counts,
        )


@dataclass(frozen=True)
class LedgerPage:
    """Where the tasks of a library stand in one query mode, after all of them have met.

    Attributes:
        digests: of every task, in order: digests of all that its figures depend on.
        task_ranks: likewise.
    """

    digests: tuple[str, ...]
    task_ranks: tuple[TaskRanks, ...]


RankLedger = dict[str, LedgerPage]  # by query mode


def write_ledger(path: Path, ledger: RankLedger) -> None:
    """Replace the file of a ledger durably; remove it where nothing stands still."""
    if not ledger:
        path.unlink(missing_ok=True)
        return
    columns: dict[str, npt.NDArray[Any]] = {}
    for mode, page in ledger.items():
        columns[f"{mode}/seals"] = np.array(page.digests)
        columns[f"{mode}/galleries"] = np.array(list(page.task_ranks[0].ranks))
        for name in ("queries", "videos"):
            columns[f"{mode}/{name}"] = np.array([getattr(s, name) for s in page.task_ranks], np.int64)
        tables = [dict(_tables(standing)) for standing in page.task_ranks]
        for name in tables[0]:
            # Of all tasks, one after the other. A task without queries does not know how wide its vectors are.
            parts = [table[name] for table in tables]
            columns[f"{mode}/{name}"] = np.concatenate([part for part in parts if len(part)] or parts[:1])
    with replacing(path) as staged, staged.open("wb") as file:
        np.savez(file, **columns)  # type: ignore[arg-type]


def read_ledger(path: Path) -> RankLedger:
    """The ledger in a file; an empty one where there is none that can be read."""
    try:
        with np.load(path, allow_pickle=False) as columns:
            modes = [name.removesuffix("/seals") for name in columns.files if name.endswith("/seals")]
            return {mode: _page(columns, mode) for mode in modes}
    except Exception:  # a damaged archive raises almost anything
        return {}


def _page(columns: Mapping[str, npt.NDArray[Any]], mode: str) -> LedgerPage:
    """Raises ValueError where the columns do not go together."""
    seals, queries, videos = (columns[f"{mode}/{name}"].tolist() for name in ("seals", "queries", "videos"))
    own, near, alike = (
        columns[f"{mode}/{name}"] for name in ("own", "nearest/marks", "alike/local/best/marks")
    )
    galleries = columns[f"{mode}/galleries"].tolist()
    standings = [
        TaskRanks.begin(
            np.empty((count, own.shape[1]), own.dtype),
            np.zeros(count),
            np.zeros(count),
            {scope: np.zeros(asking) for scope in SCOPES},
            galleries=galleries,
            nearest=near.shape[1],
            alike=alike.shape[1],
        )
        for count, asking in zip(queries, videos, strict=True)
    ]
    if len(seals) != len(standings):
        raise ValueError("tasks are missing")
    for name, blank in _tables(standings[0]):
        column = columns[f"{mode}/{name}"]
        tables = [dict(_tables(standing))[name] for standing in standings]
        if column.dtype != blank.dtype or column.shape != (sum(map(len, tables)), *blank.shape[1:]):
            raise ValueError(f"{name} is not what it should be")
        start = 0
        for table in tables:
            table[:] = column[start : start + len(table)]
            start += len(table)
    return LedgerPage(tuple(seals), tuple(standings))


def _tables(of: Any, path: str = "") -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """All arrays of a standing with their names; what is written into them is written into it."""
    if isinstance(of, np.ndarray):
        yield path, of
        return
    for name, part in (of if isinstance(of, Mapping) else vars(of)).items():
        yield from _tables(part, f"{path}/{name}" if path else name)
