"""Rank ledger: ranks kept from earlier rows, so that a release is only compared with its own task.

Shards never change. If a task's queries never change either, as in mode ``pinned``, no query has to be scored against
the same video twice: a new task's queries are scored against every shard, older queries only against the new shard, and
their counts continue from the previous row. A row's cost then grows with the number of queries and videos, not with
their product.

The ledger keeps counts rather than encoding queries again, since the same text may give other bits in another batch.

On disk a ledger is one ``.npz`` file. It only saves time: entries that do not match and files that cannot be read are
recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from index.arrays import Vectors
from index.files.durable_files import replace_file
from media.media_paths import append_seal, is_intact
from trainer.evaluation.retrieval_metrics import PrecisionCount, RankCount, TopItems

Scope = Literal["local", "global"]
GalleryName = Literal["local", "global", "global_raw", "local_all", "global_all"]
SCOPES: tuple[Scope, ...] = ("local", "global")
GALLERIES: tuple[GalleryName, ...] = ("local", "global", "global_raw", "local_all", "global_all")


@dataclass(frozen=True)
class TaskRanks:
    """Ranks of a task's Q queries among the videos scored so far, and of its captions among the captions.

    Attributes:
        queries: Query vectors encoded for their own task, ``[Q, dim]``.
        ranks: Ranks of the queries' videos, by gallery.
        precisions: Precision counts, by scope; videos with the class of a query's video are relevant.
        nearest: Held-out videos of the union nearest to each query, numbered from 0.
        captions: Ranks of each captioned video's best caption, by scope.
    """

    queries: Vectors
    ranks: Mapping[GalleryName, RankCount]
    precisions: Mapping[Scope, PrecisionCount]
    nearest: TopItems
    captions: Mapping[Scope, RankCount]

    @property
    def query_count(self) -> int:
        """Number of queries Q."""
        return len(self.queries)

    @property
    def video_count(self) -> int:
        """Number of videos that have a caption."""
        return len(self.captions["local"].truth)

    @classmethod
    def start(
        cls,
        queries: Vectors,
        truth: npt.NDArray[np.floating],
        prior: npt.NDArray[np.floating],
        captions: Mapping[Scope, npt.NDArray[np.floating]],
        *,
        galleries: Collection[GalleryName],
        nearest: int,
        precision_depth: int,
    ) -> TaskRanks:
        """Create ranks to which no video has been added yet.

        Args:
            queries: Query vectors ``[Q, dim]``.
            truth: Score of each query's video ``[Q]``.
            prior: Routing term of these scores ``[Q]``.
            captions: Score of each captioned video's best caption, by scope; empty if captions are not ranked.
            nearest: Number of nearest videos to keep per query.
            precision_depth: Number of videos to keep per query for average precision.
        """
        caption_ranks = {scope: RankCount(best) for scope, best in captions.items()}
        for scope, best in captions.items():
            # Count the best caption itself; the video's other captions do not compete.
            caption_ranks[scope].add(best[:, None])
        routed: tuple[GalleryName, ...] = ("global", "global_all")
        return cls(
            queries=queries,
            ranks={name: RankCount(truth + prior if name in routed else truth) for name in galleries},
            precisions={scope: PrecisionCount(precision_depth, len(truth)) for scope in SCOPES},
            nearest=TopItems(nearest, len(truth)),
            captions=caption_ranks,
        )


class TaskDigest(NamedTuple):
    """Digests of everything that a task's figures depend on.

    Attributes:
        gallery: Digest of its videos, its routing profile and its encoding.
        queries: Digest of its queries; empty without queries.
    """

    gallery: str
    queries: str


@dataclass(frozen=True)
class LedgerPage:
    """Ranks of all tasks in one query mode, each scored against every other."""

    digests: tuple[TaskDigest, ...]
    task_ranks: tuple[TaskRanks, ...]

    def is_continued_by(self, digests: Sequence[TaskDigest], *, full: bool) -> bool:
        """Check whether a row with these tasks can continue the ranks.

        Args:
            digests: Digests of all tasks in the row, in order.
            full: Whether the row computes all measures. Otherwise captions are not ranked, so a task's ranks do not
                depend on the queries of others, and a task may have lost all its queries.
        """
        return len(digests) >= len(self.digests) and all(
            now.gallery == known.gallery and (now.queries == known.queries or (not full and not now.queries))
            for known, now in zip(self.digests, digests, strict=False)
        )


RankLedger = dict[str, LedgerPage]  # by query mode


def write_ledger(path: Path, ledger: RankLedger) -> None:
    """Replace a ledger's file durably; an empty ledger removes it."""
    if not ledger:
        path.unlink(missing_ok=True)
        return
    columns: dict[str, npt.NDArray[Any]] = {}
    for mode, page in ledger.items():
        columns[f"{mode}/digests"] = np.array(page.digests).reshape(-1, 2)
        columns[f"{mode}/galleries"] = np.array(list(page.task_ranks[0].ranks))
        columns[f"{mode}/query_count"] = np.array([ranks.query_count for ranks in page.task_ranks], np.int64)
        columns[f"{mode}/video_count"] = np.array([ranks.video_count for ranks in page.task_ranks], np.int64)
        tables = [dict(_arrays(ranks)) for ranks in page.task_ranks]
        for name in tables[0]:
            # All tasks' rows in order, without empty parts: a task without queries has no vector width.
            parts = [table[name] for table in tables]
            columns[f"{mode}/{name}"] = np.concatenate([part for part in parts if len(part)] or parts[:1])
    with replace_file(path) as staged:
        with staged.open("wb") as file:
            np.savez(file, **columns)  # type: ignore[arg-type]
        append_seal(staged)


def read_ledger(path: Path) -> RankLedger:
    """Read a ledger; empty if the file is missing, damaged or unreadable."""
    try:
        if not is_intact(path):
            return {}
        with np.load(path, allow_pickle=False) as columns:
            modes = [name.removesuffix("/digests") for name in columns.files if name.endswith("/digests")]
            return {mode: _page(columns, mode) for mode in modes}
    except Exception:  # numpy raises almost any error for a damaged archive
        return {}


def _page(columns: Mapping[str, npt.NDArray[Any]], mode: str) -> LedgerPage:
    """Rebuild the page of a mode. Raises ValueError if the columns do not match."""
    digests, query_counts, video_counts = (
        columns[f"{mode}/{name}"].tolist() for name in ("digests", "query_count", "video_count")
    )
    vectors, nearest, precisions = (
        columns[f"{mode}/{name}"] for name in ("queries", "nearest/items", "precisions/local/best/items")
    )
    galleries = columns[f"{mode}/galleries"].tolist()
    task_ranks = [
        TaskRanks.start(
            np.empty((query_count, vectors.shape[1]), vectors.dtype),
            np.zeros(query_count),
            np.zeros(query_count),
            {scope: np.zeros(video_count) for scope in SCOPES},
            galleries=galleries,
            nearest=nearest.shape[1],
            precision_depth=precisions.shape[1],
        )
        for query_count, video_count in zip(query_counts, video_counts, strict=True)
    ]
    if len(digests) != len(task_ranks):
        raise ValueError("the number of digests differs from the number of tasks")
    arrays = [dict(_arrays(ranks)) for ranks in task_ranks]
    for name, template in arrays[0].items():
        column = columns[f"{mode}/{name}"]
        tables = [part[name] for part in arrays]
        if column.dtype != template.dtype or column.shape != (sum(map(len, tables)), *template.shape[1:]):
            raise ValueError(f"column {name} has the wrong type or shape")
        start = 0
        for table in tables:
            table[:] = column[start : start + len(table)]
            start += len(table)
    return LedgerPage(tuple(TaskDigest(*digest) for digest in digests), tuple(task_ranks))


def _arrays(value: Any, path: str = "") -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the arrays in a :class:`TaskRanks`, not copied, with their names in the file."""
    if isinstance(value, np.ndarray):
        yield path, value
        return
    for name, part in (value if isinstance(value, Mapping) else vars(value)).items():
        yield from _arrays(part, f"{path}/{name}" if path else str(name))
